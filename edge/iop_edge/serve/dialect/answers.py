"""Readers of one upstream answer: a stream, a whole body, an error, or what is none of these.

They satisfy `AnswerReader`: bytes in, bytes to be released out, no I/O and no clock. Which reader
an answer gets is decided by its status and content type alone.
"""

from __future__ import annotations

import re

import msgspec

from iop_edge.runtime.work import AnswerReader, HeaderPairs, ReportedUsage
from iop_edge.serve.dialect.error_body import reshaped_error
from iop_edge.serve.dialect.errors import Dialect
from iop_edge.serve.dialect.event_stream import EventStream
from iop_edge.serve.dialect.json_value import find_value
from iop_edge.serve.dialect.observers import AnswerObserver, not_an_answer
from iop_shared.errors import Code, Fault

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A whole answer is held until it is complete, so its size is bounded."""

MAX_ERROR_BYTES = 256 * 1024
"""More of an upstream's error is not read; it is then told by its status alone."""

TOLD_ERROR = "error:upstream_error"
"""How a run ended whose upstream told an error in the middle of its stream."""

JSON_HEADERS: HeaderPairs = (("content-type", "application/json"),)
STREAM_HEADERS: HeaderPairs = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_RETRY_AFTER = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,63}")


def reader_for(
    status: int,
    headers: HeaderPairs,
    *,
    is_stream: bool,
    observer: AnswerObserver,
    model: str,
    dialect: Dialect,
    request_id: str,
) -> AnswerReader:
    """The reader of an answer that began so. `model` is the name that the caller uses."""
    if 400 <= status < 600:
        return ErrorAnswer(status, headers, dialect, request_id)
    if not 200 <= status < 300:
        return InvalidAnswer(f"the upstream answered with status {status}, which is no answer")
    name = msgspec.json.encode(model)
    if not is_stream:
        return WholeAnswer(observer, name)
    media_type = _header(headers, "content-type").partition(";")[0].strip().lower()
    if media_type not in ("text/event-stream", ""):
        return InvalidAnswer("the upstream answered a request for a stream with something else")
    return StreamAnswer(observer, name)


class StreamAnswer:
    """A stream of server-sent events, released event by event."""

    headers = STREAM_HEADERS

    def __init__(self, observer: AnswerObserver, name: bytes) -> None:
        self._observer = observer
        events = EventStream(observer, name)
        self.feed = events.feed
        self.end = events.end

    @property
    def usage(self) -> ReportedUsage:
        return self._observer.usage

    @property
    def told_end(self) -> str | None:
        if not self._observer.is_ended:
            return None
        return TOLD_ERROR if self._observer.has_failed else "completed"

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return self._observer.generated.tokens(chars_per_token)


class WholeAnswer:
    """A JSON body, released when it is complete and proved to be one."""

    headers = JSON_HEADERS
    told_end = None

    def __init__(self, observer: AnswerObserver, name: bytes) -> None:
        self._observer = observer
        self._name = name
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def usage(self) -> ReportedUsage:
        return self._observer.usage

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return self._observer.generated.tokens(chars_per_token)

    def feed(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        if self._size > MAX_BODY_BYTES:
            raise Fault(
                Code.UPSTREAM_INVALID,
                f"the upstream's answer is over {MAX_BODY_BYTES} bytes",
            )
        self._parts.append(chunk)
        return b""

    def end(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        literal = self._observer.whole(body)
        if not literal or literal == self._name:
            return body
        span = find_value(body, ("model",), literal)
        if span is None:
            raise not_an_answer()
        return b"".join((body[: span[0]], self._name, body[span[1] :]))


class _NothingGenerated:
    """An answer of which no model has written anything."""

    usage = ReportedUsage()
    told_end = None

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return 0


class ErrorAnswer(_NothingGenerated):
    """An upstream's own error: kept where it is one in the caller's dialect, else reshaped."""

    def __init__(
        self, status: int, headers: HeaderPairs, dialect: Dialect, request_id: str
    ) -> None:
        self._status = status
        self._dialect = dialect
        self._request_id = request_id
        self._body = bytearray()
        self._is_too_large = False
        retry_after = _header(headers, "retry-after")
        is_sane = _RETRY_AFTER.fullmatch(retry_after) is not None
        self.headers: HeaderPairs = (
            (*JSON_HEADERS, ("retry-after", retry_after)) if is_sane else JSON_HEADERS
        )

    def feed(self, chunk: bytes) -> bytes:
        if len(self._body) + len(chunk) > MAX_ERROR_BYTES:
            self._is_too_large = True
            self._body.clear()
        if not self._is_too_large:
            self._body += chunk
        return b""

    def end(self) -> bytes:
        body = bytes(self._body)
        return reshaped_error(body, self._status, self._dialect, self._request_id)


class InvalidAnswer(_NothingGenerated):
    """An answer of which nothing can be released; reading it says why."""

    headers = JSON_HEADERS

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def feed(self, chunk: bytes) -> bytes:
        raise Fault(Code.UPSTREAM_INVALID, self._reason)

    def end(self) -> bytes:
        raise Fault(Code.UPSTREAM_INVALID, self._reason)


def status_for(status: int, dialect: Dialect) -> int:
    """An upstream's status as the caller sees it: 529 is Anthropic's own (OAI-5)."""
    return 503 if status == 529 and dialect is Dialect.OPENAI else status


def _header(headers: HeaderPairs, name: str) -> str:
    return next((value for key, value in headers if key.lower() == name), "")
