"""Both ends joined by a real gRPC connection on loopback."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

import grpc
import grpc.aio
import pytest

from iop.runtime_pb2 import NodeBatch, NodeFrame, RunEvent
from iop_edge.serve.http.address import ListenError
from iop_edge.serve.node_link import NodeTokens
from iop_node.adapters.base import Responder
from iop_node.link.dialer import TokenRefused
from iop_node.runtime.router import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.ids import NodeId
from iop_shared.wire import AUTHORIZATION
from tests.wire.runtime_pb2_grpc import NodeLinkStub

from .conftest import NODE
from .official import CHANNEL_OPTIONS
from .rig import TOKEN, Edge, dialer, running


@pytest.mark.req("NODE-1", "NODE-6")
async def test_a_node_joins_and_runs_what_it_is_sent() -> None:
    edge = Edge()
    async with edge.serving() as port, running(dialer(port)):
        await edge.until(edge.is_connected)
        body = b"y" * 300_000
        async with asyncio.timeout(10):
            assert await edge.ask(body) == body


@pytest.mark.req("NODE-9")
@pytest.mark.parametrize("token", ["iop_node_0123abcd_" + "w" * 32, TOKEN[:-1], TOKEN + "s"])
async def test_a_wrong_token_is_refused_for_good(token: str) -> None:
    edge = Edge()
    async with edge.serving() as port:
        with pytest.raises(TokenRefused):
            async with asyncio.timeout(10):
                await dialer(port, token=token).run()
    assert edge.pool.events == []


@pytest.mark.req("NODE-6")
async def test_the_node_comes_back_by_itself_when_the_edge_restarts() -> None:
    first = Edge("first")
    async with first.serving() as port:
        node = dialer(port)
        task = asyncio.create_task(node.run())
        await first.until(first.is_connected)
    second = Edge("second")
    async with second.serving(port):
        await second.until(second.is_connected)
        assert await second.ask(b"again") == b"again"
        await node.drain(1.0)
        await asyncio.wait_for(task, 5)


@pytest.mark.req("NODE-6", "POOL-1")
async def test_a_connection_that_breaks_makes_the_node_no_candidate_at_once() -> None:
    edge = Edge()
    async with edge.serving() as port:
        node = dialer(port)
        task = asyncio.create_task(node.run())
        await edge.until(edge.is_connected)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await edge.until(lambda: ("lost", NODE) in edge.pool.events)
        assert edge.hub.views()[0].state == "disconnected"


@pytest.mark.req("NODE-9")
async def test_a_second_machine_with_the_same_token_is_refused_and_tries_again() -> None:
    edge = Edge()
    async with edge.serving() as port, running(dialer(port, instance_id="one")) as first:
        await edge.until(edge.is_connected)
        async with running(dialer(port, instance_id="two")) as second:
            session = edge.hub.views()[0].session
            await asyncio.sleep(0)
            assert await edge.ask(b"still the first") == b"still the first"
            await edge.until(lambda: edge.link.joins_refused >= 2)
            assert edge.hub.views()[0].session == session
            assert not second.done()
        assert not first.done()


@pytest.mark.req("NODE-6")
async def test_a_node_that_drains_finishes_its_runs_and_takes_no_new_ones() -> None:
    edge = Edge()
    go_on = asyncio.Event()

    async def slow(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await go_on.wait()
        await out.chunk(b"whole")

    async with edge.serving() as port:
        node = dialer(port)
        node._ports.execute = slow  # type: ignore[method-assign]
        task = asyncio.create_task(node.run())
        await edge.until(edge.is_connected)
        asking = asyncio.create_task(edge.ask(b""))
        await edge.until(lambda: node.session is not None and bool(node.session._running))
        draining = asyncio.create_task(node.drain(10))
        await edge.until(lambda: not edge.is_connected())
        assert not asking.done()
        go_on.set()
        async with asyncio.timeout(5):
            assert await asking == b"whole"
            assert await draining
            await task


@pytest.mark.req("NODE-4", "NODE-6")
async def test_a_run_that_outlasts_a_nodes_drain_is_told_so() -> None:
    edge = Edge()

    async def endless(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await asyncio.Event().wait()

    async with edge.serving() as port, asyncio.timeout(5):
        node = dialer(port)
        node._ports.execute = endless  # type: ignore[method-assign]
        task = asyncio.create_task(node.run())
        await edge.until(edge.is_connected)
        asking = asyncio.create_task(edge.ask(b""))
        await edge.until(lambda: node.session is not None and bool(node.session._running))
        assert not await node.drain(0.01)
        with pytest.raises(Fault) as caught:
            await asking
        assert caught.value.code is Code.DRAIN_DEADLINE
        await task


async def test_what_is_no_hello_is_refused_with_what_would_be_right() -> None:
    edge = Edge()
    async with (
        edge.serving() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        call = NodeLinkStub(channel).Session(metadata=((AUTHORIZATION, f"Bearer {TOKEN}"),))
        await call.write(NodeBatch(frames=[NodeFrame(run_event=RunEvent())]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "hello" in (caught.value.details() or "")


@pytest.mark.req("NODE-9")
@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic abc", "Bearer nope"])
async def test_no_token_and_a_wrong_one_get_the_same_answer(header: str | None) -> None:
    edge = Edge()
    async with (
        edge.serving() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        metadata = () if header is None else ((AUTHORIZATION, header),)
        call = NodeLinkStub(channel).Session(metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.details() == "the token is not one of this edge's nodes"


async def test_a_port_that_is_taken_is_named() -> None:
    edge, other = Edge(), Edge()
    async with edge.serving() as port:
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            async with other.serving(port):
                pass


@pytest.mark.req("SEC-1")
def test_tokens_are_not_shown() -> None:
    tokens = NodeTokens({NodeId("gpu-a"): hashlib.sha256(TOKEN.encode()).digest()})
    assert repr(tokens) == "NodeTokens(1 nodes)"
    assert TOKEN not in repr(dialer(1))
