"""What the ingress makes of a request, seen over a raw connection and at the run service."""

import asyncio
import hashlib
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from iop_edge.config.effective import (
    IngressLimits,
    ModelGroup,
    ModelRoute,
    OpenAI,
    PrincipalToken,
    ProviderAuth,
)
from tests.edge.serve.openai.conftest import SMALL, Edge
from tests.edge.serve.rig import Answer, RawClient

TOKEN = "iop_caller_00000000_canary-caller-token"
SECURED = OpenAI(
    principal_tokens=(
        PrincipalToken(
            token_ref="ci",
            token_hash_sha256=hashlib.sha256(TOKEN.encode()).hexdigest(),
            principal_ref="team-ci",
            principal_alias="CI",
        ),
    )
)
BODY: dict[str, Any] = {"model": "lab/small", "messages": [{"role": "user", "content": "hi"}]}


async def ask(
    edge: Edge,
    body: dict[str, Any] | bytes | None = None,
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    **headers: str,
) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(BODY if body is None else body).encode()
    named = {"content-type": "application/json", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n{lines}\r\n"
    host, _, port = edge.listener.address.partition(":")
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    try:
        return await client.ask(head.encode() + raw)
    finally:
        client.close()


@pytest.mark.req("OAI-3", "CFG-17")
async def test_a_run_carries_who_asked_for_it_and_never_the_token(edge: Edge) -> None:
    await edge.serve(openai=SECURED)
    assert (await ask(edge, authorization=f"Bearer {TOKEN}")).status == 200
    principal = edge.runs.spec.principal
    assert principal is not None
    assert (principal.token_ref, principal.principal_alias) == ("ci", "CI")
    assert TOKEN not in repr(edge.runs.spec)
    assert TOKEN not in str(edge.runs.spec.work.upstream_headers())


@pytest.mark.req("OAI-3", "OAI-5")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/lab/small"),
    ],
)
async def test_every_path_wants_a_token(edge: Edge, method: str, path: str) -> None:
    await edge.serve(openai=SECURED)
    for headers in ({}, {"authorization": "Bearer no"}):
        answer = await ask(edge, path=path, method=method, **headers)
        assert answer.status == 401
        assert answer.error()["type"] == "authentication_error"
    assert edge.runs.specs == []


@pytest.mark.req("OAI-3")
@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/messages", 200), ("/v1/messages/count_tokens", 200), ("/v1/chat/completions", 401)],
)
async def test_x_api_key_counts_on_anthropics_paths(edge: Edge, path: str, status: int) -> None:
    await edge.serve(openai=SECURED)
    answer = await ask(edge, {**BODY, "max_tokens": 5}, path=path, x_api_key=TOKEN)
    assert answer.status == status


@pytest.mark.req("OAI-3")
async def test_x_api_key_counts_on_anthropics_models(edge: Edge) -> None:
    await edge.serve(openai=SECURED)
    asked = {"path": "/v1/models", "method": "GET", "x_api_key": TOKEN}
    assert (await ask(edge, **asked)).status == 401
    assert (await ask(edge, **asked, anthropic_version="2023-06-01")).status == 200


@pytest.mark.req("OAI-4", "CFG-18", "SEC-1")
async def test_the_providers_token_goes_to_this_runs_upstream_and_nowhere_else(edge: Edge) -> None:
    await edge.serve(openai=OpenAI(provider_auth=ProviderAuth(enabled=True)))
    answer = await ask(edge, X_IOP_Provider_Authorization="Bearer canary")
    assert answer.status == 200
    work = edge.runs.spec.work
    assert work.auth_override == ("Authorization", "Bearer canary")
    assert "canary" not in repr(edge.runs.spec) + str(work.upstream_headers())
    assert b"canary" not in work.upstream_body(SMALL.providers["p1"])
    missing = await ask(edge)
    assert (missing.status, missing.error()["code"]) == (401, "provider_token_required")


@pytest.mark.req("SEC-1")
async def test_nothing_of_the_callers_headers_goes_on_that_is_not_named(edge: Edge) -> None:
    await edge.serve()
    await ask(
        edge,
        authorization="Bearer canary",
        cookie="canary",
        x_api_key="canary",
        proxy_authorization="canary",
        openai_organization="canary",
        x_request_id="mine",
        accept="canary",
    )
    assert dict(edge.runs.spec.work.upstream_headers()) == {
        "content-type": "application/json",
        "accept": "application/json",
        "x-request-id": "mine",
    }


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_value", None),
        ({**BODY, "max_tokens": -1}, 400, "invalid_value", "max_tokens"),
        ({**BODY, "n": 10**9}, 400, "invalid_value", "n"),
        ({**BODY, "model": "none"}, 404, "model_not_found", "model"),
        ({**BODY, "model": "served"}, 404, "model_not_found", "model"),
        ({**BODY, "model": "p1"}, 404, "model_not_found", "model"),
    ],
)
async def test_what_is_wrong_is_told_with_its_parameter(
    edge: Edge, body: Any, status: int, code: str, param: str | None
) -> None:
    await edge.serve()
    answer = await ask(edge, body)
    error = answer.error()
    assert (answer.status, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert edge.runs.specs == []


@pytest.mark.req("OAI-2")
async def test_the_generation_policy_reaches_the_upstream(edge: Edge) -> None:
    await edge.serve(
        ModelGroup(
            id="lab/small",
            providers={"p1": "served"},
            default_max_tokens=200,
            min_max_tokens=64,
            default_thinking_token_budget=100,
        )
    )
    await ask(edge)
    assert edge.runs.sent() == {**BODY, "model": "served", "max_tokens": 200}
    assert edge.runs.spec.demand.output_tokens is None
    await ask(edge, {**BODY, "max_tokens": 1})
    assert edge.runs.sent()["max_tokens"] == 64
    assert edge.runs.spec.demand.output_tokens == 1
    await ask(edge, path="/v1/responses", body={"model": "lab/small", "input": "hi"})
    assert edge.runs.sent() == {"model": "served", "input": "hi", "max_output_tokens": 200}
    await ask(edge, path="/v1/messages")
    assert edge.runs.sent()["thinking"] == {"type": "enabled", "budget_tokens": 100}


@pytest.mark.req("POOL-10")
async def test_the_same_request_is_rendered_for_whichever_provider_is_chosen(edge: Edge) -> None:
    await edge.serve()
    await ask(edge)
    assert edge.runs.sent("one")["model"] == "one"
    assert edge.runs.sent("two") == {**BODY, "model": "two"}
    assert "p1" not in edge.runs.spec.work.upstream_body(SMALL.providers["p1"]).decode()


@pytest.mark.req("CFG-28", "CFG-16", "POOL-11")
async def test_a_model_is_found_as_a_group_then_a_route_then_by_the_fallback(edge: Edge) -> None:
    route = ModelRoute(id="r", model="old", adapter="a1", target="t1", node="n1")
    await edge.serve(openai=OpenAI(model_routes=(route,)))
    assert (await ask(edge, {**BODY, "model": "old"})).status == 200
    assert edge.runs.spec.model == "old"
    assert (await ask(edge, {**BODY, "model": "any"})).status == 404
    listed = json.loads((await ask(edge, path="/v1/models", method="GET")).body)
    assert [each["id"] for each in listed["data"]] == ["lab/small", "old"]


@pytest.mark.req("CFG-16", "CFG-28")
async def test_the_fallback_takes_any_name_and_keeps_it_for_the_caller(edge: Edge) -> None:
    await edge.serve(openai=OpenAI(adapter="a1", target="t1", node="n1", provider_id="lab"))
    edge.runs.answers(200, b'{"model":"t1","choices":[]}')
    answer = await ask(edge, {**BODY, "model": "whatever"})
    assert json.loads(answer.body) == {"model": "whatever", "choices": []}


@pytest.mark.req("OPS-3")
async def test_a_trace_context_and_a_request_id_are_taken_over(edge: Edge) -> None:
    await edge.serve()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = await ask(edge, traceparent=trace, x_request_id="mine")
    assert edge.runs.spec.traceparent == trace
    assert edge.runs.spec.request_id == answer.headers["x-request-id"] == "mine"
    await ask(edge, traceparent="00-junk", x_request_id="a b")
    assert edge.runs.spec.traceparent == ""
    assert edge.runs.spec.request_id.startswith("req_")


async def test_each_run_has_an_id_of_its_own(edge: Edge) -> None:
    await edge.serve()
    await ask(edge, x_request_id="same")
    await ask(edge, x_request_id="same")
    assert len({spec.run_id for spec in edge.runs.specs}) == 2


@pytest.mark.req("OAI-5")
async def test_a_stream_that_is_answered_with_a_page_is_invalid(edge: Edge) -> None:
    await edge.serve()
    edge.runs.answers(200, b"<html>10.0.0.7</html>", headers=[("content-type", "text/html")])
    for is_stream in (True, False):
        answer = await ask(edge, {**BODY, "stream": is_stream})
        assert (answer.status, answer.error()["code"]) == (502, "upstream_invalid")
        assert b"10.0.0.7" not in answer.body


def request_for(path: str, *, is_stream: bool) -> bytes:
    body = json.dumps({**BODY, "input": "hi", "max_tokens": 5, "stream": is_stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def connect(edge: Edge) -> RawClient:
    host, _, port = edge.listener.address.partition(":")
    return RawClient(*await asyncio.open_connection(host, int(port)))


@pytest.mark.req("NODE-7", "POOL-6")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_fifty_callers_that_drop_before_the_first_byte_cancel_fifty_runs(
    edge: Edge, path: str, is_stream: bool
) -> None:
    await edge.serve()
    edge.runs.answers(200, asyncio.Event())
    clients = [await connect(edge) for _ in range(50)]
    for client in clients:
        client.send(request_for(path, is_stream=is_stream))
    async with asyncio.timeout(10):
        while len(edge.runs.specs) < 50:
            edge.runs.has_entered.clear()
            await edge.runs.has_entered.wait()
        for client in clients:
            client.close()
        while len(edge.runs.left) < 50:
            edge.runs.has_left.clear()
            await edge.runs.has_left.wait()
    assert edge.runs.left == ["cancelled"] * 50


class Endless:
    """Chunks without end; counts how many were taken."""

    taken = 0

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> bytes:
        self.taken += 1
        return b'data: {"x":"' + b"y" * 60_000 + b'"}\n\n'


@pytest.mark.req("NODE-8")
async def test_a_caller_that_does_not_read_stops_its_run_from_being_read_and_is_then_cut(
    edge: Edge,
) -> None:
    await edge.serve(limits=IngressLimits(write_timeout_ms=200))
    endless = Endless()
    edge.runs.answers(200)
    edge.runs._steps = endless
    client = await connect(edge)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport too
    client.send(request_for("/v1/chat/completions", is_stream=True))
    async with asyncio.timeout(10):
        await edge.runs.has_left.wait()
    assert edge.runs.left == ["cancelled"]
    assert 0 < endless.taken < 500
    client.close()


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    ("path", "event"),
    [("/v1/chat/completions", b'data: {"choices":[]}\n\n'), ("/v1/messages", b"event: ping\n\n")],
)
async def test_a_fault_of_our_own_after_the_first_byte_is_an_error_event_as_any_other(
    edge: Edge, path: str, event: bytes
) -> None:
    await edge.serve()
    edge.runs.answers(200, event, RuntimeError("canary-text"))
    answer = await ask(edge, BODY | {"stream": True, "max_tokens": 5}, path=path)
    told = answer.body.removeprefix(event)
    assert told != answer.body
    assert told.endswith(b"}\n\n")
    assert told.startswith(b"event: error\ndata: " if path == "/v1/messages" else b"data: ")
    error = json.loads(told.partition(b"data: ")[2])["error"]
    assert error["type"] == ("api_error" if path == "/v1/messages" else "server_error")
    assert error["message"] == "the edge failed on this request"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_run_is_put_away_after_its_caller_has_the_whole_answer(
    edge: Edge, is_stream: bool
) -> None:
    await edge.serve()
    had_answer: list[bool] = []

    class Left(list[str]):
        def append(self, end: str) -> None:
            (connection,) = edge.listener.connections
            had_answer.append(connection._requests[0].is_answered)
            super().append(end)

    edge.runs.left = Left()
    edge.runs.answers(200, b"data: [DONE]\n\n" if is_stream else b'{"choices": []}')
    assert (await ask(edge, BODY | {"stream": is_stream})).status == 200
    assert edge.runs.left == ["completed"]
    assert had_answer == [True]


@pytest.mark.req("OPS-3", "SEC-1")
async def test_a_request_that_becomes_no_run_is_counted_and_has_a_line_and_a_run_has_none(
    edge: Edge,
) -> None:
    await edge.serve()
    with capture_logs() as lines:
        await ask(edge, path="/v1/nothing-canary")
        await ask(edge, {**BODY, "max_tokens": 0, "user": "body-canary"})
        await ask(edge, BODY)
    assert edge.refused == ["not_found", "invalid_value"]
    refused = [line for line in lines if line["event"] == "request_refused"]
    assert [line["code"] for line in refused] == edge.refused
    assert all(line["request_id"].startswith("req_") for line in refused)
    assert "canary" not in repr(lines)
