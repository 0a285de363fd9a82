"""The Responses API over a run: the request into it. The answer is `responses_answer`'s."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from iop.runtime_pb2 import ChatMessage, ContentPart, ResponseFormat, RunRequest, ToolCall
from iop_edge.serve.dialect.normalized import reading
from iop_edge.serve.dialect.normalized.reading import NOT_GIVEN, Function, decoded, unsupported
from iop_edge.serve.dialect.request import Members, whole_number
from iop_shared.errors import Code, Fault

_TOLD = frozenset(
    {
        "model", "input", "instructions", "stream", "max_output_tokens", "temperature", "top_p",
        "tools", "tool_choice", "text",
    }
)  # fmt: skip
_SAYS_NOTHING = frozenset(
    {
        "user", "metadata", "service_tier", "store", "include", "prompt_cache_key",
        "safety_identifier", "stream_options",
    }
)  # fmt: skip
_NEUTRAL: dict[str, Any] = {
    "parallel_tool_calls": True, "background": False, "truncation": "disabled", "top_logprobs": 0,
    "reasoning": {},
}  # fmt: skip
_KNOWN = _TOLD | _SAYS_NOTHING | frozenset(_NEUTRAL)

_ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}  # fmt: skip


class _Part(Struct):
    type: str
    text: str = ""
    image_url: str | None = None


class _Item(Struct):
    """A message, a function call, or the output of one."""

    type: str = "message"
    role: str = ""
    content: str | list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[_Part] | None = None


class _Tool(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: Raw = NOT_GIVEN
    strict: bool | None = None


class _Choice(Struct):
    type: str
    name: str = ""


class _Format(Struct):
    type: str
    schema: Raw = NOT_GIVEN
    name: str = ""


class _Text(Struct):
    format: _Format | None = None
    verbosity: str | None = None


def run_request(members: Members) -> RunRequest:
    """The run that a response asks for; adapter and target are for the dispatch to fill.

    Raises Fault(unsupported_field), or Fault(invalid_value) for an input that is none.
    """
    reading.require_known(members, _KNOWN)
    reading.require_neutral(members, _NEUTRAL)
    run = RunRequest()
    instructions = decoded(members, "instructions", str)
    if instructions is not None:
        part = reading.text_part(instructions)
        run.messages.append(ChatMessage(role="system", parts=[part]))
    given: Any = decoded(members, "input", str | list[_Item])  # type: ignore[arg-type]  # a union
    if isinstance(given, str):
        run.messages.append(ChatMessage(role="user", parts=[reading.text_part(given)]))
    for item in given if isinstance(given, list) else ():
        _add(run, item)
    if given is None or given == []:
        raise Fault(Code.INVALID_VALUE, "input must be a text or a list of items", param="input")
    reading.fill_sampling(members, run)
    limit = whole_number(members, "max_output_tokens")
    if limit is not None:
        run.options.max_tokens = limit
    for tool in decoded(members, "tools", list[_Tool]) or ():
        if tool.type != "function":
            raise unsupported("tools", f"a tool of type {tool.type[:40]!r} is not offered here")
        function = Function(tool.name, tool.description, tool.parameters, tool.strict)
        run.tools.append(reading.tool_definition(function))
    _fill_choice(members, run)
    text = decoded(members, "text", _Text)
    if text is not None and text.verbosity not in (None, "medium"):
        raise unsupported("text")
    if text is not None and text.format is not None:
        run.response_format.CopyFrom(_response_format(text.format))
    return run


def _add(run: RunRequest, item: _Item) -> None:
    if item.type == "function_call":
        # Calls that follow each other are one turn of the assistant.
        last = run.messages[-1] if run.messages else None
        if last is None or last.role != "assistant":
            last = run.messages.add(role="assistant")
        last.tool_calls.append(
            ToolCall(
                index=len(last.tool_calls),
                id=item.call_id,
                name=item.name,
                arguments_json=item.arguments or "{}",
            )
        )
    elif item.type == "function_call_output":
        run.messages.add(role="tool", tool_call_id=item.call_id, parts=_parts(item.output))
    elif item.type == "message":
        role = _ROLES.get(item.role)
        if role is None:
            raise unsupported("input", f"there is no role {item.role[:40]!r} here")
        run.messages.add(role=role, parts=_parts(item.content))
    elif item.type != "reasoning":  # a reasoning item is the upstream's own note to itself
        raise unsupported("input", f"an item of type {item.type[:40]!r} is not taken here")


def _parts(content: str | list[_Part] | None) -> list[ContentPart]:
    if content is None:
        return []
    if isinstance(content, str):
        return [reading.text_part(content)]
    return [_part(part) for part in content]


def _part(part: _Part) -> ContentPart:
    if part.type in ("input_text", "output_text", "text"):
        return reading.text_part(part.text)
    if part.type == "input_image" and part.image_url is not None:
        return reading.image_of_url(part.image_url, "input")
    raise unsupported("input", f"content of type {part.type[:40]!r} is not taken here")


def _fill_choice(members: Members, run: RunRequest) -> None:
    choice: Any = decoded(members, "tool_choice", str | _Choice)  # type: ignore[arg-type]  # a union
    if isinstance(choice, _Choice):
        if choice.type != "function":
            raise unsupported("tool_choice")
        run.tool_choice.CopyFrom(reading.tool_choice("named", choice.name))
    elif choice is not None:
        if choice not in ("auto", "none", "required"):
            raise unsupported("tool_choice")
        run.tool_choice.CopyFrom(reading.tool_choice(choice))


def _response_format(wanted: _Format) -> ResponseFormat:
    schema = reading.json_text(wanted.schema)
    if wanted.type == "json_schema" and schema:
        return ResponseFormat(kind="json_schema", schema_json=schema, name=wanted.name)
    if wanted.type not in ("text", "json_object"):
        raise unsupported("text")
    return ResponseFormat(kind=wanted.type)


_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None,
    "parallel_tool_calls": True,
}  # fmt: skip


def echoed(members: Members) -> dict[str, Any]:
    """What a response repeats of its request."""
    return {name: members.get(name, default) for name, default in _ECHOED.items()}
