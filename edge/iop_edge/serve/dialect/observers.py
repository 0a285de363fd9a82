"""What the answers of the three caller protocols mean: model, usage, and the end of a stream.

One observer per answer. It looks at an event or at a whole body, keeps the usage that was
reported last, counts what was generated, and knows the protocol's terminal marker. Reported usage
is taken as it is: a zero is a zero, and what is no number is no report.

It is longer than a room should be: three protocols side by side, which share how usage, names and
odd bodies are read.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Raw, Struct

from iop_edge.runtime.work import ReportedUsage
from iop_edge.serve.dialect.chat_chunk import plain_chunk
from iop_edge.serve.dialect.generated import GeneratedText
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_shared.errors import Code, Fault

_MAX_TOKENS = 2**53
_Count = Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
_NOTHING = Raw()


class AnswerObserver(Protocol):
    """An observer of events that also reads whole bodies."""

    @property
    def model_path(self) -> tuple[str, ...]: ...
    @property
    def usage(self) -> ReportedUsage: ...
    @property
    def generated(self) -> GeneratedText: ...
    @property
    def is_ended(self) -> bool: ...
    @property
    def has_failed(self) -> bool:
        """The stream ended with an error that the upstream told."""
        ...

    def event(self, payload: bytes) -> bytes: ...

    def whole(self, body: bytes) -> bytes:
        """Look at a body; return the literal of its top-level model name, or nothing.

        Raises Fault(upstream_invalid) on a body that is no JSON object, or lacks what every answer
        of the protocol has.
        """
        ...


class _Head(Struct, gc=False):
    """What matters of an OpenAI chunk, and of what holds a model's name."""

    model: Raw = _NOTHING
    usage: Raw = _NOTHING
    error: Raw = _NOTHING


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct, gc=False):
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None


class _Chunk(_Head, gc=False):
    """The same with what was generated, in the form in which nearly all servers send it."""

    choices: list[_Choice] | None = None


class _Counts(Struct, gc=False):
    """A report in the form in which nearly all servers send it."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class _Body(_Head, gc=False):
    """A whole answer: of whichever protocol, it has one of these."""

    choices: Raw = _NOTHING
    output: Raw = _NOTHING
    content: Raw = _NOTHING
    input_tokens: Raw = _NOTHING


class _Usage(Struct, gc=False):
    """The same in any form: a part that is no number is no report, and the others are."""

    prompt_tokens: Raw = _NOTHING
    completion_tokens: Raw = _NOTHING
    input_tokens: Raw = _NOTHING
    output_tokens: Raw = _NOTHING


class _ResponsesEvent(Struct, gc=False):
    type: str = ""
    response: Raw = _NOTHING
    delta: Raw = _NOTHING


class _MessagesEvent(Struct, gc=False):
    type: str = ""
    message: Raw = _NOTHING
    usage: Raw = _NOTHING
    content_block: Raw = _NOTHING


class _BlockDelta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _MessagesDelta(_MessagesEvent, gc=False):
    delta: _BlockDelta | None = None


_head = msgspec.json.Decoder(_Head).decode
_body = msgspec.json.Decoder(_Body).decode
_chunk = msgspec.json.Decoder(_Chunk).decode
_responses_event = msgspec.json.Decoder(_ResponsesEvent).decode
_messages_event = msgspec.json.Decoder(_MessagesEvent).decode
_messages_delta = msgspec.json.Decoder(_MessagesDelta).decode
_counts = msgspec.json.Decoder(_Counts).decode
_usage = msgspec.json.Decoder(_Usage).decode
_count = msgspec.json.Decoder(_Count).decode
_text = msgspec.json.Decoder(str).decode
_any = msgspec.json.Decoder().decode


class ChatObserver:
    """Chat completions. A stream ends with `data: [DONE]`, or with an error event."""

    __slots__ = ("generated", "has_failed", "is_ended", "usage")
    model_path = ("model",)

    def __init__(self) -> None:
        self.usage = ReportedUsage()
        self.generated = GeneratedText()
        self.is_ended = self.has_failed = False

    def event(self, payload: bytes) -> bytes:
        try:
            chunk = plain_chunk(payload)
        except NOT_JSON:
            return self.other_event(payload)
        delta = chunk.choices[0].delta
        if delta.reasoning_content or delta.reasoning:
            # Some servers send the same text under both names.
            self.generated.add(delta.reasoning_content or delta.reasoning or "")
        if delta.content:
            self.generated.add(delta.content)
        return name_in(chunk.model)

    def other_event(self, payload: bytes) -> bytes:
        """`event` for what is no plain chunk."""
        if payload.startswith(b"[") and payload.strip() == b"[DONE]":
            self.is_ended = True
            return b""
        try:
            head = _chunk(payload)
        except msgspec.ValidationError:
            return self._unusual_event(payload)
        except NOT_JSON:
            raise not_an_answer() from None
        for choice in head.choices or ():
            if choice.delta is not None:
                self._add(choice.delta)
        return self._seen(head)

    def whole(self, body: bytes) -> bytes:
        head = _read_body(body, "choices")
        self.usage = with_usage(self.usage, head.usage)
        if self.usage.output_tokens is None:
            self.generated.add_body(body)
        return name_in(head.model)

    def _seen(self, head: _Head) -> bytes:
        if head.usage is not _NOTHING:
            self.usage = with_usage(self.usage, head.usage)
        if head.error is not _NOTHING and is_given(head.error):
            self.is_ended = self.has_failed = True
        return name_in(head.model)

    def _add(self, delta: _Delta) -> None:
        add = self.generated.add
        if delta.reasoning_content or delta.reasoning:
            add(delta.reasoning_content or delta.reasoning or "")
        if delta.content:
            add(delta.content)
        if delta.refusal:
            add(delta.refusal)
        for call in delta.tool_calls or ():
            if call.function is not None:
                add(call.function.name or "")
                add(call.function.arguments or "")

    def _unusual_event(self, payload: bytes) -> bytes:
        head = _read_head(payload)
        self.generated.add_value(_read_any(payload).get("choices"))
        return self._seen(head)


class ResponsesObserver:
    """Responses. A stream ends with its completed, incomplete or failed response, or an error."""

    __slots__ = ("generated", "has_failed", "is_ended", "usage")
    model_path = ("response", "model")
    _TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
    _FAILED = frozenset({"response.failed", "error"})
    _SPOKEN = frozenset(
        {
            "response.output_text.delta",
            "response.refusal.delta",
            "response.reasoning_text.delta",
            "response.reasoning_summary_text.delta",
            "response.function_call_arguments.delta",
            "response.mcp_call_arguments.delta",
            "response.custom_tool_call_input.delta",
            "response.code_interpreter_call_code.delta",
        }
    )

    def __init__(self) -> None:
        self.usage = ReportedUsage()
        self.generated = GeneratedText()
        self.is_ended = self.has_failed = False

    def event(self, payload: bytes) -> bytes:
        if payload.startswith(b"[") and payload.strip() == b"[DONE]":
            return b""
        try:
            event = _responses_event(payload)
        except NOT_JSON:
            raise not_an_answer() from None
        if event.type in self._SPOKEN:
            self.generated.add(_text_in(event.delta))
            return b""
        if event.type in self._TERMINAL:
            self.is_ended = True
            self.has_failed = event.type in self._FAILED
        if not is_given(event.response):
            return b""
        head = _read_head(bytes(event.response))
        self.usage = with_usage(self.usage, head.usage)
        return name_in(head.model)

    def whole(self, body: bytes) -> bytes:
        head = _read_body(body, "output")
        self.usage = with_usage(self.usage, head.usage)
        if self.usage.output_tokens is None:
            self.generated.add_body(body)
        return name_in(head.model)


class MessagesObserver:
    """Anthropic's messages. A stream ends with `message_stop`, or with an error event.

    `message_start` reports the input, each `message_delta` the output so far. The output that
    `message_start` names is a beginning, and counts only where the stream ends without another.
    """

    __slots__ = ("_first_usage", "_last_usage", "generated", "has_failed", "is_ended")
    model_path = ("message", "model")

    def __init__(self) -> None:
        self._first_usage = self._last_usage = ReportedUsage()
        self.generated = GeneratedText()
        self.is_ended = self.has_failed = False

    @property
    def usage(self) -> ReportedUsage:
        first, last = self._first_usage, self._last_usage
        produced = last.output_tokens
        if produced is None and self.is_ended:
            produced = first.output_tokens
        counted = first.input_tokens if last.input_tokens is None else last.input_tokens
        return ReportedUsage(input_tokens=counted, output_tokens=produced)

    def event(self, payload: bytes) -> bytes:
        try:
            event: _MessagesEvent = _messages_delta(payload)
        except msgspec.ValidationError:
            event = self._unusual_event(payload)
        except NOT_JSON:
            raise not_an_answer() from None
        if event.type == "content_block_delta":
            if isinstance(event, _MessagesDelta) and event.delta is not None:
                delta = event.delta
                self.generated.add(delta.text or delta.thinking or delta.partial_json or "")
            return b""
        if event.type in ("message_stop", "error"):
            self.is_ended = True
            self.has_failed = event.type == "error"
        elif event.type == "content_block_start" and is_given(event.content_block):
            self._add_block(_read_any(event.content_block))
        self._last_usage = with_usage(self._last_usage, event.usage)
        if not is_given(event.message):
            return b""
        head = _read_head(bytes(event.message))
        self._first_usage = with_usage(self._first_usage, head.usage)
        return name_in(head.model)

    def whole(self, body: bytes) -> bytes:
        head = _read_body(body, "content", "input_tokens")
        self._last_usage = with_usage(self._last_usage, head.usage)
        if self.usage.output_tokens is None:
            self.generated.add_body(body)
        return name_in(head.model)

    def _unusual_event(self, payload: bytes) -> _MessagesEvent:
        try:
            event = _messages_event(payload)
        except NOT_JSON:
            raise not_an_answer() from None
        self.generated.add_value(_read_any(payload).get("delta"))
        return event

    def _add_block(self, block: Any) -> None:
        # Its `input` is an empty object that the deltas fill.
        if isinstance(block, dict):
            block.pop("input", None)
            self.generated.add_value(block)


def with_usage(known: ReportedUsage, raw: Raw) -> ReportedUsage:
    """What is known after one more report, which stands over earlier ones and adds nothing up."""
    if not is_given(raw):
        return known
    counted, produced = _reported(raw)
    return ReportedUsage(
        input_tokens=known.input_tokens if counted is None else counted,
        output_tokens=known.output_tokens if produced is None else produced,
    )


def _reported(raw: Raw) -> tuple[int | None, int | None]:
    """Tokens of input and of output."""
    try:
        counts = _counts(raw)
    except NOT_JSON:
        return _reported_in_parts(raw)
    counted, produced = counts.input_tokens, counts.output_tokens
    return (
        counts.prompt_tokens if counted is None else counted,
        counts.completion_tokens if produced is None else produced,
    )


def _reported_in_parts(raw: Raw) -> tuple[int | None, int | None]:
    try:
        found = _usage(raw)
    except NOT_JSON:
        return None, None
    return (
        _tokens(found.input_tokens, found.prompt_tokens),
        _tokens(found.output_tokens, found.completion_tokens),
    )


def _tokens(*reports: Raw) -> int | None:
    for raw in reports:
        try:
            return _count(raw)
        except NOT_JSON:
            continue
    return None


def is_given(raw: Raw) -> bool:
    """Whether a member stands there, and is not null."""
    return bytes(raw) not in (b"", b"null")


def _text_in(raw: Raw) -> str:
    try:
        return _text(raw)
    except NOT_JSON:
        return ""


def name_in(raw: Raw) -> bytes:
    """The literal of a model's name; nothing where there is none."""
    literal = bytes(raw)
    return literal if literal.startswith(b'"') else b""


def _read_body(body: bytes, *answers: str) -> _Body:
    """Raises Fault(upstream_invalid) where it has none of the members that answers have."""
    try:
        found = _body(body)
    except NOT_JSON:
        raise not_an_answer() from None
    if not any(is_given(getattr(found, name)) for name in answers):
        raise not_an_answer()
    return found


def _read_head(payload: bytes) -> _Head:
    try:
        return _head(payload)
    except NOT_JSON:
        raise not_an_answer() from None


def _read_any(payload: bytes | Raw) -> Any:
    """All of a value; what is passed over elsewhere is looked at here, down to its characters."""
    try:
        return _any(payload)
    except NOT_JSON:
        raise not_an_answer() from None


def not_an_answer() -> Fault:
    return Fault(Code.UPSTREAM_INVALID, "the upstream answered with something that is no answer")
