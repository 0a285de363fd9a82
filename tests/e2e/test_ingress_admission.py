"""Who may pass, which way and at once: the same decision on every surface (behaviours 9 and 10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from e2e_harness import CALLER_TOKEN, Edge
from ingress_rig import PROVIDER_TOKEN, Rig, openai_client
from ingress_upstreams import COMPLETION
from openai import AsyncOpenAI

from iop import runtime_pb2
from tests.wire import runtime_pb2_grpc

pytestmark = pytest.mark.e2e

AUTHORIZATION = {"authorization": f"Bearer {CALLER_TOKEN}"}
SURFACES = ("chat/completions", "responses", "messages", "submit_run")


@pytest.fixture
async def edge(ingress: Rig) -> AsyncIterator[Edge]:
    async with aiohttp.ClientSession() as http:
        edge = Edge(ingress.site, http)
        yield edge
        await edge.until_idle()


async def ask(
    ingress: Rig, edge: Edge, surface: str, model: str, prompt: str, asked: int, **more: Any
) -> tuple[int, str]:
    """The HTTP status, or what gRPC has in its place, and the body or the error's text."""
    if surface == "submit_run":
        return await _submit(ingress, model, prompt, asked)
    body: dict[str, Any] = {"model": model, **more}
    if surface == "responses":
        body |= {"input": prompt, "max_output_tokens": asked}
    else:
        body |= {"messages": [{"role": "user", "content": prompt}], "max_tokens": asked}
    url = f"{ingress.site.openai_url}/{surface}"
    async with edge.http.post(url, json=body, headers=AUTHORIZATION) as answer:
        return answer.status, await answer.text()


async def _submit(ingress: Rig, model: str, prompt: str, asked: int) -> tuple[int, str]:
    part = runtime_pb2.ContentPart(text=prompt)
    submission = runtime_pb2.SubmitRunRequest(
        model=model,
        messages=[runtime_pb2.ChatMessage(role="user", parts=[part])],
        options=runtime_pb2.GenerationOptions(max_tokens=asked),
    )
    address = f"127.0.0.1:{ingress.site.ports.grpc}"
    async with grpc.aio.insecure_channel(address) as channel:
        stub = runtime_pb2_grpc.RunIngressStub(channel)
        said = []
        try:
            async for event in stub.SubmitRun(submission, metadata=tuple(AUTHORIZATION.items())):
                said.append(event.text_delta)
        except grpc.aio.AioRpcError as error:
            return 400, f"{error.code().name} {error.details()}"
    return 200, "".join(said)


def words(count: int) -> str:
    return "tide " * count


@pytest.mark.req("POOL-4", "OAI-5", "OAI-6")
@pytest.mark.parametrize("surface", SURFACES)
async def test_what_does_not_fit_is_refused_at_once_with_its_numbers_on_every_surface(
    ingress: Rig, edge: Edge, surface: str
) -> None:
    status, said = await ask(ingress, edge, surface, "window-8k", words(7_000), 1_000)
    assert status == 200, said
    before = len(ingress.upstream.asked)
    for model, prompt, asked, numbers in (
        ("window-8k", words(7_000), 4_000, ("7000", "4000", "8192")),
        ("window-128k", words(200_000), 100, ("200000", "131072")),
    ):
        status, said = await ask(ingress, edge, surface, model, prompt, asked)
        assert status == 400
        assert all(number in said for number in numbers), said
        assert "tide" not in said
        if surface in ("chat/completions", "responses"):
            assert json.loads(said)["error"]["code"] == "context_length_exceeded"
        if surface == "messages":
            assert json.loads(said)["error"]["type"] == "invalid_request_error"
        if surface == "submit_run":
            assert said.startswith("INVALID_ARGUMENT context_length_exceeded")
    assert len(ingress.upstream.asked) == before


@pytest.mark.req("POOL-4", "POOL-5", "OAI-6")
@pytest.mark.parametrize("surface", SURFACES)
async def test_a_second_long_run_waits_while_short_ones_pass_on_every_surface(
    ingress: Rig, edge: Edge, surface: str
) -> None:
    upstream = ingress.upstream
    already = len(upstream.of("held"))

    def begin(prompt: str) -> asyncio.Task[tuple[int, str]]:
        return asyncio.create_task(ask(ingress, edge, surface, "window-128k", prompt, 100))

    first = begin(words(60_000))
    await upstream.until_asked(already + 1, "held")
    second = begin(words(60_001))
    await edge.until(lambda status: status["queue"]["pending"] == 1)
    short = begin(words(10))
    held = (await upstream.until_asked(already + 2, "held"))[already:]
    load = await edge.provider("p-long")
    assert (load["in_flight"], load["long_in_flight"]) == (2, 1)
    held[1].release()
    assert (await short)[0] == 200
    assert (await edge.status())["queue"]["pending"] == 1
    held[0].release()
    assert (await first)[0] == 200
    (await upstream.until_asked(already + 3, "held"))[-1].release()
    assert (await second)[0] == 200


@pytest.mark.req("POOL-5", "OAI-5", "REF-3")
async def test_the_queue_clock_stops_at_dispatch_and_an_overflow_has_one_face(
    ingress: Rig, edge: Edge
) -> None:
    upstream = ingress.upstream
    already = len(upstream.of("held"))
    await edge.apply({**ingress.config, "provider_pool": {"max_queue": 1, "queue_timeout_ms": 300}})

    async def post(surface: str, request: dict[str, Any]) -> tuple[int, bool, str]:
        url = f"{ingress.site.openai_url}/{surface}"
        async with edge.http.post(url, json=request, headers=AUTHORIZATION) as answer:
            return answer.status, "retry-after" in answer.headers, await answer.text()

    def body(**more: Any) -> dict[str, Any]:
        return {
            "model": "one",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "hi"}],
        } | more

    running = asyncio.create_task(post("chat/completions", body()))
    [held] = (await upstream.until_asked(already + 1, "held"))[already:]
    waiting = asyncio.create_task(post("chat/completions", body()))
    await edge.until(lambda status: status["queue"]["pending"] == 1)
    faces = [
        await post("chat/completions", body()),
        await post("chat/completions", body(stream=True)),
        await post("responses", {"model": "one", "input": "hi"}),
        await post("messages", body(stream=True)),
    ]
    assert [(status, retries) for status, retries, _ in faces] == [(429, True)] * 4
    assert all("queue_full" in said for _, _, said in faces[:3])
    assert "rate_limit_error" in faces[3][2]
    _, said = await ask(ingress, edge, "submit_run", "one", "hi", 9)
    assert said.startswith("RESOURCE_EXHAUSTED queue_full")
    # By the time that one has waited out the queue, the other has run for longer than that.
    assert (await waiting)[:2] == (503, True)
    held.release()
    assert (await running)[0] == 200
    await edge.apply(ingress.config)


@pytest.mark.req("POOL-9", "POOL-14", "POOL-2")
async def test_one_model_is_relayed_and_translated_by_capacity_to_one_client(
    ingress: Rig, edge: Edge
) -> None:
    upstream = ingress.upstream
    already = len(upstream.of("held"))
    request: Any = {
        "model": "both",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
    }

    async def listen(client: AsyncOpenAI, request_id: str) -> str:
        headers = {"x-request-id": request_id}
        stream = await client.chat.completions.create(**request, extra_headers=headers)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async with openai_client(ingress.root_url) as client:
        relayed = asyncio.create_task(listen(client, "both-1"))
        await upstream.until_asked(already + 1, "held")
        translated = asyncio.create_task(listen(client, "both-2"))
        await upstream.until_asked(already + 2, "held")
        third = asyncio.create_task(listen(client, "both-3"))
        await edge.until(lambda status: status["queue"]["pending"] == 1)
        held = upstream.of("held")[already:]
        assert [each.path for each in held] == ["/v1/chat/completions", "/api/chat"]
        held[1].release()
        assert (await translated).strip() == COMPLETION
        await upstream.until_asked(already + 3, "held")
        # The slot that came free was Ollama's, so the one that waited is translated as well.
        last = upstream.of("held")[-1]
        assert last.path == "/api/chat"
        last.release()
        held[0].release()
        assert (await third).strip() == (await relayed).strip() == COMPLETION
    records = await ingress.records("both-1", "both-2", "both-3")
    assert [record["provider_id"] for record in records] == ["p-relays", "p-ollama", "p-ollama"]
    assert [record["usage_source"] for record in records] == ["estimated", "reported", "reported"]
    assert records[1]["output_tokens"] == len(COMPLETION.split())


@pytest.mark.req("CFG-28", "POOL-11", "CFG-16", "POOL-10")
@pytest.mark.parametrize(
    ("model", "target", "attribution"),
    [
        ("routed", "fine-route", "lab-routed"),
        ("routed-plain", "fine-route", "lab"),
        ("any/name at-all", "fine-fallback", "lab"),
    ],
)
async def test_a_route_and_the_fallback_lead_past_the_pool_to_adapter_and_target(
    ingress: Rig, edge: Edge, model: str, target: str, attribution: str
) -> None:
    request_ids = []
    for surface in ("chat/completions", "responses", "messages"):
        before = len(ingress.upstream.asked)
        request_ids.append(f"{surface.replace('/', '.')}-{attribution}-{target}-{len(model)}")
        body = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        if surface == "responses":
            body = {"model": model, "input": "hi"}
        async with edge.http.post(
            f"{ingress.site.openai_url}/{surface}",
            json=body,
            headers={**AUTHORIZATION, "x-request-id": request_ids[-1]},
        ) as answer:
            assert answer.status == 200
            assert (await answer.json())["model"] == model
        [asked] = ingress.upstream.asked[before:]
        assert asked.model == target
    for record in await ingress.records(*request_ids):
        assert record["attribution"] == {"kind": "provider", "id": attribution}
        assert (record["model"], record["target"]) == (model, target)
        assert (record["provider_id"], record["node_id"], record["end"]) == (None, "a", "completed")
    assert (await edge.status())["queue"]["pending"] == 0


@pytest.mark.req("OAI-4", "SEC-1")
async def test_a_callers_provider_token_reaches_the_upstream_of_its_own_request_alone(
    ingress: Rig, edge: Edge
) -> None:
    sent = {**AUTHORIZATION, "x-iop-provider-authorization": f"Bearer {PROVIDER_TOKEN}"}
    url = f"{ingress.site.openai_url}/chat/completions"
    body = {"model": "fine", "messages": [{"role": "user", "content": "hi"}]}
    seen = []
    for headers in (sent, AUTHORIZATION):
        before = len(ingress.upstream.asked)
        async with edge.http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
        seen.append(ingress.upstream.asked[before].headers)
    assert seen[0]["authorization"] == f"Bearer {PROVIDER_TOKEN}"
    assert "authorization" not in seen[1]
    assert not any("x-iop-provider-authorization" in headers for headers in seen)
