"""Processes killed and stopped at random moments under load: every caller is answered all the same.

The moments come out of a seed, which is printed; `IOP_CHAOS_SEED` repeats them, and
`IOP_CHAOS_SECONDS` makes it longer. What happens in between is the machine's, so a seed repeats
what was done and not what came of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import pytest
from e2e_harness import CALLER_TOKEN, Edge, Upstream, chat, is_idle, prompt, start_nodes

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("IOP_CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("IOP_CHAOS_SECONDS", "5"))
LONG_S = 30.0
CALLERS = 12
TOKENS = 40
# Longer than the silence limit, where there is time for it: then the session is lost.
STOPS_S = (0.2, 1.0, 14.0) if SECONDS >= LONG_S else (0.2, 0.8)
# Whatever happens, a caller knows within: the silence limit, the queue, and an answer's own time.
ANSWERED_WITHIN_S = 90.0


class Outcome(NamedTuple):
    kind: str
    """`whole`, `cut` (an error event after so many right words), `refused`, or `hung up` where
    the edge itself was killed."""
    words: int


class Chaos:
    def __init__(self, edge: Edge, random: Random) -> None:
        self.edge = edge
        self.random = random
        self.outcomes: list[Outcome] = []
        self.is_over = False
        self.may_lose_callers = False
        self._asked = 0

    async def caller(self) -> None:
        while not self.is_over:
            self._asked += 1
            content = prompt("chaos", str(self._asked))
            is_stream = self.random.random() < 0.7
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                self.outcomes.append(await self._ask(content, is_stream))

    async def _ask(self, content: str, is_stream: bool) -> Outcome:
        expected = words_for(content, TOKENS)
        url = f"{self.edge.site.openai_url}/chat/completions"
        headers = {"Authorization": f"Bearer {CALLER_TOKEN}"}
        body = chat("pair", content, stream=is_stream)
        lines: list[bytes] = []
        try:
            async with self.edge.http.post(url, json=body, headers=headers) as answer:
                if answer.status != 200:
                    error = (await answer.json())["error"]
                    assert error["code"] in ("node_lost", "no_provider", "queue_full"), error
                    return Outcome("refused", 0)
                if not is_stream:
                    said = (await answer.json())["choices"][0]["message"]["content"]
                    assert said == "".join(expected)
                    return Outcome("whole", TOKENS)
                async for line in answer.content:
                    lines.append(line)
        except OSError:
            # Only an edge that is killed itself may leave a caller without a word.
            assert self.may_lose_callers
            return Outcome("hung up", 0)
        except Exception as error:
            if type(error).__module__.startswith("aiohttp") and self.may_lose_callers:
                return Outcome("hung up", 0)
            raise
        return _judged(lines, expected)

    async def disturb(self, names: list[str], moves: list[str]) -> None:
        """One move after the other, until the time is up; everything runs when it ends."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + SECONDS
        while loop.time() < ends_at:
            await asyncio.sleep(self.random.uniform(0.1, 0.8))
            name, move = self.random.choice(names), self.random.choice(moves)
            pause_s = self.random.choice(STOPS_S)
            print(f"{loop.time():.2f} {move} {name} {pause_s if move == 'stop' else ''}")
            await self._do(name, move, pause_s)

    async def _do(self, name: str, move: str, pause_s: float) -> None:
        site = self.edge.site
        process = site.edge if name == "edge" else site.nodes[name]
        assert process is not None
        if move == "stop":
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(pause_s)
            process.signal(signal.SIGCONT)
            return
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(self.random.uniform(0, 0.3))
        if name == "edge":
            await asyncio.to_thread(site.start_edge)
        else:
            await asyncio.to_thread(start_nodes, site, name)


def _judged(lines: list[bytes], expected: list[str]) -> Outcome:
    """What a stream was: the right words and an end, or some of them and one error."""
    events = [line[6:].strip() for line in lines if line.startswith(b"data: ")]
    errors = [event for event in events if event.startswith(b'{"error"')]
    words = [
        choice["delta"]["content"]
        for event in events
        if event.startswith(b"{") and event not in errors
        for choice in json.loads(event)["choices"]
        if choice["delta"].get("content")
    ]
    assert words == expected[: len(words)], "a token was repeated, lost or mixed up"
    if events[-1:] == [b"[DONE]"]:
        assert not errors
        assert len(words) == len(expected)
        return Outcome("whole", len(words))
    assert len(errors) == 1, (events[-2:], len(words))
    assert events[-1] is errors[0]
    return Outcome("cut", len(words))


@asynccontextmanager
async def _under_load(edge: Edge, upstream: Upstream) -> AsyncIterator[Chaos]:
    """Edge, both nodes, and callers who ask one thing after the other until the block ends."""
    await asyncio.to_thread(edge.site.start_edge)
    await asyncio.to_thread(start_nodes, edge.site, "a", "b")
    await upstream.plan("chaos", tokens=TOKENS, pace_ms=5)
    chaos = Chaos(edge, Random(SEED))
    callers = [asyncio.create_task(chaos.caller()) for _ in range(CALLERS)]
    try:
        yield chaos
    finally:
        chaos.is_over = True
        results = await asyncio.gather(*callers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _run(edge: Edge, upstream: Upstream, names: list[str], moves: list[str]) -> None:
    print(f"IOP_CHAOS_SEED={SEED} IOP_CHAOS_SECONDS={SECONDS:g}")
    async with _under_load(edge, upstream) as chaos:
        chaos.may_lose_callers = "edge" in names
        await chaos.disturb(names, moves)
    await edge.until(_is_whole, within_s=30)
    kinds = [outcome.kind for outcome in chaos.outcomes]
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))})
    assert "whole" in kinds


def _in_flight(status: dict[str, list[dict[str, int]]], provider_id: str) -> int:
    return next(p["in_flight"] for p in status["providers"] if p["provider_id"] == provider_id)


def _is_whole(status: dict[str, list[dict[str, object]]]) -> bool:
    """Nothing runs, nothing waits, every node is there, each with one session of its own."""
    nodes = status["nodes"]
    sessions = {node["session"] for node in nodes}
    return is_idle(status) and all(n["connected"] for n in nodes) and len(sessions) == len(nodes)


@pytest.mark.req("NODE-6", "POOL-6", "OAI-7")
async def test_nodes_killed_and_stopped_at_random_leave_no_caller_without_an_answer(
    own_site: Edge, upstream: Upstream
) -> None:
    await _run(own_site, upstream, ["a", "b"], ["kill", "stop"])


@pytest.mark.req("OPS-3", "POOL-6", "POOL-13")
async def test_a_node_asked_to_end_under_load_costs_no_caller_anything(
    own_site: Edge, upstream: Upstream
) -> None:
    async with _under_load(own_site, upstream) as chaos:
        node = own_site.site.nodes["a"]
        await own_site.until(lambda status: _in_flight(status, "a-pair") > 1)
        node.signal(signal.SIGTERM)
        assert await asyncio.to_thread(node.wait, 20) == 0
        answered = len(chaos.outcomes)
        # The other node carries on alone.
        async with asyncio.timeout(20):
            while len(chaos.outcomes) < answered + CALLERS:
                await asyncio.sleep(0.02)  # offered for what callers are told
    await own_site.until(is_idle)
    assert {outcome.kind for outcome in chaos.outcomes} == {"whole"}


@pytest.mark.skipif(SECONDS < LONG_S, reason="IOP_CHAOS_SECONDS is below 30")
@pytest.mark.req("NODE-6", "POOL-6", "OAI-7")
async def test_an_edge_killed_and_stopped_at_random_gets_nodes_and_callers_back(
    own_site: Edge, upstream: Upstream
) -> None:
    await _run(own_site, upstream, ["edge", "a"], ["kill", "stop"])
