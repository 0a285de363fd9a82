# ruff: noqa: E501 - a row reads best on one line
"""YAML 1.2's core schema, and nothing of 1.1."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.yaml12.emit import scalar
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.scalars import NumberTooLong, resolve_plain
from iop_edge.config.yaml12.tree import build


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize(
    "text",
    ["on", "off", "yes", "no", "y", "n", "On", "12:30", "1:2:3", "0123", "-0123", "00", "2026-01-02",
     "1_000", "0b11", "0o8", "0xg", "+", "-", ".", "1.2.3", "1e", "e3", "<<", "=", "tRUE", "nULL",
     "0123.5", ".in", "Infinity", "NaN", "+0x1F"],
)  # fmt: skip
def test_what_yaml_1_1_took_for_something_else_is_text(text: str) -> None:
    assert resolve_plain(text) == text


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("~", None), ("null", None), ("Null", None), ("NULL", None), ("true", True),
     ("True", True), ("FALSE", False), ("0", 0), ("-0", 0), ("+12", 12), ("-7", -7), ("0o17", 15),
     ("0x1F", 31), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-1.5E-2", -0.015),
     (".inf", math.inf), ("-.Inf", -math.inf), ("1e309", math.inf)],
)  # fmt: skip
def test_the_core_schema_is_read_as_it_stands(text: str, value: object) -> None:
    resolved = resolve_plain(text)
    assert resolved == value
    assert type(resolved) is type(value)


@pytest.mark.req("CFG-3")
def test_not_a_number_is_a_number_that_no_bound_admits() -> None:
    value = resolve_plain(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize("text", ["1" * 65, "-" + "9" * 64, "0x" + "f" * 63])
def test_a_whole_number_past_64_characters_is_refused_without_reading_it(text: str) -> None:
    with pytest.raises(NumberTooLong):
        resolve_plain(text)


@pytest.mark.req("CFG-23")
@settings(deadline=None)
@given(st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(10**60), 10**60), st.booleans(),
    st.none(), st.floats(allow_nan=False),
    st.sampled_from(["on", "0123", "1e3", "0o17", "null", "- a", "a: b", "a #b", "#", "", "~", "'"]),
))  # fmt: skip
def test_what_is_emitted_reads_back_as_the_same_value(value: object) -> None:
    places = Places()
    text = f"x: {scalar(value)}\n"
    tree = build(text, places.add_file("f", text), places)
    assert tree.findings == []
    assert tree.root is not None
    assert tree.root["x"] == value
    assert type(tree.root["x"]) is type(value)
