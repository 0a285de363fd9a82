"""Containers that are killed and networks that are cut: what callers see, and what comes back."""

from __future__ import annotations

import asyncio

import pytest

from demo.small_upstream import words_for
from tests.compose.compose_rig import (
    PROJECT,
    SILENCE_S,
    Answer,
    Heard,
    Site,
    connected,
    container,
    in_flight,
    prompt,
    whole,
)
from tests.e2e.e2e_harness import Upstream

HELD = 5
TOKENS = 24


async def held_on_each_node(
    site: Site, upstream: Upstream, tag: str
) -> dict[str, asyncio.Task[Answer]]:
    """One stream on each node, stopped in the middle, by the letter of the node. Its caller has
    read all that came before."""
    await upstream.plan(tag, tokens=TOKENS, hold_after=HELD)
    streams: dict[str, asyncio.Task[Answer]] = {}
    for number in (1, 2):
        heard = Heard()
        stream = asyncio.create_task(site.ask(prompt(tag), heard=heard))
        opened = await upstream.seen(tag, "opened", count=number)
        await upstream.seen(tag, "held", count=number)
        await heard.until(begun(tag, "").text)
        streams[opened[-1]["model"].removeprefix("small-")] = stream
    assert set(streams) == {"a", "b"}
    return streams


def begun(tag: str, end: str) -> Answer:
    return Answer("".join(words_for(prompt(tag), HELD)), end)


@pytest.mark.req("OPS-2", "NODE-6", "OAI-7", "POOL-6")
async def test_an_edge_killed_with_9_comes_back_and_its_nodes_with_it(
    site: Site, upstream: Upstream
) -> None:
    streams = await held_on_each_node(site, upstream, "edge-killed")
    await site.aside("kill", "--signal", "KILL", container("edge"))
    # Cut, and not ended as if it were complete.
    assert await streams["a"] == await streams["b"] == begun("edge-killed", "cut")
    # The nodes end what nobody waits for any more.
    await upstream.seen("edge-killed", "closed", count=2, within_s=SILENCE_S + 10)
    await site.aside("start", container("edge"))
    await site.until_whole()
    for _ in range(4):
        assert await site.ask(prompt("edge-back")) == whole(prompt("edge-back"), TOKENS)


@pytest.mark.req("OPS-2", "NODE-6", "OAI-7", "POOL-6")
async def test_a_node_killed_mid_stream_costs_its_own_streams_an_error_and_no_other_anything(
    site: Site, upstream: Upstream
) -> None:
    streams = await held_on_each_node(site, upstream, "node-killed")
    await site.aside("kill", "--signal", "KILL", container("node-a"))
    assert await streams["a"] == begun("node-killed", "error:node_lost")
    status = await site.until(lambda status: in_flight(status) == 1)
    assert connected(status) == {"node-b"}
    assert await site.ask(prompt("elsewhere")) == whole(prompt("elsewhere"), TOKENS)
    await upstream.release("node-killed")
    assert await streams["b"] == whole(prompt("node-killed"), TOKENS)
    await site.aside("start", container("node-a"))
    await site.until_whole()


@pytest.mark.req("OPS-2", "NODE-6", "POOL-6")
async def test_a_node_that_is_cut_off_is_missed_in_time_and_comes_back_by_itself(
    site: Site, upstream: Upstream
) -> None:
    network, node = f"{PROJECT}_link", container("node-a")
    streams = await held_on_each_node(site, upstream, "cut-off")
    await site.aside("network", "disconnect", network, node)
    try:
        status = await site.until(
            lambda status: connected(status) == {"node-b"}, within_s=SILENCE_S
        )
        assert in_flight(status) == 1
        assert await streams["a"] == begun("cut-off", "error:node_lost")
        # The node has noticed as well, and what it ran for the edge has been ended.
        await upstream.seen("cut-off", "closed", within_s=SILENCE_S + 10)
        await upstream.release("cut-off")
        assert await streams["b"] == whole(prompt("cut-off"), TOKENS)
        for _ in range(3):
            assert await site.ask(prompt("without")) == whole(prompt("without"), TOKENS)
    finally:
        await site.aside("network", "connect", network, node)
    await site.until_whole()
    assert site.inspect("node-a", ".RestartCount") == 0
