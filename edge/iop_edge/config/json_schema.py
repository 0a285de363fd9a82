"""The JSON Schema of a config file, from the same structs that decode it (CFG-24).

An editor completes and checks with it. It says what a file may look like before anything is
expanded, so a number may also be a `${NAME}`, and legacy forms have their place.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from iop_edge.config.document import Document
from iop_edge.config.document.types import StructType
from iop_edge.config.reading.vocabulary import structs_below

_REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
_LEGACY = "Legacy"
_PYTHON_END = r"$(?!\n)"


def json_schema() -> dict[str, Any]:
    """The schema, with descriptions, bounds and defaults."""
    (_,), parts = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    root = _struct(parts.pop("Document"), Document)
    structs = {cls.__name__: cls for cls in structs_below(Document)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "title": "IOP edge config",
        "$defs": {name: _struct(part, structs[name]) for name, part in sorted(parts.items())},
    }


def _struct(part: dict[str, Any], cls: StructType) -> dict[str, Any]:
    defaults = default_values(cls)
    properties = {}
    for name, schema in part["properties"].items():
        shown = _relaxed(schema)
        shown.pop("default", None)
        if name in defaults:
            shown["default"] = defaults[name]
        if shown.get("description", "").startswith(_LEGACY):
            shown["deprecated"] = True
        if name == "adapters":
            shown["anyOf"].insert(1, _legacy_adapters())
        properties[name] = shown
    return {
        key: value
        for key, value in {**part, "properties": properties}.items()
        if key != "title" and not (key == "required" and not value)
    }


def _legacy_adapters() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Legacy: one instance of each type, under the type's name.",
        "deprecated": True,
        "additionalProperties": {"type": "object"},
    }


def _relaxed(schema: Any, *, is_variant: bool = False) -> Any:
    """Room for references beside every scalar that is no text, and patterns all dialects read."""
    if isinstance(schema, list):
        return [_relaxed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    relaxed: dict[str, Any] = {
        key: [_relaxed(one, is_variant=True) for one in value]
        if key == "anyOf"
        else _relaxed(value)
        for key, value in schema.items()
    }
    if isinstance(relaxed.get("pattern"), str):
        relaxed["pattern"] = relaxed["pattern"].replace(_PYTHON_END, "$")
    if any(_takes_reference(one) for one in relaxed.get("anyOf", ())):
        relaxed["anyOf"] = [*relaxed["anyOf"], dict(_REFERENCE)]
    elif _takes_reference(relaxed) and not is_variant:
        described = {"description": relaxed.pop("description", None)}
        relaxed = {
            **{key: value for key, value in described.items() if value is not None},
            "anyOf": [relaxed, dict(_REFERENCE)],
        }
    return relaxed


def _takes_reference(schema: dict[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number", "boolean") or "enum" in schema


def default_values(cls: StructType) -> dict[str, Any]:
    """What the fields of a document struct come to when they are left out, where it is a value."""
    effective: StructType | None = getattr(cls, "EFFECTIVE", None)
    if effective is None:
        return {}
    found = {}
    for field in msgspec.structs.fields(effective):
        if field.default is NODEFAULT or field.default is None:
            continue
        if field.name in cls.__struct_fields__ and not isinstance(field.default, Struct | tuple):
            found[field.name] = field.default
    return found
