"""Schemas that callers declare: whether arguments fit, and that no schema can do harm."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.schema import (
    MAX_COST,
    MAX_SCHEMA_BYTES,
    Misfit,
    SchemaCache,
    ToolSchema,
    Unjudgeable,
    tool_schema,
)

REPAIR = pytest.mark.req("GATE-7")
pytestmark = REPAIR

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def misfit(schema: dict[str, Any], arguments: Any) -> Misfit | None:
    compiled = ToolSchema(json.dumps(schema).encode())
    length = len(json.dumps(arguments))
    return compiled.misfit(arguments, compiled.cost(arguments, length))


def of(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, **more}


STRICT = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "unit": {"type": ["string", "null"], "enum": ["c", "f", None]},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city", "unit", "stops", "note"],
    "additionalProperties": False,
    "$defs": {
        "stop": {
            "type": "object",
            "properties": {"at": {"type": "integer"}, "then": {"$ref": "#/$defs/stop"}},
            "required": ["at"],
            "additionalProperties": False,
        }
    },
}
"""As a caller writes one whose tool is `strict`."""

FITS = {"city": "Kiel", "unit": None, "stops": [{"at": 1, "then": {"at": 2}}], "note": None}


def test_arguments_that_fit_a_strict_schema_have_no_misfit():
    assert misfit(STRICT, FITS) is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"city": 7}, Misfit("/city", "type")),
        ({"unit": "k"}, Misfit("/unit", "enum")),
        ({"stops": [{"at": 1}, {"at": "x"}]}, Misfit("/stops/1/at", "type")),
        ({"stops": [{"at": 1, "then": {}}]}, Misfit("/stops/0/then/at", "required")),
        ({"note": 3}, Misfit("/note", "anyOf")),
        ({"town": "Kiel"}, Misfit("", "additionalProperties")),
    ],
)
def test_a_misfit_tells_its_place_and_the_keyword(change: dict[str, Any], found: Misfit):
    assert misfit(STRICT, FITS | change) == found


def test_of_a_missing_property_the_place_is_where_it_should_stand():
    assert misfit(STRICT, {key: FITS[key] for key in ("city", "unit", "note")}) == Misfit(
        "/stops", "required"
    )


@pytest.mark.parametrize(
    ("schema", "arguments", "found"),
    [
        (of("x", {"minimum": 3}), {"x": 2}, Misfit("/x", "minimum")),
        (of("x", {"multipleOf": 2}), {"x": 3}, Misfit("/x", "multipleOf")),
        (of("x", {"maxLength": 1}), {"x": "ab"}, Misfit("/x", "maxLength")),
        (of("x", {"pattern": "^a+$"}), {"x": "b"}, Misfit("/x", "pattern")),
        (of("x", {"const": 1}), {"x": 2}, Misfit("/x", "const")),
        (of("x", {"uniqueItems": True}), {"x": [1, 1]}, Misfit("/x", "uniqueItems")),
        (of("x", {"contains": {"const": 1}}), {"x": [2]}, Misfit("/x", "contains")),
        (of("x", {"prefixItems": [{"type": "null"}]}), {"x": [1]}, Misfit("/x/0", "type")),
        (of("x", {"not": {"type": "null"}}), {"x": None}, Misfit("/x", "not")),
        (of("x", {"oneOf": [{"minimum": 1}, {"minimum": 0}]}), {"x": 2}, Misfit("/x", "oneOf")),
        (of("x", False), {"x": 1}, Misfit("/x", "properties")),
        (of("a/b~c", {"type": "null"}), {"a/b~c": 1}, Misfit("/a~1b~0c", "type")),
        ({"patternProperties": {"^x": False}}, {"xy": 1}, Misfit("/*", "patternProperties")),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, Misfit("/*", "required")),
    ],
)
def test_every_kind_of_rule_is_told_by_its_keyword(
    schema: dict[str, Any], arguments: Any, found: Misfit
):
    assert misfit(schema, arguments) == found


def test_a_name_that_the_schema_does_not_declare_is_not_told():
    schema = of("labels", {"type": "object", "additionalProperties": {"type": "integer"}})
    assert misfit(schema, {"labels": {"hunter2": "x"}}) == Misfit("/labels/*", "type")


def test_a_format_is_a_remark_and_no_rule():
    assert misfit(of("mail", {"type": "string", "format": "email"}), {"mail": "nobody"}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": SCHEMA, **of("x", {"prefixItems": [{"type": "null"}]})},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            **of("x", {"items": [{"$ref": "#/definitions/none"}]}),
            "definitions": {"none": {"type": "null"}},
        },
    ],
    ids=["2020-12", "draft-07"],
)
def test_a_schema_is_read_by_the_draft_that_it_names(schema: dict[str, Any]):
    assert misfit(schema, {"x": [None]}) is None
    assert misfit(schema, {"x": [1]}) == Misfit("/x/0", "type")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"true",
        b'{"type": "objekt"}',
        b'{"properties": []}',
        b'{"properties": {"x": 1}}',
        b'{"required": "x"}',
        b'{"$schema": "http://json-schema.org/draft-03/schema"}',
        b'{"$schema": 7}',
        b'{"$ref": "#/$defs/none"}',
        b'{"$ref": "#anchor"}',
        b'{"$ref": 1}',
        b'{"properties": {"x": {"$id": "http://h/", "$ref": "#"}}}',
        b'{"properties": {"x": {"pattern": "(?=a)"}}}',
        b'{"properties": {"x": {"pattern": "("}}}',
        b'{"unevaluatedProperties": false}',
        b'{"$dynamicRef": "#x"}',
        b"[" * 5000,
    ],
)
def test_what_is_no_schema_or_an_unsupported_one_is_not_judged(raw: bytes):
    assert tool_schema(raw) is None


def test_a_schema_over_the_size_bound_is_not_judged():
    padding = " " * (MAX_SCHEMA_BYTES - 2)
    assert tool_schema(f"{{{padding}}}".encode()) is not None
    assert tool_schema(f"{{{padding} }}".encode()) is None


def test_a_schema_is_compiled_once():
    raw = b'{"type": "object", "title": "compiled once"}'
    assert tool_schema(raw) is tool_schema(bytes(bytearray(raw)))


def test_the_cache_keeps_the_last_used_within_its_bounds():
    cache = SchemaCache()
    first = cache.get(b"{}")
    for number in range(300):
        cache.get(json.dumps({"title": str(number)}).encode())
        assert cache.get(b"{}") is first
    assert len(cache) == 256
    large = {f"p{number}": {"pattern": f"^a{number}"} for number in range(64)}
    for number in range(10):
        cache.get(json.dumps({"title": str(number), "properties": large}).encode())
    assert len(cache) < 10


# --- untrusted schemas


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.parametrize(
    "written",
    [
        lambda url: {"$ref": url},
        lambda url: {"$schema": url},
        lambda url: {"$id": url, "$ref": "other"},
        lambda url: {"$id": url, "properties": {"x": {"$ref": "other#/a"}}},
        lambda url: {"$dynamicRef": url},
        lambda url: {"$defs": {"x": {"$id": url, "$ref": "y"}}, "$ref": "#/$defs/x"},
        lambda url: {"$defs": {"x": {"$id": url, "$ref": "y"}}},
        lambda url: {"const": {"$ref": url}, "x": {"$ref": url}},
    ],
)
def test_no_reference_makes_a_connection(
    written: Callable[[str], dict[str, Any]], listener: socket.socket
):
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
    schema = tool_schema(json.dumps(written(url)).encode())
    if schema is not None:
        schema.misfit({}, schema.cost({}, 2))
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_no_reference_reads_a_file(tmp_path: Path):
    kept = tmp_path / "schema.json"
    kept.write_text('{"type": "integer"}')
    assert tool_schema(json.dumps({"$ref": kept.as_uri()}).encode()) is None


def test_a_pattern_that_would_backtrack_for_ever_is_judged():
    schema = of("x", {"pattern": "^(a+)+$"})
    assert misfit(schema, {"x": "a" * 10_000 + "b"}) == Misfit("/x", "pattern")
    assert misfit(schema, {"x": "a" * 10_000}) is None


def test_a_pattern_that_compiles_to_too_much_is_not_judged():
    with pytest.raises(Unjudgeable):
        misfit(of("x", {"pattern": "^(a{1,1000}){1,1000}$"}), {})


def doubled(times: int) -> dict[str, Any]:
    """Evaluated 2 ** times over, if nobody counts."""
    steps = {
        f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]}
        for n in range(times)
    }
    last = {f"s{times}": {"type": "string"}}
    return of("x", {"$ref": "#/$defs/s0"}, **{"$defs": steps | last})


def test_a_schema_that_doubles_its_work_at_each_step_is_not_judged_past_the_bound():
    assert misfit(doubled(5), {"x": 1}) == Misfit("/x", "anyOf")
    with pytest.raises(Unjudgeable):
        misfit(doubled(60), {"x": 1})


def test_nor_is_one_that_doubles_it_with_the_depth_of_the_arguments():
    again = {"properties": {"a": {"$ref": "#"}}}
    schema = {"anyOf": [again | {"required": ["b"]}, again | {"required": ["c"]}]}

    def nested(depth: int) -> dict[str, Any]:
        return {"a": nested(depth - 1)} if depth else {}

    assert misfit(schema, nested(2)) == Misfit("", "anyOf")
    with pytest.raises(Unjudgeable):
        misfit(schema, nested(30))


def test_recursion_that_follows_the_arguments_costs_no_more_than_they_have_values():
    tree = {
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "leaf": {"type": "integer"}}
    }

    def grown(depth: int) -> dict[str, Any]:
        return {"left": grown(depth - 1), "right": grown(depth - 1)} if depth else {"leaf": 1}

    compiled = ToolSchema(json.dumps(tree).encode())
    big = grown(9)
    assert compiled.cost(big, len(json.dumps(big))).evaluations < MAX_COST
    assert misfit(tree, {"left": {"right": {"leaf": "x"}}}) == Misfit("/left/right/leaf", "type")


def test_a_misfit_among_too_many_alternatives_is_told_without_its_place():
    many = of("x", {"anyOf": [{"maxLength": n} for n in range(200)]})
    assert misfit(many, {"x": "a" * 500}) == Misfit("/x", "anyOf")
    assert misfit(many, {"x": "a" * 100_000}) == Misfit()


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}])
def test_a_schema_that_applies_itself_at_one_place_is_not_judged(schema: dict[str, Any]):
    with pytest.raises(Unjudgeable):
        misfit(schema, {})


def test_a_schema_or_arguments_that_are_nested_too_deep_are_not_judged():
    deep: dict[str, Any] = {}
    value: Any = 1
    for _ in range(500):
        deep, value = {"items": deep}, [value]
    with pytest.raises(Unjudgeable):
        misfit(of("x", deep), {})
    with pytest.raises(Unjudgeable):
        misfit({"type": "object"}, {"x": value})


def test_too_many_subschemas_or_values_are_not_judged():
    with pytest.raises(Unjudgeable):
        misfit({"properties": {f"p{n}": {} for n in range(2500)}}, {})
    with pytest.raises(Unjudgeable):
        misfit({}, {"x": [1] * 200_000})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["a", "b", ""]),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.sampled_from("abc"), one),
    max_leaves=8,
)
schemas = st.recursive(
    st.sampled_from(
        [{}, {"type": "integer"}, {"type": "string"}, {"const": "a"}, {"enum": [1, None]},
         {"required": ["a"]}, {"minProperties": 2}, {"$ref": "#/$defs/again"}]
    ),
    lambda one: st.one_of(
        st.dictionaries(st.sampled_from("abc"), one).map(lambda of: {"properties": of}),
        one.map(lambda of: {"items": of}),
        one.map(lambda of: {"additionalProperties": of}),
        one.map(lambda of: {"not": of}),
        st.lists(one, min_size=1, max_size=3).map(lambda of: {"allOf": of}),
        st.lists(one, min_size=1, max_size=3).map(lambda of: {"anyOf": of}),
    ),
    max_leaves=6,
)  # fmt: skip


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The keywords that are drawn, word by word."""
    return all(follows(value, rule, schema, root) for rule in schema if rule != "$defs")


def follows(value: Any, rule: str, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    said = schema[rule]
    members = value if isinstance(value, dict) else {}
    match rule:
        case "type":
            return is_integer(value) if said == "integer" else isinstance(value, str)
        case "const":
            return same(value, said)
        case "enum":
            return any(same(value, one) for one in said)
        case "required":
            return not isinstance(value, dict) or all(one in value for one in said)
        case "minProperties":
            return not isinstance(value, dict) or len(value) >= said
        case "$ref":
            return fits(value, root["$defs"]["again"], root)
        case "properties":
            return all(fits(members[name], said[name], root) for name in said if name in members)
        case "additionalProperties":
            return all(fits(one, said, root) for one in members.values())
        case "items":
            return not isinstance(value, list) or all(fits(one, said, root) for one in value)
        case "not":
            return not fits(value, said, root)
        case "allOf":
            return all(fits(value, one, root) for one in said)
        case "anyOf":
            return any(fits(value, one, root) for one in said)
    raise ValueError(rule)


@settings(deadline=None)
@given(
    schema=schemas,
    again=st.sampled_from([{"type": "integer"}, {"items": {"$ref": "#/$defs/again"}}]),
    value=values,
)
def test_arguments_fit_exactly_where_the_rules_word_by_word_say_so(
    schema: dict[str, Any], again: dict[str, Any], value: Any
):
    whole = {**schema, "$defs": {"again": again}}
    found = misfit(whole, {"v": value})
    assert (found is None) == fits({"v": value}, whole, whole)


MARK = "Xq7Zp2"
marked = st.recursive(
    st.just(MARK), lambda one: st.lists(one, max_size=2) | st.dictionaries(st.just(MARK), one)
)


@settings(deadline=None)
@given(schema=schemas, value=marked)
def test_no_misfit_tells_a_value_or_a_name_out_of_the_arguments(schema: dict[str, Any], value: Any):
    found = misfit({**schema, "$defs": {"again": {"type": "null"}}}, {"a": value, MARK: value})
    assert MARK not in repr(found)
