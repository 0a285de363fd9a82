"""Links that fail as real ones do: silently, by reset, at one end only, or with the peer gone."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from e2e_harness import RawCall, Upstream, chat, prompt, with_provider, write
from network_rig import CutSite, cut_site

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e

NOTICED_WITHIN_S = 15.0  # what NODE-6 promises of a silent loss


@pytest.fixture
async def site(tmp_path: Path, small_upstream_url: str) -> AsyncIterator[CutSite]:
    async with cut_site(tmp_path / "site", small_upstream_url) as made:
        yield made


def words_in(received: bytes) -> list[str]:
    """The answer's pieces, of a stream or of a whole answer, in the order in which they came."""
    _, _, body = received.partition(b"\r\n\r\n")
    found = []
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                if content := choice["delta"].get("content"):
                    found.append(content)
    return found


def has_one_error(received: bytes, code: str) -> bool:
    return received.count(b'data: {"error"') == 1 and code.encode() in received


class Calls(AsyncExitStack):
    """Calls of one test, hung up at its end."""

    def __init__(self, site: CutSite) -> None:
        super().__init__()
        self._site = site

    async def ask(self, tag: str, more: str = "") -> RawCall:
        body = chat("pair", prompt(tag, more))
        return await self.enter_async_context(self._site.call(body))

    async def stream(self, tag: str, tokens: int) -> RawCall:
        """A stream of which so many tokens have arrived."""
        body = chat("pair", prompt(tag), stream=True)
        call = await self.enter_async_context(self._site.call(body))
        await call.until(words_for(prompt(tag), tokens)[-1].encode())
        return call


@pytest.fixture
async def calls(site: CutSite) -> AsyncIterator[Calls]:
    async with Calls(site) as made:
        yield made


@pytest.mark.req("NODE-6", "POOL-13", "POOL-6", "OAI-7")
async def test_a_silent_loss_is_noticed_in_time_and_costs_only_what_had_begun(
    site: CutSite, upstream: Upstream, calls: Calls
) -> None:
    config = with_provider(site.config, "a-pair", capacity=2, priority=0)
    write(site.site, with_provider(config, "b-pair", capacity=2, priority=1))
    await site.start("a", "b")
    first_session = (await site.node("a"))["session"]
    await upstream.plan("cut-stream", hold_after=3)
    await upstream.plan("cut-b", hold_before_head=True)

    stream = await calls.stream("cut-stream", 3)
    busy = [await calls.ask("cut-b", "0")]
    await upstream.seen("cut-b", "held")
    site.wire.cut(site.port)
    # As many on a as on b, and a comes first: its node is asked, and cannot hear it.
    unheard = await calls.ask("cut-unheard")
    await site.until(lambda s: _in_flight(s, "a-pair") == 2)
    busy.append(await calls.ask("cut-b", "1"))
    await upstream.seen("cut-b", "held", count=2)
    queued = await calls.ask("cut-queued")
    await site.until(lambda s: s["queue"]["pending"] == 1)

    received = await stream.rest(within_s=NOTICED_WITHIN_S)
    assert has_one_error(received, "node_lost"), received
    assert words_in(received) == words_for(prompt("cut-stream"), 3)
    assert b"[DONE]" not in received
    # Its upstream had not been asked, so it waits again, before the one that came after it.
    await site.until(lambda s: s["queue"]["pending"] == 2)
    await upstream.release("cut-b")
    for call in (*busy, unheard, queued):
        assert b"200 OK" in await call.rest()
    for tag in ("cut-unheard", "cut-queued"):
        assert [event["model"] for event in await upstream.seen_so_far(tag, "opened")] == [
            "small-b"
        ]
    # The node gave up too, and its upstream was let go.
    await upstream.seen("cut-stream", "closed", within_s=NOTICED_WITHIN_S)

    site.wire.mend()
    await site.until(lambda s: s["nodes"][0]["connected"], within_s=20)
    await site.until_idle()
    assert (await site.node("a"))["session"] > first_session
    await _until_connections(site, 2)
    await upstream.release("cut-stream")


@pytest.mark.req("NODE-6", "OAI-7")
async def test_a_reset_is_noticed_at_once_at_both_ends(
    site: CutSite, upstream: Upstream, calls: Calls
) -> None:
    await site.start("a")
    await upstream.plan("reset", pace_ms=20, tokens=4000)
    stream = await calls.stream("reset", 3)
    site.wire.reset(site.port)
    received = await stream.rest(within_s=5)
    assert has_one_error(received, "node_lost"), received
    words = words_in(received)
    assert words == words_for(prompt("reset"), len(words))
    await upstream.seen("reset", "closed", within_s=5)
    await site.until(lambda s: s["nodes"][0]["connected"])
    await site.until_idle()
    await _until_connections(site, 1)


@pytest.mark.req("NODE-9", "NODE-6")
async def test_a_node_that_lost_its_connection_is_back_before_the_edge_noticed(
    site: CutSite, upstream: Upstream, calls: Calls
) -> None:
    await site.start("a")
    before = await site.node("a")
    await upstream.plan("half", pace_ms=20, tokens=4000)
    stream = await calls.stream("half", 3)
    [own_port] = site.wire.local_ports(site.port)
    site.wire.reset_inside_only(own_port)
    # Far less than the silence limit: it is let in because it is the same process.
    await site.until(
        lambda s: s["nodes"][0]["connected"] and s["nodes"][0]["session"] > before["session"],
        within_s=6,
    )
    received = await stream.rest(within_s=5)
    assert has_one_error(received, "node_lost"), received
    words = words_in(received)
    assert words == words_for(prompt("half"), len(words))
    await upstream.seen("half", "closed", within_s=5)
    assert b"200 OK" in await (await calls.ask("after-half")).rest()
    await site.until_idle()


@pytest.mark.req("NODE-6", "REF-9")
async def test_a_connection_whose_other_end_is_gone_without_a_word_is_given_up(
    site: CutSite, upstream: Upstream, calls: Calls
) -> None:
    await site.start("a")
    node = site.site.nodes["a"]
    site.wire.cut(site.port)
    site.site.kill_edge()
    await asyncio.to_thread(site.site.start_edge)
    # Until now the node's end still stands; what it sends next is answered with a reset.
    assert site.wire.local_ports(site.port)
    site.wire.mend()
    await asyncio.to_thread(site.site.wait_connected, "a", timeout_s=NOTICED_WITHIN_S)
    assert node.exit_status is None
    assert b"200 OK" in await (await calls.ask("after-gone")).rest()
    await _until_connections(site, 1)


@pytest.mark.req("NODE-6", "OPS-3")
async def test_a_node_asked_to_end_while_its_edge_is_silent_ends(site: CutSite) -> None:
    site.wire.cut(site.port)
    await asyncio.to_thread(site.site.start_edge)
    node = site.start_node_a()
    await _until_logged(site, "node_started")
    node.signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait, 5) == 0


async def _until_logged(site: CutSite, event: str) -> None:
    async with asyncio.timeout(10):
        while event not in (site.site.group.folder / "node-a.log").read_text():
            await asyncio.sleep(0.02)  # offered for what the log shows


async def _until_connections(site: CutSite, count: int) -> None:
    async with asyncio.timeout(NOTICED_WITHIN_S):
        while await asyncio.to_thread(site.connections) != count:
            await asyncio.sleep(0.05)  # offered for what the kernel shows


def _in_flight(status: dict[str, list[dict[str, int]]], provider_id: str) -> int:
    return next(p["in_flight"] for p in status["providers"] if p["provider_id"] == provider_id)
