"""Anthropic's messages over a run: the request into it. The answer is `messages_answer`'s."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from iop.runtime_pb2 import ChatMessage, ContentPart, RunRequest, ToolCall
from iop_edge.serve.dialect.normalized import reading
from iop_edge.serve.dialect.normalized.reading import NOT_GIVEN, Function, decoded, unsupported
from iop_edge.serve.dialect.request import Members, whole_number

_KNOWN = frozenset(
    {
        "model", "messages", "system", "max_tokens", "stream", "temperature", "top_p", "top_k",
        "stop_sequences", "tools", "tool_choice", "thinking", "metadata", "service_tier",
    }
)  # fmt: skip
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
    disable_parallel_tool_use: bool = False


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
        if mode is None or choice.disable_parallel_tool_use:
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
