import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.serve.dialect.caller_protocols import (
    CALLER_PROTOCOLS,
    CHAT,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
    CallerProtocol,
)
from iop_edge.serve.dialect.request import (
    body_parts,
    has_items,
    is_true,
    model_of,
    parse,
    upstream_body,
)
from iop_shared.errors import Code, Fault

MINIMAL: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def refusal(body: bytes, protocol: CallerProtocol = CHAT) -> Fault:
    with pytest.raises(Fault) as caught:
        model_of(parse(body, protocol.fields, protocol.required))
    assert caught.value.code is Code.INVALID_VALUE
    return caught.value


def chat_with(**fields: Any) -> bytes:
    return json.dumps({**MINIMAL, **fields}).encode()


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", "9"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 10**30),
        ("max_completion_tokens", -1),
        ("n", 10**9),
        ("n", 0),
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("top_p", []),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", True),
        ("stop", 5),
        ("tools", {}),
        ("response_format", "json"),
        ("seed", "x"),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [1]),
        ("messages", None),
        ("model", ""),
        ("model", 7),
        ("model", None),
        ("model", "a\r\nx: y"),
        ("model", "m" * 257),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    fault = refusal(chat_with(**{field: value}))
    assert fault.param == field
    assert fault.message.startswith(field)


def test_null_counts_as_not_given_and_does_not_go_on() -> None:
    assert set(parse(chat_with(max_tokens=None, stream=None), CHAT.fields)) == set(MINIMAL)


@pytest.mark.parametrize("raw", [b"1e9", b"1e999", b"9" * 400, b"9" * 5000])
def test_a_number_in_another_form_is_named_too(raw: bytes) -> None:
    body = chat_with()[:-1] + b',"n":' + raw + b"}"
    assert refusal(body).param == "n"


@pytest.mark.parametrize("protocol", CALLER_PROTOCOLS)
def test_every_protocol_names_its_missing_model(protocol: CallerProtocol) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"input":"hi"}'
    assert refusal(body, protocol).param == "model"


@pytest.mark.parametrize(
    ("protocol", "field", "value"),
    [
        (RESPONSES, "input", 5),
        (RESPONSES, "max_output_tokens", 0),
        (RESPONSES, "reasoning", "high"),
        (MESSAGES, "system", {}),
        (MESSAGES, "max_tokens", -1),
        (MESSAGES, "thinking", True),
        (MESSAGES, "stop_sequences", "x"),
        (COUNT_TOKENS, "messages", []),
    ],
)
def test_each_protocol_has_its_own_fields(protocol: CallerProtocol, field: str, value: Any) -> None:
    assert refusal(chat_with(**{field: value}), protocol).param == field


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"{", b"{}}", b"{'a':1}", b'{"a":NaN}', b"\xef\xbb\xbf{}",
     b"\x00", b'{"a":1,}', b'{"messages":' + b"[" * 200_000, "{}".encode("utf-16")],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).param is None


@pytest.mark.parametrize(
    "escape", [r"\ud800", r"\udc00", r"\ud800\u0041", r"\uD800 x", r"\ud83d\ud83d"]
)
def test_half_a_surrogate_pair_names_the_field_that_holds_it(escape: str) -> None:
    body = chat_with(messages=[{"role": "user", "content": "HERE"}]).replace(
        b"HERE", escape.encode()
    )
    assert refusal(body).param == "messages"


def test_bytes_that_are_no_utf8_name_the_field_that_holds_them() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}'
    assert refusal(body).param == "messages"


@pytest.mark.req("SEC-1")
def test_a_refusal_repeats_nothing_of_the_prompt() -> None:
    for body in (
        chat_with(temperature="canary"),
        chat_with(messages="canary"),
        chat_with(x="canary")[:-1],
        b'{"model":"m","messages":[{"content":"canary\\ud800"}]}',
    ):
        assert "canary" not in refusal(body).message


JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(min_size=1, max_size=8).map("x_".__add__), JSON, max_size=4),
    st.text(max_size=20),
    st.booleans(),
)
def test_what_is_not_looked_at_goes_on_as_it_came(
    extra: dict[str, Any], target: str, is_ascii: bool
) -> None:
    body = json.dumps({**extra, **MINIMAL, "max_tokens": 5}, ensure_ascii=is_ascii).encode()
    members = parse(body, CHAT.fields)
    rendered = upstream_body(target, body_parts(members, {"max_tokens": b"64", "added": b"[]"}))
    assert json.loads(rendered) == {
        **extra, **MINIMAL, "model": target, "max_tokens": 64, "added": [],
    }  # fmt: skip


def test_values_keep_their_bytes() -> None:
    body = b'{"temperature":0.70,"messages":[ {"content":"\\u00e9 \\/"} ],"model":"m","x":1E+2}'
    rendered = upstream_body("s", body_parts(parse(body, CHAT.fields), {}))
    assert rendered == (
        b'{"model":"s","temperature":0.70,"messages":[ {"content":"\\u00e9 \\/"} ],"x":1E+2}'
    )


def test_a_key_that_stands_twice_reaches_the_upstream_once_as_it_was_judged() -> None:
    body = chat_with()[:-1] + b',"max_tokens":-1,"max_tokens":7,"model":"m2"}'
    members = parse(body, CHAT.fields)
    assert model_of(members) == "m2"
    rendered = upstream_body("s", body_parts(members, {}))
    assert rendered.count(b"max_tokens") == 1
    assert rendered.count(b'"model"') == 1


def test_flags_and_lists_are_read() -> None:
    members = parse(chat_with(stream=True, tools=[{}], functions=[], logprobs=False), CHAT.fields)
    assert is_true(members, "stream")
    assert not is_true(members, "logprobs")
    assert not is_true(members, "none")
    assert has_items(members, "tools")
    assert not has_items(members, "functions")
