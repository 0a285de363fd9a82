"""What a caller sees when a process is lost, and how the rest comes back by itself."""

from __future__ import annotations

import asyncio

import pytest
from e2e_harness import CALLER_TOKEN, Edge, Upstream, chat, prompt, start_nodes
from openai import APIError, AsyncOpenAI

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e


@pytest.fixture
async def official(own_site: Edge) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=own_site.site.openai_url, api_key=CALLER_TOKEN, max_retries=0, timeout=30
    )


async def _start(edge: Edge, *node_ids: str) -> None:
    await asyncio.to_thread(edge.site.start_edge)
    await asyncio.to_thread(start_nodes, edge.site, *node_ids)


@pytest.mark.req("OAI-7", "NODE-6")
async def test_a_node_killed_mid_stream_gives_an_error_event_and_the_official_client_raises(
    own_site: Edge, upstream: Upstream, official: AsyncOpenAI
) -> None:
    await _start(own_site, "a")
    await upstream.plan("killed", hold_after=3)
    pieces: list[str] = []

    async def listen() -> None:
        request = chat("pair", prompt("killed", "official"), stream=True)
        async for chunk in await official.chat.completions.create(**request):
            pieces.extend(c.delta.content for c in chunk.choices if c.delta.content)

    async with official, own_site.call(chat("pair", prompt("killed"), stream=True)) as raw:
        listening = asyncio.create_task(listen())
        await upstream.seen("killed", "held", count=2)
        await raw.until(words_for(prompt("killed"), 3)[2].encode())
        own_site.site.nodes["a"].kill()
        received = await raw.rest()
        with pytest.raises(APIError) as raised:
            await listening
    assert raised.value.code == "node_lost"
    assert pieces == words_for(prompt("killed", "official"), 3)
    assert b'data: {"error"' in received
    assert b"node_lost" in received
    assert b"[DONE]" not in received
    await own_site.until_idle()
    node = await own_site.node("a")
    assert not node["connected"]


@pytest.mark.req("NODE-6", "REF-9")
async def test_an_edge_that_was_killed_gets_its_nodes_back_by_themselves(
    own_site: Edge, upstream: Upstream, official: AsyncOpenAI
) -> None:
    site = own_site.site
    await _start(own_site, "a", "b")
    site.kill_edge()
    await asyncio.to_thread(site.start_edge)
    await asyncio.to_thread(site.wait_connected, "a", "b")
    async with official:
        for node_id in ("a", "b"):
            tag = f"back-{node_id}"
            answer = await official.chat.completions.create(**chat("pair", prompt(tag)))
            assert answer.choices[0].message.content == "".join(words_for(prompt(tag), 24))
    assert all(process.exit_status is None for process in site.nodes.values())
    sessions = [node["session"] for node in (await own_site.status())["nodes"]]
    assert len(set(sessions)) == 2


@pytest.mark.req("POOL-1", "NODE-6")
async def test_with_its_only_node_gone_a_model_has_no_provider_until_the_node_is_back(
    own_site: Edge, upstream: Upstream, official: AsyncOpenAI
) -> None:
    site = own_site.site
    await _start(own_site, "a")
    site.nodes["a"].kill()
    await own_site.until(lambda status: not status["nodes"][0]["connected"])
    async with official:
        with pytest.raises(APIError) as refused:
            await official.chat.completions.create(**chat("one", prompt("nobody")))
        assert refused.value.code == "no_provider"
        await asyncio.to_thread(start_nodes, site, "a")
        await official.chat.completions.create(**chat("one", prompt("somebody")))
    assert not await upstream.seen_so_far("nobody", "opened")
