"""What an editor makes of a config with the schema (CFG-24)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iop_edge.config.json_schema import json_schema
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.tree import build
from tests.edge.config.rig import filled

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json_schema()
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return next(misfits(value, schema), None) is None


def misfits(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """A small reading of JSON Schema: what our schema is made of, and nothing else."""
    if "$ref" in schema:
        yield from misfits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        yield "anyOf"
    if "enum" in schema and value not in schema["enum"]:
        yield "enum"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield "number"
        elif not schema["minimum"] <= value <= schema["maximum"]:
            yield "bounds"
    elif kind is not None and not isinstance(value, TYPES[kind]):
        yield kind
    elif kind == "string":
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield "length"
        if not re.search(schema.get("pattern", ""), value):
            yield "pattern"
    elif kind == "array":
        for entry in value:
            yield from misfits(entry, schema.get("items", {}))
    elif kind == "object":
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties", {})
        yield from (f"missing {one}" for one in schema.get("required", ()) if one not in value)
        for key, entry in value.items():
            if key in properties:
                yield from misfits(entry, properties[key])
            elif extra is False:
                yield f"unknown {key}"
            elif isinstance(extra, dict):
                yield from misfits(entry, extra)


def tree(text: str) -> Any:
    places = Places()
    return build(text, places.add_file("f", text), places).root


@pytest.mark.req("CFG-24", "CFG-1")
def test_the_example_fits_its_schema() -> None:
    text = (ROOT / "configs" / "edge.yaml").read_text(encoding="utf-8")
    assert list(misfits(tree(text), SCHEMA)) == []


@pytest.mark.req("CFG-24")
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "edge: null\nserver: {tls: null}",
        "provider_pool:\n  max_queue: ${QUEUE:-3}\nopenai:\n  enabled: ${ON}",
        "logging:\n  level: ${LEVEL}",
        "nodes: [{id: n, token: {env: T}, adapters: {ollama: {base_url: 'http://h'}}}]",
        "nodes: [{id: n, token: {env: T}, adapters: [{key: a, type: ollama, headers: {X: y}}]}]",
        "protocol_profiles: {x: {auth: {value: {node_env: K}}}}",
        "nodes: [{id: n, token: {file: /t}, providers: [{$P1, headers: {K: {env: T}}}]}]",
        "protocol_profiles: {x: {base: vllm, extensions: {a: [1, {b: c}]}}}",
    ],
)
def test_what_the_loader_takes_fits_the_schema(text: str) -> None:
    assert list(misfits(tree(filled(text)), SCHEMA)) == []


@pytest.mark.req("CFG-24")
@pytest.mark.parametrize(
    "text",
    [
        "edge: {nmae: x}",
        "provider_pool: {max_queue: -1}",
        "provider_pool: {max_queue: x}",
        "logging: {level: inof}",
        "nodes: [{id: n}]",
        "nodes: [{id: n, token: abc}]",
        "nodes: [{id: n, token: {evn: T}}]",
        "openai: {enabled: 'yes'}",
        "models: [{id: ''}]",
    ],
)
def test_an_editor_finds_what_is_plainly_wrong(text: str) -> None:
    assert list(misfits(tree(filled(text)), SCHEMA))
