"""Traces of real processes, at a collector that takes them and at one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from e2e_harness import (
    CALLER_TOKEN,
    PROMPT_CANARY,
    UPSTREAM_KEY,
    canaries,
    chat,
    prompt,
    running_site,
    site_config,
    write,
)

from demo.processes import free_ports
from demo.site import Site
from tests.shared.otlp_rig import Collector

pytestmark = pytest.mark.e2e

TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ANSWER_CANARY = "zephyr"


class Upstream:
    """Answers every chat at once, and keeps the trace context that it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        assert PROMPT_CANARY in await request.text()
        self.told.append(request.headers["traceparent"])
        message = {"role": "assistant", "content": ANSWER_CANARY}
        return web.json_response(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
            }
        )


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", upstream.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield upstream
    await runner.cleanup()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as collector:
        yield collector


def start(site: Site, upstream: Upstream, endpoint: str) -> int:
    """An edge and its node a, both of which trace; returns the port of the node's metrics."""
    config = site_config(site, upstream.url)
    config["telemetry"] = {"otlp_endpoint": endpoint}
    write(site, config)
    site.start_edge()
    [port] = free_ports(1)
    told = {
        "E2E_UPSTREAM_KEY": UPSTREAM_KEY,
        "IOP_OTLP_ENDPOINT": endpoint,
        "IOP_NODE_METRICS": f"127.0.0.1:{port}",
    }
    site.start_node("a", env=told)
    site.wait_connected("a")
    return port


async def ask(site: Site, model: str = "pair") -> int:
    headers = {
        "Authorization": f"Bearer {CALLER_TOKEN}",
        "traceparent": f"00-{TRACE}-{CALLER_SPAN}-01",
    }
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{site.openai_url}/chat/completions", json=chat(model, prompt("t"))) as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.req("OPS-3", "SEC-1")
async def test_edge_and_node_add_their_spans_to_the_callers_trace_and_the_upstream_is_next(
    tmp_path: Path, upstream: Upstream, collector: Collector
) -> None:
    with running_site(tmp_path) as site:
        await asyncio.to_thread(start, site, upstream, collector.url)
        assert await ask(site) == 200
        assert await ask(site, f"no-such-model-{PROMPT_CANARY}") == 404
        names = ("run", "attempt", "node attempt")
        spans = await asyncio.to_thread(collector.wait_for_spans, *names)
        planted = canaries(site)
    run, attempt, node = (next(span for span in spans if span.name == name) for name in names)
    assert {span.trace_id for span in spans} == {TRACE}
    assert (run.service, attempt.service, node.service) == ("iop-edge", "iop-edge", "iop-node")
    assert run.parent_id == CALLER_SPAN
    assert attempt.parent_id == run.span_id
    assert node.parent_id == attempt.span_id
    assert upstream.told == [f"00-{TRACE}-{node.span_id}-01"]
    assert run.attributes["iop.output_tokens"] == 5
    assert {span.attributes["iop.run_id"] for span in spans} == {node.attributes["iop.run_id"]}
    assert {span.attributes["iop.node_id"] for span in spans} == {"a"}
    sent = b"".join(content + str(headers).encode() for _, headers, content in collector.received)
    secrets = [*planted, upstream.url.removeprefix("http://")]
    assert [secret for secret in secrets if secret.encode() in sent] == []


@pytest.mark.req("OPS-3")
async def test_a_collector_that_refuses_or_hangs_costs_nothing_but_spans(
    tmp_path: Path, upstream: Upstream, collector: Collector
) -> None:
    collector.mood = "refuses"
    with running_site(tmp_path) as site:
        port = await asyncio.to_thread(start, site, upstream, collector.url)
        assert await ask(site) == 200
        dropped = {
            f"http://127.0.0.1:{site.ports.metrics}/metrics": "iop_edge_dropped_spans_total 2.0",
            f"http://127.0.0.1:{port}/metrics": "iop_node_dropped_spans_total 1.0",
        }
        async with aiohttp.ClientSession() as http:
            for url, line in dropped.items():
                async with asyncio.timeout(20):
                    while line not in await (await http.get(url)).text():
                        await asyncio.sleep(0.02)  # offered for what a scrape shows
        collector.mood = "hangs"
        sent = len(collector.received)
        assert await ask(site) == 200
        await asyncio.to_thread(collector.wait_for, sent + 2)
        assert await ask(site) == 200
        # Both are told to stop at the end of the block, and end with 0 while it still hangs.
