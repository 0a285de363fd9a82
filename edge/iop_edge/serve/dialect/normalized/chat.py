"""Chat completions over a run: the request into it. The answer is `chat_answer`'s."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from iop.runtime_pb2 import ChatMessage, ContentPart, ResponseFormat, RunRequest, ToolCall
from iop_edge.serve.dialect.normalized import reading
from iop_edge.serve.dialect.normalized.reading import Function, decoded, unsupported
from iop_edge.serve.dialect.request import Members, whole_number

_TOLD = frozenset(
    {
        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "stop", "tools", "tool_choice", "response_format", *reading.SAMPLING,
    }
)  # fmt: skip
_SAYS_NOTHING = frozenset(
    {"user", "metadata", "service_tier", "store", "prompt_cache_key", "safety_identifier"}
)
_NEUTRAL: dict[str, Any] = {
    "n": 1, "logprobs": False, "parallel_tool_calls": True, "logit_bias": {}, "functions": [],
}  # fmt: skip
_KNOWN = _TOLD | _SAYS_NOTHING | frozenset(_NEUTRAL)


class _ImageUrl(Struct):
    url: str


class _Part(Struct):
    type: str
    text: str = ""
    image_url: _ImageUrl | None = None


class _CalledFunction(Struct):
    name: str
    arguments: str = "{}"


class _Call(Struct):
    id: str
    function: _CalledFunction
    type: str = "function"


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _Tool(Struct):
    type: str
    function: Function | None = None


class _Named(Struct):
    name: str


class _Choice(Struct):
    function: _Named
    type: str = "function"


class _Schema(Struct):
    schema: msgspec.Raw
    name: str = ""


class _Format(Struct):
    type: str
    json_schema: _Schema | None = None


class _StreamOptions(Struct):
    include_usage: bool = False


_ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool",
}  # fmt: skip


def run_request(members: Members) -> RunRequest:
    """The run that a chat completion asks for; adapter and target are for the dispatch to fill.

    Raises Fault(unsupported_field), or Fault(invalid_value) for messages that are none.
    """
    reading.require_known(members, _KNOWN)
    reading.require_neutral(members, _NEUTRAL)
    run = RunRequest()
    run.messages.extend(map(_message, decoded(members, "messages", list[_Message]) or ()))
    reading.fill_sampling(members, run)
    reading.fill_stop(members, "stop", run)
    limit = whole_number(members, "max_completion_tokens") or whole_number(members, "max_tokens")
    if limit is not None:
        run.options.max_tokens = limit
    for tool in decoded(members, "tools", list[_Tool]) or ():
        if tool.function is None:
            raise unsupported("tools", f"a tool of type {tool.type[:40]!r} is not offered here")
        run.tools.append(reading.tool_definition(tool.function))
    choice: Any = decoded(members, "tool_choice", str | _Choice)  # type: ignore[arg-type]  # a union
    if isinstance(choice, _Choice):
        run.tool_choice.CopyFrom(reading.tool_choice("named", choice.function.name))
    elif choice is not None:
        if choice not in ("auto", "none", "required"):
            raise unsupported("tool_choice")
        run.tool_choice.CopyFrom(reading.tool_choice(choice))
    wanted = decoded(members, "response_format", _Format)
    if wanted is not None:
        run.response_format.CopyFrom(_response_format(wanted))
    return run


def _message(message: _Message) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise unsupported("messages", f"there is no role {message.role[:40]!r} here")
    return ChatMessage(
        role=role,
        parts=_parts(message.content),
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        reasoning=message.reasoning_content or "",
        tool_calls=[
            ToolCall(
                index=index,
                id=call.id,
                name=call.function.name,
                arguments_json=call.function.arguments,
            )
            for index, call in enumerate(message.tool_calls or ())
        ],
    )


def _parts(content: str | list[_Part] | None) -> list[ContentPart]:
    if content is None:
        return []
    if isinstance(content, str):
        return [reading.text_part(content)]
    return [_part(part) for part in content]


def _part(part: _Part) -> ContentPart:
    if part.type == "text":
        return reading.text_part(part.text)
    if part.type == "image_url" and part.image_url is not None:
        return reading.image_of_url(part.image_url.url, "messages")
    raise unsupported("messages", f"content of type {part.type[:40]!r} is not taken here")


def _response_format(wanted: _Format) -> ResponseFormat:
    if wanted.type == "json_schema" and wanted.json_schema is not None:
        return ResponseFormat(
            kind="json_schema",
            schema_json=reading.json_text(wanted.json_schema.schema),
            name=wanted.json_schema.name,
        )
    if wanted.type not in ("text", "json_object"):
        raise unsupported("response_format")
    return ResponseFormat(kind=wanted.type)


def includes_usage(members: Members) -> bool:
    options = decoded(members, "stream_options", _StreamOptions)
    return options is not None and options.include_usage
