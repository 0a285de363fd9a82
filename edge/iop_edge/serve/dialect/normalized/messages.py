"""Anthropic's messages over a run."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from iop.runtime_pb2 import ChatMessage, ContentPart, RunEvent, RunRequest, ToolCall
from iop_edge.runtime.work import HeaderPairs, ReportedUsage
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_edge.serve.dialect.normalized import reading
from iop_edge.serve.dialect.normalized.reading import NOT_GIVEN, Function, decoded, unsupported
from iop_edge.serve.dialect.normalized.result import RunResult
from iop_edge.serve.dialect.request import Members, whole_number

_encode = msgspec.json.Encoder().encode

_KNOWN = frozenset(
    {
        "model", "messages", "system", "max_tokens", "stream", "temperature", "top_p", "top_k",
        "stop_sequences", "tools", "tool_choice", "thinking", "metadata", "service_tier",
    }
)  # fmt: skip
_STOP_REASONS = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use",
    "content_filter": "refusal",
}  # fmt: skip
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class _Source(Struct):
    type: str
    media_type: str = ""
    data: str = ""


class _Block(Struct):
    type: str
    text: str = ""
    thinking: str = ""
    source: _Source | None = None
    id: str = ""
    name: str = ""
    input: Raw = NOT_GIVEN
    tool_use_id: str = ""
    content: str | list[_Block] | None = None


class _Message(Struct):
    role: str
    content: str | list[_Block]


class _Tool(Struct):
    name: str
    input_schema: Raw = NOT_GIVEN
    description: str | None = None
    type: str = "custom"


class _Choice(Struct):
    type: str
    name: str = ""


class _Thinking(Struct):
    type: str
    budget_tokens: int | None = None


def run_request(members: Members) -> RunRequest:
    """The run that a message asks for; adapter and target are for the dispatch to fill.

    Raises Fault(unsupported_field), or Fault(invalid_value) for messages that are none.
    """
    reading.require_known(members, _KNOWN)
    run = RunRequest()
    system: Any = decoded(members, "system", str | list[_Block])  # type: ignore[arg-type]  # a union
    if system is not None:
        run.messages.append(ChatMessage(role="system", parts=_parts(system, "system")))
    for message in decoded(members, "messages", list[_Message]) or ():
        run.messages.extend(_messages(message))
    reading.fill_sampling(members, run)
    reading.fill_stop(members, "stop_sequences", run)
    limit = whole_number(members, "max_tokens")
    if limit is not None:
        run.options.max_tokens = limit
    for tool in decoded(members, "tools", list[_Tool]) or ():
        if tool.type != "custom":
            raise unsupported("tools", f"a tool of type {tool.type[:40]!r} is not offered here")
        function = Function(tool.name, tool.description, tool.input_schema)
        run.tools.append(reading.tool_definition(function))
    choice = decoded(members, "tool_choice", _Choice)
    if choice is not None:
        mode = "named" if choice.type == "tool" else _CHOICES.get(choice.type)
        if mode is None:
            raise unsupported("tool_choice")
        run.tool_choice.CopyFrom(reading.tool_choice(mode, choice.name))
    thinking = decoded(members, "thinking", _Thinking)
    if thinking is not None:
        if thinking.type == "disabled":
            run.options.thinking_token_budget = 0
        elif thinking.type == "enabled" and 0 < (thinking.budget_tokens or 0) < 2**31:
            run.options.thinking_token_budget = thinking.budget_tokens or 0
        else:
            raise unsupported("thinking")
    return run


def _messages(message: _Message) -> list[ChatMessage]:
    """One message; the results of tools that it holds are messages of their own, and come first."""
    if message.role not in ("user", "assistant"):
        raise unsupported("messages", f"there is no role {message.role[:40]!r} here")
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, parts=[reading.text_part(message.content)])]
    results: list[ChatMessage] = []
    own = ChatMessage(role=message.role)
    for block in message.content:
        if block.type == "tool_result":
            results.append(
                ChatMessage(
                    role="tool",
                    tool_call_id=block.tool_use_id,
                    parts=_parts(block.content or "", "messages"),
                )
            )
        elif block.type == "tool_use":
            arguments = reading.json_text(block.input) or "{}"
            own.tool_calls.append(
                ToolCall(
                    index=len(own.tool_calls),
                    id=block.id,
                    name=block.name,
                    arguments_json=arguments,
                )
            )
        elif block.type == "thinking":
            own.reasoning += block.thinking
        else:
            own.parts.append(_part(block, "messages"))
    has_own = own.parts or own.tool_calls or own.reasoning
    return [*results, own] if has_own or not results else results


def _parts(content: str | list[_Block], param: str) -> list[ContentPart]:
    if isinstance(content, str):
        return [reading.text_part(content)]
    return [_part(block, param) for block in content]


def _part(block: _Block, param: str) -> ContentPart:
    if block.type == "text":
        return reading.text_part(block.text)
    if block.type == "image" and block.source is not None:
        if block.source.type != "base64":
            raise unsupported(param, "send an image in base64")
        return reading.image_part(block.source.media_type, block.source.data, param)
    raise unsupported(param, f"content of type {block.type[:40]!r} is not taken here")


class MessageStream:
    """A run as the events of a message: blocks in the order in which they came."""

    headers: HeaderPairs = STREAM_HEADERS

    def __init__(self, *, model: str, run_id: str) -> None:
        self._result = RunResult(run_id)
        self._model = model
        self._run_id = run_id
        self._open: tuple[str, int] | None = None
        self._blocks = 0
        self._has_begun = False

    @property
    def usage(self) -> ReportedUsage:
        return self._result.usage

    def feed(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event")
        if kind == "text_delta":
            begin = self._block("text", 0, {"type": "text", "text": ""})
            return begin + self._delta({"type": "text_delta", "text": event.text_delta})
        if kind == "reasoning_delta":
            begin = self._block(
                "thinking", 0, {"type": "thinking", "thinking": "", "signature": ""}
            )
            delta = {"type": "thinking_delta", "thinking": event.reasoning_delta}
            return begin + self._delta(delta)
        if kind == "tool_call_delta":
            call, _ = self._result.call(event)
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            begin = self._block("tool_use", call.index, block)
            fragment = event.tool_call_delta.arguments_json
            if not fragment:
                return begin
            return begin + self._delta({"type": "input_json_delta", "partial_json": fragment})
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        result = self._result
        result.require_finish()
        reason = _STOP_REASONS.get(result.finish_reason, "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        return b"".join(
            (
                self._begin(),
                self._close_block(),
                _event("message_delta", {"delta": delta, "usage": _usage(result)}),
                _event("message_stop", {}),
            )
        )

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = _message(
            self._model, self._run_id, [], None, {"input_tokens": 0, "output_tokens": 0}
        )
        return _event("message_start", {"message": message})

    def _block(self, kind: str, index: int, block: dict[str, Any]) -> bytes:
        """Begin a block, unless the one that is open is the same."""
        begin = self._begin()
        if self._open == (kind, index):
            return begin
        closed = self._close_block()
        self._open = (kind, index)
        started = {"index": self._blocks, "content_block": block}
        return begin + closed + _event("content_block_start", started)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._blocks += 1
        return _event("content_block_stop", {"index": self._blocks - 1})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks, "delta": delta})


class MessageWhole:
    """A run as one message."""

    headers: HeaderPairs = JSON_HEADERS

    def __init__(self, *, model: str, run_id: str) -> None:
        self._result = RunResult(run_id)
        self._model = model
        self._run_id = run_id

    @property
    def usage(self) -> ReportedUsage:
        return self._result.usage

    def feed(self, event: RunEvent) -> bytes:
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        result = self._result
        result.require_finish()
        content: list[dict[str, Any]] = []
        if result.reasoning:
            content.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
        if result.text:
            content.append({"type": "text", "text": result.text})
        content += (
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": reading.object_of(call.arguments),
            }
            for call in result.calls.values()
        )
        reason = _STOP_REASONS.get(result.finish_reason, "end_turn")
        return _encode(_message(self._model, self._run_id, content, reason, _usage(result)))


def _message(
    model: str,
    run_id: str,
    content: list[dict[str, Any]],
    reason: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": f"msg_{run_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(result: RunResult) -> dict[str, Any]:
    tokens = result.tokens
    return {
        "input_tokens": tokens.input_tokens if tokens else 0,
        "output_tokens": tokens.output_tokens if tokens else 0,
    }


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
