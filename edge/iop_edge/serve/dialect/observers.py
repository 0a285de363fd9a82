"""What the answers of the three caller protocols mean: model, usage, and the end of a stream.

One observer per answer. It looks at an event or at a whole body, keeps the usage that was
reported last, and knows the protocol's terminal marker. Reported usage is taken as it is: a zero
is a zero, and what is no number is no report.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from iop_edge.runtime.work import ReportedUsage
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_shared.errors import Code, Fault

_MAX_TOKENS = 2**53
_NOTHING = Raw()


class AnswerObserver(Protocol):
    """An observer of events that also reads whole bodies."""

    @property
    def model_path(self) -> tuple[str, ...]: ...
    @property
    def usage(self) -> ReportedUsage: ...
    @property
    def is_ended(self) -> bool: ...

    def event(self, payload: bytes) -> bytes: ...

    def whole(self, body: bytes) -> bytes:
        """Look at a body; return the literal of its top-level model name, or nothing.

        Raises Fault(upstream_invalid) on a body that is no JSON object.
        """
        ...


class _Head(Struct, gc=False):
    """What matters of an OpenAI chunk, and of every whole body."""

    model: Raw = _NOTHING
    usage: Raw = _NOTHING
    error: Raw = _NOTHING


class _Usage(Struct, gc=False):
    prompt_tokens: Raw = _NOTHING
    completion_tokens: Raw = _NOTHING
    input_tokens: Raw = _NOTHING
    output_tokens: Raw = _NOTHING


class _TypedEvent(Struct, gc=False):
    """What matters of an event of Responses or Messages."""

    type: str = ""
    response: Raw = _NOTHING
    message: Raw = _NOTHING
    usage: Raw = _NOTHING


_head = msgspec.json.Decoder(_Head).decode
_typed = msgspec.json.Decoder(_TypedEvent).decode
_usage = msgspec.json.Decoder(_Usage).decode
_count = msgspec.json.Decoder(int).decode


class ChatObserver:
    """Chat completions. A stream ends with `data: [DONE]`, or with an error event."""

    __slots__ = ("is_ended", "usage")
    model_path = ("model",)

    def __init__(self) -> None:
        self.usage = ReportedUsage()
        self.is_ended = False

    def event(self, payload: bytes) -> bytes:
        if payload.startswith(b"[") and payload.strip() == b"[DONE]":
            self.is_ended = True
            return b""
        head = _read_head(payload)
        self.usage = with_usage(self.usage, head.usage)
        if _is_given(head.error):
            self.is_ended = True
        return _name_in(head.model)

    def whole(self, body: bytes) -> bytes:
        head = _read_head(body)
        self.usage = with_usage(self.usage, head.usage)
        return _name_in(head.model)


class ResponsesObserver:
    """Responses. A stream ends with its completed, incomplete or failed response, or an error."""

    __slots__ = ("is_ended", "usage")
    model_path = ("response", "model")
    _TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})

    def __init__(self) -> None:
        self.usage = ReportedUsage()
        self.is_ended = False

    def event(self, payload: bytes) -> bytes:
        if payload.startswith(b"[") and payload.strip() == b"[DONE]":
            return b""
        event = _read_typed(payload)
        if event.type in self._TERMINAL:
            self.is_ended = True
        if not _is_given(event.response):
            return b""
        head = _read_head(bytes(event.response))
        self.usage = with_usage(self.usage, head.usage)
        return _name_in(head.model)

    def whole(self, body: bytes) -> bytes:
        head = _read_head(body)
        self.usage = with_usage(self.usage, head.usage)
        return _name_in(head.model)


class MessagesObserver:
    """Anthropic's messages. A stream ends with `message_stop`, or with an error event.

    `message_start` reports the input, each `message_delta` the output so far.
    """

    __slots__ = ("is_ended", "usage")
    model_path = ("message", "model")

    def __init__(self) -> None:
        self.usage = ReportedUsage()
        self.is_ended = False

    def event(self, payload: bytes) -> bytes:
        event = _read_typed(payload)
        if event.type in ("message_stop", "error"):
            self.is_ended = True
        self.usage = with_usage(self.usage, event.usage)
        if not _is_given(event.message):
            return b""
        head = _read_head(bytes(event.message))
        self.usage = with_usage(self.usage, head.usage)
        return _name_in(head.model)

    def whole(self, body: bytes) -> bytes:
        head = _read_head(body)
        self.usage = with_usage(self.usage, head.usage)
        return _name_in(head.model)


def with_usage(known: ReportedUsage, raw: Raw) -> ReportedUsage:
    """What is known after one more report, which stands over earlier ones and adds nothing up."""
    if not _is_given(raw):
        return known
    try:
        found = _usage(raw)
    except NOT_JSON:
        return known
    counted = _tokens(found.input_tokens, found.prompt_tokens)
    produced = _tokens(found.output_tokens, found.completion_tokens)
    return ReportedUsage(
        input_tokens=known.input_tokens if counted is None else counted,
        output_tokens=known.output_tokens if produced is None else produced,
    )


def _tokens(*reports: Raw) -> int | None:
    for raw in reports:
        if not _is_given(raw):
            continue
        try:
            number = _count(raw)
        except NOT_JSON:
            continue
        if 0 <= number <= _MAX_TOKENS:
            return number
    return None


def _is_given(raw: Raw) -> bool:
    return raw is not _NOTHING and bytes(raw) != b"null"


def _name_in(raw: Raw) -> bytes:
    literal = bytes(raw)
    return literal if literal.startswith(b'"') else b""


def _read_head(payload: bytes) -> _Head:
    try:
        return _head(payload)
    except NOT_JSON:
        raise not_an_answer() from None


def _read_typed(payload: bytes) -> _TypedEvent:
    try:
        return _typed(payload)
    except NOT_JSON:
        raise not_an_answer() from None


def not_an_answer() -> Fault:
    return Fault(Code.UPSTREAM_INVALID, "the upstream answered with something that is no answer")
