"""Nothing that a caller or an operator may send is answered with our own fault.

The requests are drawn from the ingress's own description: its paths, and the fields that it
checks, with values of every kind.
"""

from __future__ import annotations

import http.client
import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from e2e_harness import CALLER_TOKEN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingress_rig import Rig

from iop import runtime_pb2
from iop_edge.serve.dialect.caller_protocols import CALLER_PROTOCOLS
from iop_edge.serve.openai.description import document
from tests.wire import runtime_pb2_grpc

pytestmark = pytest.mark.e2e

OURS = {400, 401, 404, 405, 408, 413, 415, 431, 503}
"""What a caller may be told for what it sent; 503 is a model without a provider."""

fuzz = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TEXT = st.text(max_size=20)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    TEXT,
    st.sampled_from(["user", "assistant", "tool", "text", "function", "enabled", "auto", "object"]),
)
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "name", "function", "arguments", "parameters", "id",
     "tool_calls", "input", "schema", "json_schema", "budget_tokens", "image_url", "url", "source"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
MODELS = st.sampled_from(["fine", "claude-fine", "routed", "refused-by-nobody", "window-8k", ""])
SPOKEN = [{"role": "user", "content": "hi"}]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body that is mostly right, so that what is odd in it is reached."""
    if draw(st.integers(0, 9)) == 0:
        return (
            draw(st.binary(max_size=40) | st.sampled_from([b"[" * 5000, b"{}", b"null", b'"']))
            or b""
        )
    protocol = draw(st.sampled_from(CALLER_PROTOCOLS))
    body: dict[str, Any] = {"model": draw(MODELS | SCALARS)}
    body |= {"messages": SPOKEN, "max_tokens": 5} if protocol.surface != "responses" else {}
    fields = st.sampled_from(sorted(protocol.fields))
    body |= draw(st.dictionaries(fields | TEXT, VALUES, max_size=3))
    if protocol.surface == "responses":
        body.setdefault("input", "hi")
    return json.dumps(body).encode()


HEADER_VALUES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content-type": st.sampled_from(["application/json; charset=utf-8", "text/plain"]),
        "anthropic-version": HEADER_VALUES,
        "anthropic-beta": HEADER_VALUES,
        "x-request-id": HEADER_VALUES,
        "traceparent": HEADER_VALUES,
        "x-iop-provider-authorization": HEADER_VALUES,
        "accept": HEADER_VALUES,
    },
)
PATHS = st.sampled_from(sorted(document()["paths"])) | TEXT.map(lambda tail: "/v1/" + tail)
METHODS = st.sampled_from(["POST"] * 6 + ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])


def send(
    port: int, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        plain = {name: value.encode("latin-1") for name, value in headers.items()}
        connection.request(method, quote(path, safe="/{}%"), body, plain)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.req("OAI-5", "OAI-1")
@fuzz
@given(method=METHODS, path=PATHS, body=bodies(), headers=HEADERS)
def test_no_request_of_a_callers_is_our_own_fault(
    ingress: Rig, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    sent = {
        "content-type": "application/json",
        "authorization": f"Bearer {CALLER_TOKEN}",
        **headers,
    }
    status, answered, said = send(ingress.site.ports.openai, method, path, body, sent)
    assert status == 200 or status in OURS, said
    assert answered["x-request-id"].isprintable()
    if status != 200 and method != "HEAD":
        error = json.loads(said)["error"]
        assert error["type"]
        assert error["message"]


@pytest.mark.req("REF-1", "REF-5")
@fuzz
@given(
    method=METHODS,
    path=st.sampled_from(
        ["/refresh", "/status", "/config", "/runs", "/runs?limit=", "/refreshes", "/healthz", "/x"]
    ),
    tail=TEXT | st.integers(-5, 2**70).map(str),
    body=st.dictionaries(
        st.sampled_from(["mode", "if_generation", "if_candidate"]) | TEXT,
        SCALARS.filter(lambda value: value != "apply"),
        max_size=3,
    ).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=30),
    headers=HEADERS,
)
def test_no_request_of_an_operators_is_our_own_fault(
    ingress: Rig, method: str, path: str, tail: str, body: bytes, headers: dict[str, str]
) -> None:
    sent = {"content-type": "application/json", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", ingress.site.ports.admin, timeout=20)
    try:
        plain = {name: value.encode("latin-1") for name, value in sent.items()}
        target = path + quote(tail, safe="") if path.endswith("=") else path
        connection.request(method, target, body, plain)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status != 500, said
    finally:
        connection.close()


NAMES = st.text(max_size=12)
PARTS = st.builds(runtime_pb2.ContentPart, text=NAMES)
CALLS = st.builds(runtime_pb2.ToolCall, id=NAMES, name=NAMES, arguments_json=NAMES)
SUBMISSIONS = st.builds(
    runtime_pb2.SubmitRunRequest,
    model=MODELS | NAMES,
    request_id=NAMES,
    messages=st.lists(
        st.builds(
            runtime_pb2.ChatMessage,
            role=st.sampled_from(["user", "system", "assistant", "tool"]) | NAMES,
            parts=st.lists(PARTS, max_size=2),
            tool_calls=st.lists(CALLS, max_size=2),
            tool_call_id=NAMES,
        ),
        max_size=3,
    ),
    tools=st.lists(
        st.builds(
            runtime_pb2.ToolDefinition,
            name=NAMES,
            parameters_json=NAMES | st.just("{}"),
        ),
        max_size=2,
    ),
    options=st.builds(
        runtime_pb2.GenerationOptions,
        max_tokens=st.integers(0, 2**32 - 1),
        temperature=st.floats(width=32),
    ),
    response_format=st.none()
    | st.builds(
        runtime_pb2.ResponseFormat,
        kind=st.sampled_from(["text", "json_schema", "json_object"]) | NAMES,
        schema_json=NAMES,
    ),
)
FAULTS_OF_OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


@pytest.mark.req("OAI-6", "OAI-5")
@fuzz
@given(submission=SUBMISSIONS)
def test_no_submitted_run_is_our_own_fault(
    ingress: Rig, submission: runtime_pb2.SubmitRunRequest, submit_run: Any
) -> None:
    metadata = (("authorization", f"Bearer {CALLER_TOKEN}"),)
    call = submit_run(submission, metadata=metadata, timeout=20)
    with suppress(grpc.RpcError):
        for _ in call:
            pass
    assert call.code() not in FAULTS_OF_OURS, call.details()
    if call.code() is not grpc.StatusCode.OK:
        assert str(call.details()).startswith(dict(call.trailing_metadata())["iop-code"])


@pytest.fixture
def submit_run(ingress: Rig) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{ingress.site.ports.grpc}") as channel:
        yield runtime_pb2_grpc.RunIngressStub(channel).SubmitRun
