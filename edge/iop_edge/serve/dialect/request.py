"""A caller's request body: taken apart at its top level, checked where it matters, put together.

Values are never rewritten: what is not looked at goes to the upstream byte for byte, including
fields that only that upstream knows. What is looked at is stated in `Field` tables, one per
protocol. A body with a wrong field is refused with the field's name (OAI-5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_shared.errors import Code, Fault

MAX_MODEL_CHARS = 256
_MAX_TOKENS = 2**31 - 1
_SEARCHED_BYTES = 1024 * 1024

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode
_whole = msgspec.json.Decoder(int).decode
_encode = msgspec.json.Encoder().encode
_BYTE = re.compile(r"\(byte (\d+)\)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULL = re.compile(rb"null").match
_EMPTY_LIST = re.compile(rb"\[\s*\]").match

Members = dict[str, Raw]


class Field(Struct, frozen=True):
    """What one top-level field has to be. `null` always counts as not given.

    `schema` says the same in JSON Schema, for the description of the ingress.
    """

    accepts: Callable[[Raw], bool]
    wanted: str
    schema: Mapping[str, Any]


def _decoded(kind: Any, wanted: str) -> Field:
    decode = msgspec.json.Decoder(kind).decode

    def accepts(raw: Raw) -> bool:
        try:
            decode(raw)
        except NOT_JSON:
            return False
        return True

    return Field(accepts, wanted, msgspec.json.schema(kind))


def _begins(pattern: bytes, wanted: str, *types: str, **more: Any) -> Field:
    begins = re.compile(pattern).match
    return Field(lambda raw: begins(raw) is not None, wanted, {"type": types, **more})


TOKENS = _decoded(Annotated[int, Meta(ge=1, le=_MAX_TOKENS)], "a whole number of 1 or more")
BOOLEAN = _decoded(bool, "true or false")
NUMBER = _decoded(float, "a finite number")
NOT_NEGATIVE = _decoded(Annotated[float, Meta(ge=0)], "a number of 0 or more")
WHOLE = _decoded(int, "a whole number")
CHOICES = _decoded(Annotated[int, Meta(ge=1, le=128)], "a whole number from 1 to 128")
TOP_LOGPROBS = _decoded(Annotated[int, Meta(ge=0, le=1000)], "a whole number from 0 to 1000")
TOP_K = _decoded(Annotated[int, Meta(ge=-1, le=_MAX_TOKENS)], "a whole number")
TEXT = _decoded(str, "a string")
OBJECT = _begins(rb"\{", "an object", "object")
LIST = _begins(rb"\[", "a list", "array")
TEXT_OR_LIST = _begins(rb'["\[]', "a string or a list", "string", "array")
TEXT_OR_OBJECT = _begins(rb'["{]', "a string or an object", "string", "object")
MESSAGES = _begins(
    rb"\[\s*\{",
    "a list of at least one message object",
    "array",
    minItems=1,
    items={"type": "object"},
)

Fields = Mapping[str, Field]


def parse(body: bytes, fields: Fields, required: Sequence[str] = ()) -> Members:
    """The top-level members of a body that satisfies `fields`; ones that are null are left out.

    Raises Fault(invalid_value); its `param` names the field where it is one field's fault. Where
    a key stands twice the last one counts, here and for the upstream alike.
    """
    try:
        members = _members(body)
    except NOT_JSON as error:
        raise _malformed(body, error) from None
    if not body.isascii():
        _require_utf8(body, members)
    if b"null" in body:
        members = {name: raw for name, raw in members.items() if not _NULL(raw)}
    for name, raw in members.items():
        field = fields.get(name)
        if field is not None and not field.accepts(raw):
            raise _wrong(name, field.wanted)
    for name in required:
        if name not in members:
            raise _wrong(name, fields[name].wanted)
    return members


def model_of(members: Members) -> str:
    """The model that the caller names. Raises Fault(invalid_value)."""
    try:
        model = _text(members.get("model", b"null"))
    except NOT_JSON:
        model = ""
    require_model_id(model)
    return model


def require_model_id(model: str) -> None:
    """Raises Fault(invalid_value) for what cannot be a model id: it is logged and recorded."""
    if not 0 < len(model) <= MAX_MODEL_CHARS or not model.isprintable():
        raise _wrong("model", f"a model id of 1 to {MAX_MODEL_CHARS} visible characters")


def whole_number(members: Members, name: str) -> int | None:
    """A field that was checked to be a whole number; None where it is not given."""
    raw = members.get(name)
    return None if raw is None else _whole(raw)


def is_true(members: Members, name: str) -> bool:
    """Whether a field that was checked to be a boolean is given and true."""
    raw = members.get(name)
    return raw is not None and bytes(memoryview(raw)[:4]) == b"true"


def has_items(members: Members, name: str) -> bool:
    """Whether a field that was checked to be a list is given and not empty."""
    raw = members.get(name)
    return raw is not None and not _EMPTY_LIST(raw)


def body_parts(members: Members, changes: Mapping[str, bytes]) -> list[bytes | Raw]:
    """The parts of a body after its model: what `upstream_body` puts behind it.

    `changes` are literals that replace members, or are added.
    """
    parts: list[bytes | Raw] = []
    sent: Mapping[str, bytes | Raw] = {**members, **changes} if changes else members
    for name, value in sent.items():
        if name != "model":
            parts.append(b",%b:" % _encode(name))
            parts.append(value)
    parts.append(b"}")
    return parts


def upstream_body(target: str, parts: list[bytes | Raw]) -> bytes:
    """The body with the name that an upstream uses for the model."""
    return b"".join((b'{"model":', _encode(target), *parts))


def _wrong(name: str, wanted: str) -> Fault:
    return Fault(Code.INVALID_VALUE, f"{name} must be {wanted}", param=name)


def _malformed(body: bytes, error: Exception) -> Fault:
    if isinstance(error, RecursionError):
        return Fault(Code.INVALID_VALUE, "the body is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return Fault(Code.INVALID_VALUE, "the body must be a JSON object")
    culprit = _member_with_lone_surrogate(body)
    if culprit is not None:
        return Fault(Code.INVALID_VALUE, f"{culprit} holds half of a surrogate pair", param=culprit)
    place = _BYTE.search(str(error))
    where = f" (at byte {place[1]})" if place else ""
    return Fault(Code.INVALID_VALUE, f"the body is not valid JSON{where}")


def _member_with_lone_surrogate(body: bytes) -> str | None:
    """Which field cannot be text at all. Only for saying so, and only in bodies of usual size."""
    if len(body) > _SEARCHED_BYTES or b"\\ud" not in body.lower():
        return None
    try:
        lenient = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(lenient, dict):
        name: str
        for name, value in lenient.items():
            if not _SURROGATE.search(name) and _SURROGATE.search(
                json.dumps(value, ensure_ascii=False)
            ):
                return name
    return None


def _require_utf8(body: bytes, members: Members) -> None:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        for name, raw in members.items():
            try:
                bytes(raw).decode("utf-8")
            except UnicodeDecodeError:
                raise Fault(Code.INVALID_VALUE, f"{name} is not valid UTF-8", param=name) from None
        raise Fault(Code.INVALID_VALUE, "the body is not valid UTF-8") from None
