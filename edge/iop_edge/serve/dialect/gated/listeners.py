"""What each event of a relayed stream says, in the three caller protocols.

A listener stands where the observer of a stream stands, and has one of its own for everything that
the gate does not weigh: usage, the terminal marker, events of unusual forms. The pieces of text
that a stream mostly consists of are decoded once, here.

It is longer than a room should be: three protocols side by side, which share how what was said is
kept and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw, Struct

from iop_edge.gate.evidence import Said
from iop_edge.runtime.work import ReportedUsage
from iop_edge.serve.dialect.chat_chunk import plain_chunk
from iop_edge.serve.dialect.generated import GeneratedText
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.observers import (
    AnswerObserver,
    ChatObserver,
    MessagesObserver,
    ResponsesObserver,
    is_given,
    name_in,
)
from iop_shared.call_numbers import CallNumbers

_NOTHING = Raw()
_MOST_UNCOUNTED = 64
_OTHER = Said("other", "")
_COUNTED = frozenset(("content", "reasoning", "tool_call"))

CHAT_FINISHES: Mapping[str, str] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}  # fmt: skip
MESSAGE_FINISHES: Mapping[str, str] = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "refusal": "content_filter", "model_context_window_exceeded": "length",
}  # fmt: skip
RESPONSE_FINISHES: Mapping[str, str] = {
    "max_output_tokens": "length", "content_filter": "content_filter",
}  # fmt: skip


class Listener(ABC):
    """An observer of a stream, in front of the protocol's own one, that tells what was said."""

    __slots__ = ("_begins", "_counted", "_observe", "_observer", "_said", "_uncounted")

    def __init__(self, observer: AnswerObserver, observe: Callable[[bytes], bytes]) -> None:
        """`observe` is what the observer makes of the events that are left to it."""
        self._observer = observer
        self._observe = observe
        self._said: list[Said] = []
        self._begins: list[int] = []
        self._counted = 0  # How many of these the protocol's own observer has counted.
        self._uncounted: list[Said] = []

    @property
    def model_path(self) -> tuple[str, ...]:
        return self._observer.model_path

    @property
    def usage(self) -> ReportedUsage:
        return self._observer.usage

    @property
    def generated(self) -> GeneratedText:
        self._count()
        return self._observer.generated

    @property
    def is_ended(self) -> bool:
        return self._observer.is_ended

    @property
    def has_failed(self) -> bool:
        return self._observer.has_failed

    def whole(self, body: bytes) -> bytes:
        return self._observer.whole(body)

    def heard(self) -> tuple[tuple[Said, ...], list[int]]:
        """What the events since the last time said, and where in it each of them begins."""
        heard, begins = tuple(self._said), self._begins
        self._uncounted += heard[self._counted :]
        self._said.clear()
        self._begins = []
        self._counted = 0
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count()
        return heard, begins

    def _observed(self, payload: bytes) -> bytes:
        """What the protocol's own observer makes of an event, which counts it, too."""
        self._count()
        return self._observe(payload)

    def _unusual(self, payload: bytes) -> bytes:
        """The same of an event of a form that is not known, which may say anything."""
        name = self._observed(payload)
        if not payload.startswith(b"["):
            self._said.append(_OTHER)
        return name

    def _count(self) -> None:
        """Texts are counted together, in their order."""
        self._uncounted += self._said[self._counted :]
        self._counted = len(self._said)
        if self._uncounted:
            texts = [one.name + one.text for one in self._uncounted if one.kind in _COUNTED]
            self._observer.generated.add("".join(texts))
            self._uncounted.clear()

    @abstractmethod
    def event(self, payload: bytes) -> bytes:
        """As the observer's; what the event says is kept until it is asked for."""


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: Raw = _NOTHING
    audio: Raw = _NOTHING


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None
    index: int = 0


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None


class _AnyChunk(Struct, gc=False):
    choices: list[Raw] | None = None


class _Item(Struct, gc=False):
    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Details(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    incomplete_details: _Details | None = None


class _ResponsesEvent(Struct, gc=False):
    type: str = ""
    delta: str | None = None
    arguments: str | None = None
    output_index: int = 0
    item: _Item | None = None
    response: _Response | None = None


class _BlockDelta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Block(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = _NOTHING


class _MessagesEvent(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _BlockDelta | None = None
    content_block: _Block | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_any_chunk = msgspec.json.Decoder(_AnyChunk).decode
_responses_event = msgspec.json.Decoder(_ResponsesEvent).decode
_messages_event = msgspec.json.Decoder(_MessagesEvent).decode


class ChatListener(Listener):
    """Chunks of a chat completion. Only the first choice speaks. A refusal is content, too."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        observer = ChatObserver()
        # What is a plain chunk is heard here, so no other one is tried as such again.
        super().__init__(observer, observer.other_event)
        self._numbers = CallNumbers()

    def event(self, payload: bytes) -> bytes:
        said = self._said
        self._begins.append(len(said))
        try:
            chunk = plain_chunk(payload)
        except NOT_JSON:
            return self._other_event(payload)
        choice = chunk.choices[0]
        delta = choice.delta
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning:
            said.append(Said("reasoning", reasoning))
        if delta.content:
            said.append(Said("content", delta.content))
        if choice.finish_reason:
            said.append(Said("finish", CHAT_FINISHES.get(choice.finish_reason, "stop")))
        return name_in(chunk.model)

    def _other_event(self, payload: bytes) -> bytes:
        name = self._observed(payload)
        try:
            choices = _chunk(payload).choices
        except NOT_JSON:
            if not payload.startswith(b"["):
                self._hear_unusual(payload)
        else:
            for choice in choices or ():
                self._hear(choice)
        self._counted = len(self._said)
        return name

    def _hear(self, choice: _Choice) -> None:
        delta, said = choice.delta, self._said
        if choice.index:
            said.append(_OTHER)
            return
        if delta is not None:
            reasoning = delta.reasoning_content or delta.reasoning
            if reasoning:
                said.append(Said("reasoning", reasoning))
            if delta.content:
                said.append(Said("content", delta.content))
            if delta.refusal:
                said.append(Said("content", delta.refusal))
            if is_given(delta.function_call) or is_given(delta.audio):
                said.append(_OTHER)
            for call in delta.tool_calls or ():
                self._hear_call(call)
        if choice.finish_reason:
            said.append(Said("finish", CHAT_FINISHES.get(choice.finish_reason, "stop")))

    def _hear_unusual(self, payload: bytes) -> None:
        """A chunk of a form that is not known may say anything."""
        try:
            choices = _any_chunk(payload).choices
        except NOT_JSON:
            return
        if choices:
            self._said.append(_OTHER)

    def _hear_call(self, call: _ToolCall) -> None:
        function = call.function or _Function()
        name, arguments = function.name or "", function.arguments or ""
        number = self._numbers.of(call.index, call.id or "", name)
        self._said.append(Said("tool_call", arguments, number, call.id or "", name))


class ResponsesListener(Listener):
    """Events of a response. A call has the index of its output item. A refusal is content, too."""

    __slots__ = ("_calls",)
    _KINDS: Mapping[str, str] = {
        "response.output_text.delta": "content",
        "response.refusal.delta": "content",
        "response.reasoning_text.delta": "reasoning",
        "response.reasoning_summary_text.delta": "reasoning",
        "response.function_call_arguments.delta": "tool_call",
    }
    _SPOKEN_ITEMS = ("message", "reasoning")

    def __init__(self) -> None:
        observer = ResponsesObserver()
        super().__init__(observer, observer.event)
        self._calls: dict[int, bool] = {}

    def event(self, payload: bytes) -> bytes:
        self._begins.append(len(self._said))
        try:
            event = _responses_event(payload)
        except NOT_JSON:
            return self._unusual(payload)
        kind = self._KINDS.get(event.type)
        if kind is not None and event.delta is not None:
            if kind == "content":
                self._said.append(Said("content", event.delta))
            elif kind == "reasoning":
                self._said.append(Said("reasoning", event.delta))
            else:
                self._calls[event.output_index] = self._has_arguments(event)
                self._said.append(Said("tool_call", event.delta, event.output_index))
            return b""
        name = self._observed(payload)
        self._hear(event)
        self._counted = len(self._said)
        return name

    def _has_arguments(self, event: _ResponsesEvent) -> bool:
        """Whether the call of this event has been told arguments, this one's included."""
        return bool(event.delta) or self._calls.get(event.output_index, False)

    def _hear(self, event: _ResponsesEvent) -> None:
        item, index = event.item, event.output_index
        if event.type == "response.output_item.added":
            if item is not None and item.type == "function_call":
                self._calls[index] = False
                self._said.append(Said("tool_call", "", index, item.call_id or "", item.name or ""))
            elif item is None or item.type not in self._SPOKEN_ITEMS:
                self._said.append(_OTHER)
        elif event.type == "response.function_call_arguments.done":
            if event.arguments and not self._calls.get(index):
                self._calls[index] = True
                self._said.append(Said("tool_call", event.arguments, index))
        elif event.type == "response.output_item.done":
            # Not every server tells the arguments in fragments before it tells them whole.
            if item is not None and item.type == "function_call" and not self._calls.get(index):
                self._calls[index] = True
                self._said.append(
                    Said(
                        "tool_call",
                        item.arguments or "",
                        index,
                        item.call_id or "",
                        item.name or "",
                    )
                )
        elif event.type == "response.completed":
            self._said.append(Said("finish", "tool_calls" if self._calls else "stop"))
        elif event.type == "response.incomplete":
            details = event.response.incomplete_details if event.response else None
            reason = (details.reason if details else None) or ""
            self._said.append(Said("finish", RESPONSE_FINISHES.get(reason, "length")))


class MessagesListener(Listener):
    """Events of a message. A call has the index of its block."""

    __slots__ = ("_calls",)
    _SPOKEN_BLOCKS = ("text", "thinking", "redacted_thinking")

    def __init__(self) -> None:
        observer = MessagesObserver()
        super().__init__(observer, observer.event)
        self._calls: set[int] = set()

    def event(self, payload: bytes) -> bytes:
        self._begins.append(len(self._said))
        try:
            event = _messages_event(payload)
        except NOT_JSON:
            return self._unusual(payload)
        delta = event.delta
        if event.type == "content_block_delta" and delta is not None:
            if delta.text:
                self._said.append(Said("content", delta.text))
            elif delta.thinking:
                self._said.append(Said("reasoning", delta.thinking))
            elif delta.partial_json:
                if event.index not in self._calls:
                    return self._observed(payload)
                self._said.append(Said("tool_call", delta.partial_json, event.index))
            return b""
        name = self._observed(payload)
        if event.type == "content_block_start" and event.content_block is not None:
            self._hear_block(event.content_block, event.index)
        elif event.type == "message_delta" and delta is not None and delta.stop_reason:
            self._said.append(Said("finish", MESSAGE_FINISHES.get(delta.stop_reason, "stop")))
        self._counted = len(self._said)
        return name

    def _hear_block(self, block: _Block, index: int) -> None:
        if block.type == "tool_use":
            self._calls.add(index)
            # An empty object stands for what the fragments will tell.
            arguments = given_arguments(block.input)
            self._said.append(Said("tool_call", arguments, index, block.id or "", block.name or ""))
        elif block.type == "text" and block.text:
            self._said.append(Said("content", block.text))
        elif block.type == "thinking" and block.thinking:
            self._said.append(Said("reasoning", block.thinking))
        elif block.type not in self._SPOKEN_BLOCKS:
            self._said.append(_OTHER)


def given_arguments(raw: Raw) -> str:
    """The arguments of a call as they were given with its name; empty where there are none."""
    given = bytes(raw)
    is_empty = given.translate(None, b" \t\r\n") in (b"", b"null", b"{}")
    return "" if is_empty else given.decode("utf-8", "replace")
