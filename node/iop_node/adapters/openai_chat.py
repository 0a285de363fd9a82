"""A run in IOP's own terms as an OpenAI chat completion, there and back. Pure.

`chat_request` renders, `ChatReader` reads: whole answers and streamed ones give the same events.
Fields that OpenAI's API does not define but its common implementations take (`top_k`) are sent;
a thinking budget has no field there and bounds nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from iop.runtime_pb2 import ChatMessage, ContentPart, RunRequest
from iop_node.adapters.base import Finish as FinishEvent
from iop_node.adapters.base import (
    FinishReason,
    ReasoningDelta,
    RunEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from iop_shared.call_numbers import CallNumbers
from iop_shared.errors import Code, Fault

_OPTIONS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_BROKEN_OFF = frozenset({"error", "abort"})


def chat_request(request: RunRequest) -> bytes:
    """The body of the completion. Raises Fault(invalid_value) for JSON inside it that is none."""
    body: dict[str, Any] = {
        "model": request.target,
        "messages": [_message(message) for message in request.messages],
        "stream": request.is_stream,
    }
    if request.is_stream:
        body["stream_options"] = {"include_usage": True}
    options = request.options
    for name in _OPTIONS:
        if options.HasField(name):  # type: ignore[arg-type]  # the names are those of the fields
            body[name] = getattr(options, name)
    if options.stop:
        body["stop"] = list(options.stop)
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description else {}),
                    "parameters": raw_json(tool.parameters_json or "{}", "tools"),
                    **({"strict": True} if tool.is_strict else {}),
                },
            }
            for tool in request.tools
        ]
        choice = request.tool_choice
        if choice.mode == "named":
            body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif choice.mode:
            body["tool_choice"] = choice.mode
    wanted = request.response_format
    if wanted.kind == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif wanted.kind == "json_schema":
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {
                "name": wanted.name or "answer",
                "schema": raw_json(wanted.schema_json, "response_format"),
                "strict": True,
            },
        }
    return msgspec.json.encode(body)


def raw_json(text: str, param: str) -> msgspec.Raw:
    """JSON that the caller wrote, put into a request as it is."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise Fault(Code.INVALID_VALUE, f"{param} holds what is no JSON", param=param) from None
    return msgspec.Raw(text.encode())


def _message(message: ChatMessage) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.name:
        rendered["name"] = message.name
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json or "{}"},
            }
            for call in message.tool_calls
        ]
    return rendered


def _content(message: ChatMessage) -> str | list[dict[str, Any]] | None:
    if all(part.WhichOneof("part") == "text" for part in message.parts):
        text = "".join(part.text for part in message.parts)
        return None if message.tool_calls and not text else text
    return [_part(part) for part in message.parts]


def _part(part: ContentPart) -> dict[str, Any]:
    if part.WhichOneof("part") == "text":
        return {"type": "text", "text": part.text}
    content = base64.b64encode(part.image.content).decode()
    url = f"data:{part.image.media_type or 'image/png'};base64,{content}"
    return {"type": "image_url", "image_url": {"url": url}}


# --- the answer ----------------------------------------------------------------------------------


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = field(default_factory=_Function)


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _InputDetails(Struct):
    cached_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Answer(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


class ChatReader:
    """Reads one answer: a whole body once, or the data of its events one by one."""

    def __init__(self) -> None:
        self._has_tool_calls = False
        self._numbers = CallNumbers()
        self._finish: FinishReason | None = None
        self.is_done = False
        """The stream's own terminal marker was seen."""

    def read(self, payload: bytes) -> Iterator[RunEvent]:
        """The events in one piece. Raises Fault(upstream_invalid), or upstream_closed where the
        upstream says that it broke off."""
        if payload.strip() == b"[DONE]":
            self.is_done = True
            return
        try:
            answer = _decode_answer(payload)
        except msgspec.MsgspecError:
            raise Fault(
                Code.UPSTREAM_INVALID, "the upstream sent what is no chat completion"
            ) from None
        if answer.error is not None:
            raise Fault(
                Code.UPSTREAM_INVALID, "the upstream reported an error in the middle of its answer"
            )
        for choice in answer.choices:
            if choice.index == 0:
                yield from self._choice(choice)
        if answer.usage is not None:
            yield _usage(answer.usage)

    def end(self) -> FinishEvent:
        """The answer is over. Raises Fault(upstream_closed) where nothing said so (OAI-7)."""
        if self._finish is not None:
            return FinishEvent(self._finish)
        if self.is_done:
            return FinishEvent("tool_calls" if self._has_tool_calls else "stop")
        raise Fault(Code.UPSTREAM_CLOSED, "the upstream's answer stopped without an end")

    def _choice(self, choice: _Choice) -> Iterator[RunEvent]:
        message = choice.delta or choice.message
        if message is not None:
            if reasoning := message.reasoning_content or message.reasoning:
                yield ReasoningDelta(reasoning)
            if message.content:
                yield TextDelta(message.content)
            is_whole = choice.delta is None
            for place, call in enumerate(message.tool_calls or ()):
                self._has_tool_calls = True
                yield ToolCallDelta(
                    index=place if is_whole else self._number_of(call),
                    id=call.id or "",
                    name=call.function.name or "",
                    arguments_json=call.function.arguments or "",
                )
        if choice.finish_reason:
            if choice.finish_reason in _BROKEN_OFF:
                raise Fault(Code.UPSTREAM_CLOSED, "the upstream broke its answer off")
            # A reason that we do not know is an end nevertheless.
            self._finish = _FINISH_REASONS.get(choice.finish_reason, "stop")

    def _number_of(self, call: _ToolCall) -> int:
        return self._numbers.of(call.index, call.id or "", call.function.name or "")


def _usage(usage: _Usage) -> Usage:
    into, out = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_input_tokens=None if into is None else into.cached_tokens,
        reasoning_tokens=None if out is None else out.reasoning_tokens,
    )
