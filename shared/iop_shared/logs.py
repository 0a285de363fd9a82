"""Structured logs, one line an event, on standard error.

Every process configures logging once, here. The rules of SEC-1 hold for what is logged: ids,
counts, codes and durations; never a credential, a prompt, a completion or an upstream's address.
As a last line of defence, values under keys that name a secret are replaced.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

_SECRET_WORDS = ("authorization", "cookie", "token", "secret", "password", "api_key", "apikey")
_HARMLESS = ("token_ref", "input_tokens", "output_tokens")


def configure(level: Level = "info", output: Format = "json") -> None:
    """Set up logging for this process. `console` is for people, coloured on a terminal only."""
    renderer: structlog.typing.Processor
    if output == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_tracebacks(output),
            _redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # Libraries that speak through `logging` are heard from warnings on, on the same stream.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def get(component: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines name the component."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=component)
    return logger


def _tracebacks(output: Format) -> list[structlog.typing.Processor]:
    if output == "console":
        return []
    # Without local variables: they hold prompts and credentials.
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(transformer)]


def _redact(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key in event:
        lowered = key.lower()
        if lowered not in _HARMLESS and any(word in lowered for word in _SECRET_WORDS):
            event[key] = "[redacted]"
    return event
