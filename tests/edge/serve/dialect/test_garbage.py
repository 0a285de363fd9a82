"""Whatever comes in, what comes out is bytes or a Fault."""

import json
from contextlib import suppress
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from iop_edge.serve.dialect.answers import reader_for
from iop_edge.serve.dialect.caller_protocols import (
    CALLER_PROTOCOLS,
    CHAT,
    MESSAGES,
    RESPONSES,
    CallerProtocol,
)
from iop_edge.serve.dialect.normalized import chat, messages, responses
from iop_edge.serve.dialect.request import model_of, parse
from iop_shared.errors import Code, Fault

TOKENS = st.sampled_from(
    [b"data: ", b"data:", b"event: ", b"\n", b"\r", b"\r\n", b"\n\n", b"{", b"}", b"[", b"]", b":",
     b",", b'"', b'"model"', b'"usage"', b'"type"', b'"response"', b'"message"', b"null", b"1",
     b'"x"', b"\\u006d", b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"[DONE]", b"message_stop", b" ",
     b'{"model":"a"}', b'"messages"', b'"content"', b'[{"role":"user","content":"x"}]']
)  # fmt: skip
PIECES = st.lists(st.one_of(st.binary(max_size=8), st.lists(TOKENS, max_size=12).map(b"".join)))


@given(PIECES, st.sampled_from(CALLER_PROTOCOLS), st.booleans(), st.sampled_from([200, 404, 529]))
def test_an_answer_of_any_bytes_is_read_or_is_a_fault_of_the_upstream(
    pieces: list[bytes], protocol: CallerProtocol, is_stream: bool, status: int
) -> None:
    reader = reader_for(
        status,
        [],
        is_stream=is_stream,
        observer=protocol.observer(),
        model="m",
        dialect=protocol.dialect,
        request_id="r",
    )
    fault: Fault | None = None
    released: list[bytes] = []
    try:
        released = [*map(reader.feed, pieces), reader.end()]
    except Fault as caught:
        fault = caught
    if fault is None:
        assert all(isinstance(each, bytes) for each in released)
    else:
        assert fault.code in (Code.UPSTREAM_INVALID, Code.UPSTREAM_CLOSED)
        assert status == 200


@given(
    st.one_of(st.binary(max_size=60), st.lists(TOKENS, max_size=30).map(b"".join)),
    st.sampled_from(CALLER_PROTOCOLS),
)
def test_a_request_of_any_bytes_is_taken_or_refused(body: bytes, protocol: CallerProtocol) -> None:
    with suppress(Fault):
        model_of(parse(body, protocol.fields, protocol.required))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "tool_calls", "function", "name", "id",
                 "source", "image_url", "url", "arguments", "input", "schema", "json_schema"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "input", "system", "instructions", "tools", "tool_choice", "text",
             "response_format", "thinking", "stop", "stop_sequences", "top_k", "seed"]
        ),
        JSON,
        max_size=5,
    ),
    st.sampled_from([(CHAT, chat), (RESPONSES, responses), (MESSAGES, messages)]),
)  # fmt: skip
def test_fields_of_any_shape_become_a_run_or_are_refused(
    fields: dict[str, object], protocol_and_rendering: tuple[CallerProtocol, ModuleType]
) -> None:
    protocol, rendering = protocol_and_rendering
    body = json.dumps({"model": "m", **fields}).encode()
    with suppress(Fault):
        rendering.run_request(parse(body, protocol.fields))
