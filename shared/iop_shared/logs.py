"""Structured logs, one line an event, on standard error.

Every process configures logging once, here. The rules of SEC-1 hold for what is logged: ids,
counts, codes and durations; never a credential, a prompt, a completion or an upstream's address.
As a last line of defence, values under keys that name a secret are replaced, exceptions are told
without their messages (which may quote what they failed on), and nothing that a caller sent
reaches a terminal as anything but visible characters.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import json
import logging
import re
import sys
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from traceback import extract_tb
from types import TracebackType
from typing import Any, Literal

import msgspec
import structlog

from iop_shared.errors import Fault
from iop_shared.timestamps import to_microseconds

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

_SECRET_WORDS = ("authorization", "cookie", "token", "secret", "password", "api_key", "apikey")
_HARMLESS = ("token_ref", "input_tokens", "output_tokens")

_takes_records = False
"""Records may be written as JSON lines of their own: so configured, and at a level that shows."""
_shows_debug = False


def configure(level: Level = "info", output: Format = "json") -> None:
    """Set up logging for this process. `console` is for people, coloured on a terminal only."""
    global _takes_records, _shows_debug
    renderer: structlog.typing.Processor
    if output == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _let_waiting_lines_go_first,
            _tell_exception,
            _redact,
            *([_make_visible, _lay_out_exception] if output == "console" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _shows_debug = level == "debug"
    _takes_records = output == "json" and level in ("debug", "info")
    # Libraries that speak through `logging` are heard from warnings on, as lines like any other.
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)


def get(component: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines name the component."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=component)
    return logger


def shows_debug() -> bool:
    """Whether lines of level debug are written; for what is costly to put into words."""
    return _shows_debug


class RecordLog:
    """Lines of one event that is logged at every run, at level info and at little cost.

    The lines are those that a logger of `get` would write, in the same order; those of one turn
    of the event loop are written together, at its end. No field of `kind` may have a name
    under which a logger replaces values; raises ValueError for one that has.
    """

    def __init__(self, component: str, event: str, kind: type[msgspec.Struct]) -> None:
        for name in kind.__struct_fields__:
            if _names_a_secret(name):
                raise ValueError(f"{kind.__name__}.{name} would be redacted in a log line")
        self._event = event
        self._logger = get(component)
        self._head = json.dumps({"component": component})[:-1] + ", "
        self._tail = ", " + json.dumps({"event": event, "level": "info"})[1:-1] + ', "timestamp": "'

    def write(self, encoded: bytes) -> None:
        """Log one record, encoded as a JSON object. Never raises for what the stream does."""
        if not _takes_records or not encoded.isascii():
            # JSON as such lets through what terminals obey.
            self._logger.info(self._event, **json.loads(encoded))
            return
        now = to_microseconds(time.time())
        _waiting_lines.add(f'{self._head}{encoded[1:-1].decode()}{self._tail}{now}Z"}}\n')


class _WaitingLines:
    """Lines for standard error. A write is a system call, and runs often end together."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) > 1:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.write()
        else:
            loop.call_soon(self.write)

    def write(self) -> None:
        """Write those that wait. Never raises for what the stream does."""
        if self._lines:
            lines, self._lines = self._lines, []
            with suppress(OSError, ValueError):
                sys.stderr.write("".join(lines))
                sys.stderr.flush()


_waiting_lines = _WaitingLines()
atexit.register(_waiting_lines.write)


# -- processors ------------------------------------------------------------------------------------


def _let_waiting_lines_go_first(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    _waiting_lines.write()
    return event


def _tell_exception(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """An exception as its type, its causes' types, and where each was raised."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = list(_chain(error))
    return event


def _chain(error: BaseException) -> list[dict[str, Any]]:
    told = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        told.append({"exc_type": _kind_of(cause), "frames": _frames(cause.__traceback__)})
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return told


def _kind_of(error: BaseException) -> str:
    kind = type(error).__name__
    if isinstance(error, Fault):
        return f"{kind}({error.code.value})"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{kind}({errno.errorcode.get(error.errno, error.errno)})"
    return kind


def _frames(traceback: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in extract_tb(traceback)]


def _names_a_secret(key: str) -> bool:
    lowered = key.lower()
    return lowered not in _HARMLESS and any(word in lowered for word in _SECRET_WORDS)


def _redact(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key in event:
        if _names_a_secret(key):
            event[key] = "[redacted]"
    return event


def _make_visible(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape line breaks, control characters and marks of direction, wherever they stand."""
    for key, value in event.items():
        event[key] = _visible(value)
    return event


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(each if each.isprintable() else _escaped(each) for each in value)
    if isinstance(value, Mapping):
        return {key: _visible(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(inner) for inner in value]
    return value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _lay_out_exception(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    told = event.get("exception")
    if isinstance(told, list):
        parts = []
        for each in told:
            frames = "".join(f"  {frame}\n" for frame in each["frames"])
            parts.append(f"Traceback, without messages:\n{frames}{each['exc_type']}")
        event["exception"] = "\nbecause of\n".join(parts)
    return event


class _LibraryHandler(logging.Handler):
    """Passes on what a library says: its first words, since what follows may quote values."""

    _FIRST_WORDS = re.compile(r"[\w .,:/-]*")

    def emit(self, record: logging.LogRecord) -> None:
        words = self._FIRST_WORDS.match(record.getMessage())
        structlog.get_logger(component="library", library=record.name).log(
            record.levelno, words[0].strip() if words else "", exc_info=record.exc_info
        )
