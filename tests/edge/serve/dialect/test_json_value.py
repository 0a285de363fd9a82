"""The place of a value, checked against what a JSON parser makes of the spliced text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.serve.dialect.json_value import find_value


def replaced(document: bytes, path: tuple[str, ...], literal: bytes) -> bytes:
    span = find_value(document, path, literal)
    assert span is not None
    return document[: span[0]] + b'"NEW"' + document[span[1] :]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"model":"m"}', b'{"model":"NEW"}'),
        (b'{ "model" : "m" }', b'{ "model" : "NEW" }'),
        (b'{"a":"model","model":"m"}', b'{"a":"model","model":"NEW"}'),
        (b'{"m":"m","model":"m","n":"m"}', b'{"m":"m","model":"NEW","n":"m"}'),
        (b'{"a":{"model":"m"},"model":"m"}', b'{"a":{"model":"m"},"model":"NEW"}'),
        (b'{"a":[{"model":"m"}],"model"\n:\t"m"}', b'{"a":[{"model":"m"}],"model"\n:\t"NEW"}'),
        (b'{"a":"\\"model\\":\\"m\\"","model":"m"}', b'{"a":"\\"model\\":\\"m\\"","model":"NEW"}'),
        (b'{"mod\\u0065l":"m","a":{"model":"m"}}', b'{"mod\\u0065l":"NEW","a":{"model":"m"}}'),
    ],
)
def test_only_the_top_level_value_is_found(document: bytes, expected: bytes) -> None:
    assert replaced(document, ("model",), b'"m"') == expected


def test_a_value_inside_an_object_is_found() -> None:
    document = b'{"type":"x","response":{"tools":[{"model":"m"}],"model":"m"},"model":"m"}'
    assert replaced(document, ("response", "model"), b'"m"') == (
        b'{"type":"x","response":{"tools":[{"model":"m"}],"model":"NEW"},"model":"m"}'
    )


def test_a_key_that_stands_twice_is_found_nowhere() -> None:
    assert find_value(b'{"model":"a","x":1,"model":"b"}', ("model",), b'"b"') is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("m") | st.just("model"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "response", "x", 'q"q', "é"]), inner)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["a", "response", "z", "tools"]), VALUES, max_size=4),
    st.text(max_size=8),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" , ", "\n:\n")]),
)
def test_splicing_changes_that_value_and_no_other_byte(
    others: dict[str, Any], name: str, position: int, is_ascii: bool, separators: tuple[str, str]
) -> None:
    items = list(others.items())
    items.insert(position, ("model", name))
    text = json.dumps(dict(items), ensure_ascii=is_ascii, separators=separators)
    document = text.encode("utf-8", "surrogatepass")
    literal = json.dumps(name, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    span = find_value(document, ("model",), literal)
    assert span is not None
    assert document[span[0] : span[1]] == literal
    spliced = document[: span[0]] + b'"NEW"' + document[span[1] :]
    assert json.loads(spliced.decode("utf-8", "surrogatepass")) == {**dict(items), "model": "NEW"}
