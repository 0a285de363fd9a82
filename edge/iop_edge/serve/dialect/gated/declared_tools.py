"""The tools that a caller declares, and the schemas of their arguments (GATE-7).

Not every tool has a schema here: a function may be declared without parameters, and providers have
tools of their own whose form only they know. The model may call those all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from iop_edge.runtime.work import Surface
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members

T = TypeVar("T")
_NOT_GIVEN = Raw()


class _Function(Struct):
    name: str
    parameters: Raw = _NOT_GIVEN


class _ChatTool(Struct):
    function: _Function
    type: str = "function"


class _ResponsesTool(Struct):
    type: Literal["function"]
    name: str
    parameters: Raw = _NOT_GIVEN


class _MessagesTool(Struct):
    name: str
    input_schema: Raw = _NOT_GIVEN
    type: str | None = None


def tool_schemas(members: Members, surface: Surface) -> Mapping[str, bytes]:
    """By a tool's name the literal of its schema; empty for a tool that has none that could be
    judged. Under the empty name, also empty, where tools are declared whose names are not known:
    what else is called may be one of them. What is malformed is the upstream's to refuse."""
    found: dict[str, bytes] = {}
    if "tools" not in members:
        return found
    for raw in _decoded(members["tools"], list[Raw]) or ():
        name, schema = _declared(raw, surface)
        literal = bytes(schema)
        found[name] = literal if literal.startswith((b"{", b"true", b"false")) else b""
    return found


def _declared(raw: Raw, surface: Surface) -> tuple[str, Raw]:
    if surface == "chat":
        chat = _decoded(raw, _ChatTool)
        if chat is not None and chat.type == "function":
            return chat.function.name, chat.function.parameters
    elif surface == "responses":
        response = _decoded(raw, _ResponsesTool)
        if response is not None:
            return response.name, response.parameters
    else:
        message = _decoded(raw, _MessagesTool)
        if message is not None:
            is_own = message.type in (None, "custom")
            return message.name, message.input_schema if is_own else _NOT_GIVEN
    return "", _NOT_GIVEN


def _decoded(raw: Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except NOT_JSON:
        return None
