"""What a caller sees when a process is lost, and how the rest comes back by itself."""

from __future__ import annotations

import asyncio

import pytest
from e2e_harness import CALLER_TOKEN, UPSTREAM_KEY, Edge, Upstream, chat, prompt, start_nodes
from openai import APIError, AsyncOpenAI

from demo.processes import until
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
    has_all_three = asyncio.Event()

    async def listen() -> None:
        request = chat("pair", prompt("killed", "official"), stream=True)
        async for chunk in await official.chat.completions.create(**request):
            pieces.extend(c.delta.content for c in chunk.choices if c.delta.content)
            if len(pieces) == 3:
                has_all_three.set()

    async with official, own_site.call(chat("pair", prompt("killed"), stream=True)) as raw:
        listening = asyncio.create_task(listen())
        await upstream.seen("killed", "held", count=2)
        await raw.until(words_for(prompt("killed"), 3)[2].encode())
        await asyncio.wait_for(has_all_three.wait(), 10)
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


@pytest.mark.req("OAI-7", "OAI-5")
@pytest.mark.parametrize("plan", [{"cut_after": 2}, {"stop_after": 2}], ids=["cut", "stopped"])
async def test_an_upstream_that_ends_without_its_end_marker_makes_the_official_client_raise(
    edge: Edge, client: AsyncOpenAI, upstream: Upstream, plan: dict[str, int]
) -> None:
    tag = next(iter(plan))
    await upstream.plan(tag, **plan)
    pieces: list[str] = []
    with pytest.raises(APIError) as raised:
        async for chunk in await client.chat.completions.create(
            **chat("pair", prompt(tag), stream=True)
        ):
            pieces.extend(c.delta.content for c in chunk.choices if c.delta.content)
    assert raised.value.code == "upstream_closed"
    assert pieces == words_for(prompt(tag), 2)
    async with edge.call(chat("pair", prompt(tag, "raw"), stream=True)) as raw:
        received = await raw.rest()
    assert b'data: {"error"' in received
    assert b"[DONE]" not in received


@pytest.mark.req("NODE-9", "NODE-6")
async def test_a_second_machine_with_a_nodes_token_is_kept_out_until_the_first_is_gone(
    own_site: Edge, upstream: Upstream
) -> None:
    site = own_site.site
    await _start(own_site, "a")
    first, session = site.nodes["a"], (await own_site.node("a"))["session"]
    await upstream.plan("cloned", hold_after=2)
    async with own_site.call(chat("pair", prompt("cloned"), stream=True)) as call:
        await upstream.seen("cloned", "held")
        # Under a log of its own: both are node a.
        site.group.folder.joinpath("node-a.log").rename(site.group.folder / "node-first.log")
        clone = site.start_node("a", env={"E2E_UPSTREAM_KEY": UPSTREAM_KEY})

        def is_kept_out() -> bool:
            """the second machine was told that its node is connected already"""
            return "already" in clone.log.read_text() if clone.log.exists() else False

        await asyncio.to_thread(until, is_kept_out, watching=[clone])
        assert (await own_site.node("a"))["session"] == session
        await upstream.release("cloned")
        assert b"[DONE]" in await call.rest()
    first.kill()
    await own_site.until(
        lambda s: s["nodes"][0]["connected"] and s["nodes"][0]["session"] != session
    )
    assert clone.exit_status is None
    async with own_site.call(chat("pair", prompt("taken-over"))) as call:
        assert b"200 OK" in await call.rest()
