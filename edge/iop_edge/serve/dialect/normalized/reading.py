"""What the three renderings of a request have in common.

A renderer states which fields it turns into the run and which say nothing about the answer; any
other field is refused, so that no caller believes that it was heard.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from iop.runtime_pb2 import ContentPart, ImagePart, RunRequest, ToolChoice, ToolDefinition
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members
from iop_shared.errors import Code, Fault

T = TypeVar("T")

_PLACE = re.compile(r"at `\$([^`]*)`")
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)

SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
_WHOLE = ("top_k", "seed")


NOT_GIVEN = Raw()
"""What an optional field of raw JSON holds where the caller left it out."""


class Function(Struct):
    """A function as a tool: its schema stays the text that the caller wrote."""

    name: str
    description: str | None = None
    parameters: Raw = NOT_GIVEN
    strict: bool | None = None


def object_of(arguments: str) -> Raw:
    """The arguments of a finished call as the JSON object that they have to be.

    Raises Fault(upstream_invalid).
    """
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Raw])
    except NOT_JSON:
        raise Fault(
            Code.UPSTREAM_INVALID, "the model called a tool with arguments that are no JSON object"
        ) from None
    return Raw((arguments or "{}").encode())


def unsupported(name: str, why: str = "this model's provider cannot be told it") -> Fault:
    return Fault(Code.UNSUPPORTED_FIELD, f"{name}: {why}", param=name)


def require_known(members: Members, known: Collection[str]) -> None:
    """Raises Fault(unsupported_field) for the first field that is none of these."""
    for name in members:
        if name not in known:
            raise unsupported(name)


def require_neutral(members: Members, neutral: dict[str, Any]) -> None:
    """Raises Fault(unsupported_field) for a field with another value than the one that is usual."""
    for name, usual in neutral.items():
        raw = members.get(name)
        if raw is not None and msgspec.json.decode(raw) != usual:
            raise unsupported(name)


def decoded(members: Members, name: str, kind: type[T]) -> T | None:
    """One field as a value of `kind`; None where it is not given. Raises Fault(invalid_value)."""
    raw = members.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except NOT_JSON as error:
        # The decoder's own sentence may repeat a value; only the place is taken from it.
        place = _PLACE.search(str(error))
        where = f"{name}{place[1]}" if place else name
        raise Fault(
            Code.INVALID_VALUE, f"{where} is missing or of the wrong type", param=name
        ) from None


def fill_sampling(members: Members, run: RunRequest) -> None:
    """The sampling options that callers and runs call by the same names."""
    for name in SAMPLING:
        raw = members.get(name)
        if raw is not None:
            number = msgspec.json.decode(raw, type=int if name in _WHOLE else float)
            try:
                setattr(run.options, name, number)
            except ValueError:  # out of the field's range, such as a top_k of -1
                raise unsupported(name, "this model's provider takes no such value") from None


def fill_stop(members: Members, name: str, run: RunRequest) -> None:
    stop: Any = decoded(members, name, str | list[str])  # type: ignore[arg-type]  # a union is a type here
    if stop is not None:
        run.options.stop.extend([stop] if isinstance(stop, str) else stop)


def tool_definition(function: Function) -> ToolDefinition:
    return ToolDefinition(
        name=function.name,
        description=function.description or "",
        parameters_json=json_text(function.parameters),
        is_strict=bool(function.strict),
    )


def json_text(raw: Raw) -> str:
    """The text of raw JSON; empty where it is not given, or null."""
    text = bytes(raw).decode()
    return "" if text == "null" else text


def tool_choice(mode: str, name: str = "") -> ToolChoice:
    return ToolChoice(mode=mode, name=name)


def text_part(text: str) -> ContentPart:
    return ContentPart(text=text)


def image_part(media_type: str, encoded: str, param: str) -> ContentPart:
    """An image out of base64. Raises Fault(invalid_value)."""
    try:
        content = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise Fault(
            Code.INVALID_VALUE, f"{param} holds an image that is no base64", param=param
        ) from None
    return ContentPart(image=ImagePart(media_type=media_type, content=content))


def image_of_url(url: str, param: str) -> ContentPart:
    """An image that came as a data URL; nothing is fetched from anywhere."""
    match = _DATA_URL.match(url)
    if match is None:
        raise unsupported(param, "send an image as a data: URL in base64")
    return image_part(match[1].lower(), url[match.end() :], param)
