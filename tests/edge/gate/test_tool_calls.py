"""The tool calls of one answer, judged at its end."""

from __future__ import annotations

import json

import pytest

from iop_edge.gate.evidence import Said
from iop_edge.gate.tool_calls import (
    MAX_ARGUMENT_CHARACTERS,
    ToolCalls,
    ToolFault,
    repair_directive,
)

pytestmark = pytest.mark.req("GATE-7")

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {
    "weather": json.dumps(WEATHER).encode(),
    "now": b'{"type":"object","properties":{}}',
    "free": b"",
}


def call(text: str, index: int = 0, name: str = "weather") -> Said:
    return Said("tool_call", text, index, f"call-{index}", name)


def verdict(*said: Said) -> ToolFault | None:
    calls = ToolCalls(SCHEMAS)
    for one in said:
        calls.add(one)
    return calls.verdict()


def test_calls_whose_arguments_fit_have_no_fault():
    assert verdict(call('{"city": "Kiel", "days": 3}'), call("{}", 1, "now")) is None


def test_an_answer_without_a_call_has_no_fault():
    assert verdict(Said("content", '{"city": 7}'), Said("finish", "stop")) is None


def test_fragments_are_joined_call_by_call_in_the_order_they_came():
    told = [
        Said("tool_call", "", 0, "a", "weather"),
        Said("tool_call", "", 1, "b", "weather"),
        Said("tool_call", '{"city":', 0),
        Said("tool_call", '{"ci', 1),
        Said("tool_call", '"Kiel"}', 0),
        Said("tool_call", 'ty": 1}', 1),
    ]
    assert verdict(*told) == ToolFault(
        kind="not_fitting", index=1, name="weather", place="/city", rule="type"
    )


@pytest.mark.parametrize(
    "text",
    ["{", '{"city": "Kiel"', '{"city": Kiel}', "Kiel", "[]", '"{}"', "null", "1", '{"city": NaN}',
     '{"city": "Kiel"} {}', "{'city': 'Kiel'}", '{"city": "\ud800"}'],
)  # fmt: skip
def test_arguments_that_are_no_json_object_are_a_fault(text: str):
    assert verdict(call(text)) == ToolFault(kind="not_json", index=0, name="weather")


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_arguments_at_all_count_as_an_empty_object(text: str):
    assert verdict(call(text, name="now")) is None
    assert verdict(call(text)) == ToolFault(
        kind="not_fitting", index=0, name="weather", place="/city", rule="required"
    )


def test_a_call_of_a_tool_that_nobody_declared_is_a_fault_that_does_not_tell_its_name():
    fault = verdict(call('{"q": 1}', name="sesame"))
    assert fault == ToolFault(kind="unknown_tool", index=0)
    assert "sesame" not in repair_directive(fault)


def test_where_the_caller_declared_no_tool_nothing_is_judged():
    calls = ToolCalls({})
    calls.add(call("{"))
    assert calls.verdict() is None
    assert calls.count == 1


def test_a_tool_without_a_schema_is_known_and_not_judged():
    assert verdict(call("anything at all", name="free")) is None


def test_a_schema_that_cannot_be_judged_is_no_fault_of_the_model():
    calls = ToolCalls({"t": b'{"$ref": "http://127.0.0.1/x"}'})
    calls.add(call('{"a": 1}', name="t"))
    assert calls.verdict() is None


def test_but_what_is_no_json_object_fits_no_schema_whatever_it_says():
    calls = ToolCalls({"t": b'{"$ref": "http://127.0.0.1/x"}'})
    calls.add(call("{", name="t"))
    assert calls.verdict() == ToolFault(kind="not_json", index=0, name="t")


def test_the_first_call_with_a_fault_is_told():
    assert verdict(call("{", 2), call('{"city": 1}', 1), call("{}", 0, "now")) == ToolFault(
        kind="not_fitting", index=1, name="weather", place="/city", rule="type"
    )


@pytest.mark.parametrize("text", ['{"city": ' + "[" * 100_000, '{"city": 1e999}'])
def test_json_beyond_what_can_be_read_is_not_judged(text: str):
    assert verdict(call(text)) is None


def test_arguments_beyond_the_bound_are_neither_kept_nor_judged():
    assert verdict(call("x" * MAX_ARGUMENT_CHARACTERS), call("{", 1)) is None
    assert verdict(call("x" * (MAX_ARGUMENT_CHARACTERS - 1000))) is not None
    many = ToolCalls(SCHEMAS)
    for index in range(10_000):
        many.add(call("", index))
    assert many.verdict() is None
    assert many.count < 5_000


@pytest.mark.parametrize("name", ["free", "bash"])
def test_a_tool_that_is_known_without_a_schema_may_be_called(name: str):
    for schemas in ({**SCHEMAS, "bash": b""}, {**SCHEMAS, "": b""}):
        calls = ToolCalls(schemas)
        calls.add(call('{"any": "thing"}', 0, name))
        assert calls.verdict() is None


def test_the_calls_of_one_answer_share_one_bound_on_the_work():
    steps = {
        f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]}
        for n in range(16)
    }
    costly = {
        "properties": {"x": {"$ref": "#/$defs/s0"}},
        "$defs": {**steps, "s16": {"type": "string"}},
    }
    schemas = {"costly": json.dumps(costly).encode(), **SCHEMAS}
    for before, found in [(0, "not_fitting"), (40, None)]:
        calls = ToolCalls(schemas)
        for index in range(before):
            calls.add(call('{"x": "a"}', index, "costly"))
        calls.add(call('{"city": 1}', before))
        fault = calls.verdict()
        assert (fault and fault.kind) == found


def test_the_directive_is_one_fixed_sentence_with_the_name_the_place_and_the_rule():
    assert repair_directive(verdict(call('{"city": "Kiel", "days": "Xq7Zp2"}'))) == (
        'The arguments of your call of "weather" did not fit its schema at "/days" by the rule'
        ' "type". Call the tool again, with arguments that are one JSON object and fit its schema.'
    )
    assert repair_directive(ToolFault(kind="not_fitting", index=0, name="weather")) == (
        'The arguments of your call of "weather" did not fit its schema.'
        " Call the tool again, with arguments that are one JSON object and fit its schema."
    )
    assert repair_directive(verdict(call("{"))) == (
        'The arguments of your call of "weather" were not a JSON object.'
        " Call the tool again, with arguments that are one JSON object and fit its schema."
    )


def test_nothing_out_of_the_arguments_stands_in_a_repr():
    calls = ToolCalls(SCHEMAS)
    calls.add(call('{"city": "Kiel", "Xq7Zp2": "Xq7Zp2"}'))
    assert repr(calls) == "ToolCalls(1 calls, 299 characters)"
    fault = calls.verdict()
    assert fault is not None
    assert "Xq7Zp2" not in repr(fault) + repair_directive(fault)
