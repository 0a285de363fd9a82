"""Whatever a peer of either side says in well-formed messages: a closed session is the worst.

Time is virtual, so that silence, heartbeats and timeouts are part of what can happen.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop.runtime_pb2 import (
    AttemptOpen,
    EdgeBatch,
    EdgeFrame,
    Hello,
    NodeBatch,
    NodeConfigPayload,
    NodeFrame,
    ProtocolRange,
    ProviderTunnelRequest,
    Welcome,
)
from iop_edge.runtime.attempt import Attempt as EdgeAttempt
from iop_edge.runtime.node_hub import NodeHub
from iop_node.adapters.base import Responder, RunCall, TextDelta
from iop_node.link.session import NodeSessionEnd
from iop_node.runtime.router import Attempt
from iop_shared.errors import Fault
from iop_shared.session.flow import INITIAL_WINDOW_BYTES, MAX_WINDOW_BYTES, WindowBudget
from iop_shared.session.handshake import ProtocolError
from tests.batches import next_batch
from tests.simulation.virtual import run_virtually

from .arbitrary import messages
from .conftest import NODE, PoolEars, Ports

EXAMPLES = int(os.environ.get("IOP_FRAME_EXAMPLES", "150"))
BUDGET_BYTES = 4 * MAX_WINDOW_BYTES

node_frames = messages(NodeFrame.DESCRIPTOR)
edge_frames = messages(EdgeFrame.DESCRIPTOR)
own_moves = st.sampled_from(["open", "open long", "cancel", "read", "write", "refresh", "wait"])


def moves(frames: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Batches of the peer's between moves of our own; now and then of another epoch."""
    batch = st.tuples(st.sampled_from([1, 1, 1, 1, 2]), st.lists(frames, max_size=6))
    return st.lists(own_moves | batch, max_size=25)


def strictly(main: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time; what a task or a callback raised unseen is seen."""
    unseen: list[Any] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unseen.append(told))
        await main
        gc.collect(0)

    run_virtually(watched())
    assert not unseen


async def at_once(what: Callable[[], Any]) -> None:
    """What can be had without waiting for anybody."""
    with suppress(TimeoutError, Fault):
        async with asyncio.timeout(0.001):
            await what()


@pytest.mark.req("NODE-8", "POOL-6")
@settings(max_examples=EXAMPLES, deadline=None)
@given(moves(node_frames))
def test_an_edge_survives_whatever_its_node_says(script: list[Any]) -> None:
    strictly(_edge_survives(script))


async def _edge_survives(script: list[Any]) -> None:
    budget = WindowBudget(BUDGET_BYTES)
    hub = NodeHub(boot_id="boot", version="test", pool=PoolEars(), budget=budget)
    hub.set_desired({NODE: NodeConfigPayload(generation=1)})
    hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="one")
    session = await hub.join(NODE, hello)
    attempts: list[EdgeAttempt] = []
    for move in script:
        match move:
            case "open" | "open long":
                body = b"b" * (300_000 if move == "open long" else 10)
                opening = AttemptOpen(tunnel=ProviderTunnelRequest(adapter="a"))
                with suppress(Fault):
                    attempts.append(session.open(EdgeFrame(attempt_open=opening), body))
            case "cancel" if attempts:
                attempts[0].cancel("caller_gone")
            case "read" if attempts:
                await at_once(attempts[-1].head)
                await at_once(attempts[-1].next_chunk)
                await at_once(attempts[-1].next_event)
            case "write":
                await at_once(lambda: next_batch(session))
            case "refresh":
                session.refresh(NodeConfigPayload(generation=2))
            case "wait":
                await asyncio.sleep(3.0)
            case (epoch, frames):
                session.receive(NodeBatch(session_epoch=epoch, frames=frames))
        for attempt in attempts:
            assert attempt._receive_window.unread_bytes <= MAX_WINDOW_BYTES
    session.close("the test is over")
    assert session.open_attempts == 0
    assert not hub.takes_runs(NODE)
    assert budget.left_bytes == BUDGET_BYTES
    for attempt in attempts:
        # Each ends: with what had arrived, then its end or its fault.
        async with asyncio.timeout(1):
            with suppress(Fault):
                await attempt.head()
            with suppress(Fault):
                while await attempt.next_chunk() is not None:
                    pass
            with suppress(Fault):
                while await attempt.next_event() is not None:
                    pass
    async with asyncio.timeout(1):
        while await next_batch(session) is not None:
            pass


@pytest.mark.req("NODE-8", "NODE-7")
@settings(max_examples=EXAMPLES, deadline=None)
@given(moves(edge_frames))
def test_a_node_survives_whatever_its_edge_says(script: list[Any]) -> None:
    strictly(_node_survives(script))


async def _node_survives(script: list[Any]) -> None:
    budget = WindowBudget(BUDGET_BYTES)
    running = 0

    async def execute(attempt: Attempt, out: Responder) -> None:
        nonlocal running
        running += 1
        try:
            out.started()
            if isinstance(attempt.work, RunCall):
                await out.event(TextDelta("t" * 9_000))
                return
            out.head(200, [("content-type", "text/plain")])
            if not isinstance(attempt.work.body, bytes):
                async for _ in attempt.work.body:
                    await out.chunk(b"a" * 30_000)
            await out.chunk(b"b" * 100_000)
        finally:
            running -= 1

    welcome = Welcome(
        protocol=1,
        session_epoch=1,
        heartbeat_interval_ms=4000,
        silence_limit_ms=12_000,
        initial_window_bytes=INITIAL_WINDOW_BYTES,
        payload=NodeConfigPayload(generation=1),
    )
    end = NodeSessionEnd(welcome, Ports(execute), budget)
    for move in script:
        match move:
            case "write":
                await at_once(lambda: next_batch(end))
            case "read":
                end.report()
            case "wait":
                await asyncio.sleep(3.0)
            case "cancel":
                await at_once(lambda: end.drain("draining", 0.0))
            case (epoch, frames):
                end.receive(EdgeBatch(session_epoch=epoch, frames=frames))
    end.close("the test is over")
    async with asyncio.timeout(60):
        while await next_batch(end) is not None:
            pass
        await end._idle.wait()
    assert running == 0
    assert budget.left_bytes == BUDGET_BYTES
    assert end._running == {}


@pytest.mark.req("NODE-6")
@given(messages(Welcome.DESCRIPTOR))
@settings(max_examples=60, deadline=None)
def test_a_welcome_either_begins_a_session_or_is_no_welcome(welcome: Welcome) -> None:
    async def begin() -> None:
        async def nothing(attempt: Attempt, out: Responder) -> None: ...

        try:
            end = NodeSessionEnd(welcome, Ports(nothing), WindowBudget())
        except ProtocolError:
            return
        assert end.is_open
        end.close("the test is over")

    strictly(begin())
