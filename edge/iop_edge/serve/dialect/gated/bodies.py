"""What a whole answer says, in the three caller protocols: told in the order of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder

from iop_edge.gate.evidence import Said
from iop_edge.serve.dialect.gated.listeners import (
    CHAT_FINISHES,
    MESSAGE_FINISHES,
    RESPONSE_FINISHES,
    given_arguments,
)
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.observers import is_given

T = TypeVar("T")
_NOTHING = Raw()
_TOLD_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")


class _Function(Struct):
    name: str = ""
    arguments: str | None = None


class _Call(Struct):
    id: str | None = None
    function: _Function | None = None


class _ChatMessage(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: Raw = _NOTHING
    audio: Raw = _NOTHING


class _Choice(Struct):
    message: _ChatMessage | None = None
    finish_reason: str | None = None


class _Chat(Struct):
    choices: list[_Choice] | None = None


class _Part(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None

    @property
    def said(self) -> str:
        return self.text or self.refusal or ""


class _Item(Struct):
    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Details(Struct):
    reason: str | None = None


class _Response(Struct):
    output: list[Raw] | None = None
    status: str | None = None
    incomplete_details: _Details | None = None


class _Block(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = Raw(b"{}")


class _Message(Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None


_chat = Decoder(_Chat)
_response = Decoder(_Response)
_item = Decoder(_Item)
_message = Decoder(_Message)

BodySays = Callable[[bytes], tuple[Said, ...]]
"""What a body says; nothing where it is of a form that is not known. Never raises."""


def chat_says(body: bytes) -> tuple[Said, ...]:
    answer = _decoded(body, _chat)
    if answer is None or not answer.choices:
        return ()
    choice = answer.choices[0]
    message = choice.message or _ChatMessage()
    calls = [
        Said(
            "tool_call",
            (call.function.arguments or "") if call.function else "",
            index,
            call.id or "",
            call.function.name if call.function else "",
        )
        for index, call in enumerate(message.tool_calls or ())
    ]
    finish = CHAT_FINISHES.get(choice.finish_reason or "", "stop")
    reasoning = message.reasoning_content or message.reasoning or ""
    content = (message.content or "") + (message.refusal or "")
    has_other = (
        len(answer.choices) > 1 or is_given(message.function_call) or is_given(message.audio)
    )
    return _all_of(reasoning, content, calls, finish, has_other=has_other)


def response_says(body: bytes) -> tuple[Said, ...]:
    answer = _decoded(body, _response)
    if answer is None or answer.status not in ("completed", "incomplete"):
        return ()
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Said] = []
    has_other = False
    for index, raw in enumerate(answer.output or ()):
        item = _decoded(raw, _item) or _Item()
        parts = [part.said for part in item.content or ()]
        if item.type == "reasoning":
            reasoning += parts or [part.said for part in item.summary or ()]
        elif item.type == "message":
            content += parts
        elif item.type == "function_call":
            arguments, name = item.arguments or "", item.name or ""
            calls.append(Said("tool_call", arguments, index, item.call_id or "", name))
        else:
            has_other = True
    finish = "tool_calls" if calls else "stop"
    if answer.status == "incomplete":
        details = answer.incomplete_details or _Details()
        finish = RESPONSE_FINISHES.get(details.reason or "", "length")
    told = "".join(reasoning), "".join(content), calls, finish
    return _all_of(*told, has_other=has_other)


def message_says(body: bytes) -> tuple[Said, ...]:
    answer = _decoded(body, _message)
    if answer is None or answer.content is None:
        return ()
    blocks = answer.content
    calls = [
        Said(
            "tool_call",
            given_arguments(block.input) or "{}",
            index,
            block.id or "",
            block.name or "",
        )
        for index, block in enumerate(blocks)
        if block.type == "tool_use"
    ]
    return _all_of(
        "".join(block.thinking or "" for block in blocks if block.type == "thinking"),
        "".join(block.text or "" for block in blocks if block.type == "text"),
        calls,
        MESSAGE_FINISHES.get(answer.stop_reason or "", "stop"),
        has_other=any(block.type not in _TOLD_BLOCKS for block in blocks),
    )


def _all_of(
    reasoning: str, content: str, calls: list[Said], finish: str, *, has_other: bool
) -> tuple[Said, ...]:
    said = [Said("other", "")] if has_other else []
    if reasoning:
        said.append(Said("reasoning", reasoning))
    if content:
        said.append(Said("content", content))
    return (*said, *calls, Said("finish", finish))


def _decoded(body: bytes | Raw, decoder: Decoder[T]) -> T | None:
    try:
        return decoder.decode(body)
    except NOT_JSON:
        return None
