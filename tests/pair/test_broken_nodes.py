"""What comes to the edge's port: other protocols and versions, nodes that break the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from iop.runtime_pb2 import (
    AttemptEnd,
    AttemptOpen,
    BodyChunk,
    Credit,
    EdgeBatch,
    EdgeFrame,
    Hello,
    NodeBatch,
    NodeConfigAnswer,
    NodeFrame,
    ProtocolRange,
    ProviderTunnelRequest,
    ResponseHead,
    RunEvent,
    UpstreamStarted,
)
from iop_edge.runtime.attempt import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.session.flow import CREDIT_LIMIT_BYTES, INITIAL_WINDOW_BYTES
from iop_shared.wire import AUTHORIZATION, MAX_MESSAGE_BYTES
from tests.wire.runtime_pb2_grpc import NodeLinkStub

from .conftest import NODE
from .official import CHANNEL_OPTIONS
from .rig import TOKEN, Edge, dialer, running

HELLO = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="scripted")
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
UNKNOWN_FIELD = b"\xfa\x07\x03abc"  # field 127, three bytes: of no version yet


class ScriptedNode:
    """A node's end of the wire that says what it is told to."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: Any = NodeLinkStub(channel).Session(
            metadata=((AUTHORIZATION, f"Bearer {TOKEN}"),)
        )
        self.epoch = 0

    async def join(self) -> None:
        """As a node should: hello, welcome, acknowledgement."""
        await self.send(NodeFrame(hello=HELLO))
        [welcome] = (await self.read()).frames
        self.epoch = welcome.welcome.session_epoch
        answer = NodeConfigAnswer(generation=1, is_acknowledged=True, effective_generation=1)
        await self.send(NodeFrame(config_answer=answer))

    async def send(self, *frames: NodeFrame, epoch: int | None = None) -> None:
        number = self.epoch if epoch is None else epoch
        await self._call.write(NodeBatch(session_epoch=number, frames=frames))

    async def read(self) -> EdgeBatch:
        batch: EdgeBatch = await self._call.read()
        return batch

    async def opened(self) -> AttemptOpen:
        """The next attempt that is opened."""
        while True:
            for frame in (await self.read()).frames:
                if frame.HasField("attempt_open"):
                    return frame.attempt_open

    async def refusal(self) -> tuple[grpc.StatusCode, str]:
        """How the edge ended the call."""
        with suppress(grpc.aio.AioRpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass
        return await self._call.code(), await self._call.details()


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    made = Edge()
    async with asyncio.timeout(30), made.serving():
        yield made


@asynccontextmanager
async def scripted(edge: Edge) -> AsyncIterator[ScriptedNode]:
    address = f"127.0.0.1:{edge.port}"
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield ScriptedNode(channel)


@asynccontextmanager
async def joined(edge: Edge) -> AsyncIterator[ScriptedNode]:
    async with scripted(edge) as node:
        await node.join()
        await edge.until(edge.is_connected)
        yield node


def open_attempt(edge: Edge) -> Attempt:
    tunnel = ProviderTunnelRequest(adapter="a", target="t")
    opening = AttemptOpen(run_id="run", tunnel=tunnel)
    return edge.hub.open_attempt(NODE, EdgeFrame(attempt_open=opening), b"{}")


# --- what is no node at all ----------------------------------------------------------------------


@pytest.mark.req("NODE-6")
@pytest.mark.parametrize(
    "content",
    [b"\x00\xff" * 5000, TLS_HELLO, b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n", b""],
    ids=["garbage", "tls", "http1", "nothing"],
)
async def test_another_protocol_on_the_port_harms_no_session(edge: Edge, content: bytes) -> None:
    async with running(dialer(edge.port)):
        await edge.until(edge.is_connected)
        session = edge.hub.views()[0].session
        strangers = [await asyncio.open_connection("127.0.0.1", edge.port) for _ in range(5)]
        for _, writer in strangers:
            writer.write(content)
            if not content:
                writer.write_eof()
        assert await edge.ask(b"still here") == b"still here"
        for reader, writer in strangers:
            with suppress(OSError):
                await reader.read()  # until the edge has closed it
            writer.close()
        assert edge.hub.views()[0].session == session


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lowest", "highest"), [(2, 3), (0, 0), (5, 4)])
async def test_a_node_of_versions_that_the_edge_does_not_speak_is_told_so(
    edge: Edge, lowest: int, highest: int
) -> None:
    async with scripted(edge) as node:
        protocol = ProtocolRange(min=lowest, max=highest)
        await node.send(NodeFrame(hello=Hello(protocol=protocol, instance_id="scripted")))
        status, details = await node.refusal()
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert details == (
        f"protocol_mismatch: this edge speaks protocol 1 to 1, the node {lowest} to {highest}"
    )


@pytest.mark.parametrize(("lowest", "highest"), [(1, 2), (0, 1), (0, 9)])
async def test_a_node_one_version_up_or_down_is_spoken_to_in_the_version_that_both_know(
    edge: Edge, lowest: int, highest: int
) -> None:
    async with scripted(edge) as node:
        protocol = ProtocolRange(min=lowest, max=highest)
        await node.send(NodeFrame(hello=Hello(protocol=protocol, instance_id="scripted")))
        [welcome] = (await node.read()).frames
    assert welcome.welcome.protocol == 1


async def test_frames_and_fields_of_a_later_version_are_ignored_and_counted(edge: Edge) -> None:
    async with joined(edge) as node:
        attempt = open_attempt(edge)
        opening = await node.opened()
        head = NodeFrame(response_head=ResponseHead(attempt_id=opening.attempt_id, status=200))
        newer = ResponseHead.FromString(head.response_head.SerializeToString() + UNKNOWN_FIELD)
        await node.send(NodeFrame.FromString(UNKNOWN_FIELD), NodeFrame(response_head=newer))
        answered = await attempt.head()
        assert answered is not None
        assert answered.status == 200
    assert edge.hub.views()[0].dropped_frames["unknown"] == 1


# --- the rules of the session --------------------------------------------------------------------


async def test_a_hello_that_names_no_process_is_refused(edge: Edge) -> None:
    async with scripted(edge) as node:
        await node.send(NodeFrame(hello=Hello(protocol=ProtocolRange(min=1, max=1))))
        status, details = await node.refusal()
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert "instance_id" in details


async def test_a_hello_that_names_its_process_without_end_is_refused(edge: Edge) -> None:
    async with scripted(edge) as node:
        hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="i" * 129)
        await node.send(NodeFrame(hello=hello))
        status, details = await node.refusal()
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "an instance_id has at most 128 characters"


async def test_more_than_the_hello_in_the_first_message_is_refused(edge: Edge) -> None:
    async with scripted(edge) as node:
        await node.send(NodeFrame(hello=HELLO), NodeFrame(run_event=RunEvent()))
        status, _ = await node.refusal()
    assert status is grpc.StatusCode.INVALID_ARGUMENT


def _second_hello(attempt_id: int) -> list[NodeFrame]:
    return [NodeFrame(hello=HELLO)]


def _over_credit(attempt_id: int) -> list[NodeFrame]:
    content = b"x" * (INITIAL_WINDOW_BYTES // 2 + 1)
    chunk = NodeFrame(response_chunk=BodyChunk(attempt_id=attempt_id, content=content))
    return [chunk, chunk]


def _over_credit_with_events(attempt_id: int) -> list[NodeFrame]:
    """Events cost something even where they say nothing."""
    return [NodeFrame(run_event=RunEvent(attempt_id=attempt_id))] * (INITIAL_WINDOW_BYTES // 64 + 1)


def _event_longer_than_it_pays_for(attempt_id: int) -> list[NodeFrame]:
    return [NodeFrame(run_event=RunEvent(attempt_id=attempt_id, text_delta="x" * 40_000))]


def _too_much_credit(attempt_id: int) -> list[NodeFrame]:
    credit = Credit(attempt_id=attempt_id, window_bytes=CREDIT_LIMIT_BYTES)
    return [NodeFrame(credit=credit)]


@pytest.mark.req("NODE-8", "POOL-6")
@pytest.mark.parametrize(
    ("breach", "said"),
    [
        (_second_hello, "a greeting frame while the session is open"),
        (_over_credit, "32769 bytes received, at most 32767 are allowed"),
        (_over_credit_with_events, "64 bytes received, at most 0 are allowed"),
        (_event_longer_than_it_pays_for, "bytes in one event, at most 32768 are allowed"),
        (_too_much_credit, f"bytes of credit, at most {CREDIT_LIMIT_BYTES} are allowed"),
    ],
)
async def test_a_node_that_breaks_a_rule_loses_its_session_and_is_told_which(
    edge: Edge, breach: Callable[[int], list[NodeFrame]], said: str
) -> None:
    async with joined(edge) as node:
        attempt = open_attempt(edge)
        opening = await node.opened()
        await node.send(*breach(opening.attempt_id))
        status, details = await node.refusal()
        assert status is grpc.StatusCode.INTERNAL
        assert details.startswith("protocol_error: ")
        assert said in details
        with pytest.raises(Fault) as caught:
            await attempt.head()
            while await attempt.next_event() or await attempt.next_chunk():
                pass
        assert caught.value.code is Code.NODE_LOST
    assert not edge.is_connected()
    async with running(dialer(edge.port)):
        await edge.until(edge.is_connected)
        assert await edge.ask(b"another") == b"another"


@pytest.mark.parametrize(
    ("attempt_id", "reason"), [(0, "never_opened"), (77, "never_opened"), (1, "late")]
)
async def test_frames_of_an_attempt_that_is_not_open_are_counted_and_ignored(
    edge: Edge, attempt_id: int, reason: str
) -> None:
    async with joined(edge) as node:
        open_attempt(edge)
        first = await node.opened()
        await node.send(NodeFrame(attempt_end=AttemptEnd(attempt_id=first.attempt_id)))
        await node.send(
            NodeFrame(response_head=ResponseHead(attempt_id=attempt_id, status=200)),
            NodeFrame(response_chunk=BodyChunk(attempt_id=attempt_id, content=b"x" * 100_000)),
            NodeFrame(run_event=RunEvent(attempt_id=attempt_id)),
            NodeFrame(upstream_started=UpstreamStarted(attempt_id=attempt_id)),
            NodeFrame(credit=Credit(attempt_id=attempt_id, window_bytes=2**31)),
            NodeFrame(attempt_end=AttemptEnd(attempt_id=attempt_id)),
        )
        await edge.until(lambda: edge.hub.views()[0].dropped_frames.get(reason) == 6)
        assert edge.is_connected()


async def test_a_batch_of_another_session_is_counted_and_ignored(edge: Edge) -> None:
    async with joined(edge) as node:
        attempt = open_attempt(edge)
        opening = await node.opened()
        end = NodeFrame(attempt_end=AttemptEnd(attempt_id=opening.attempt_id))
        await node.send(end, NodeFrame(hello=HELLO), epoch=node.epoch + 1)
        await node.send(end, epoch=0)
        await edge.until(lambda: edge.hub.views()[0].dropped_frames.get("old_epoch") == 3)
        assert edge.is_connected()
        attempt.cancel("caller_gone")


@pytest.mark.req("REF-9", "POOL-1")
async def test_an_answer_to_what_was_never_sent_makes_no_candidate(edge: Edge) -> None:
    async with scripted(edge) as node:
        await node.send(NodeFrame(hello=HELLO))
        node.epoch = (await node.read()).session_epoch
        for generation in (0, 2, 2**63):
            answer = NodeConfigAnswer(generation=generation, is_acknowledged=True)
            await node.send(NodeFrame(config_answer=answer))
        await edge.until(lambda: edge.hub.views()[0].dropped_frames.get("unasked") == 3)
        assert not edge.is_connected()


@pytest.mark.req("NODE-6")
async def test_a_message_over_the_limit_ends_the_session_that_sent_it_and_no_more(
    edge: Edge,
) -> None:
    async with scripted(edge) as node:
        await node.join()
        await edge.until(edge.is_connected)
        attempt = open_attempt(edge)
        await node.opened()
        huge = BodyChunk(attempt_id=1, content=bytes(MAX_MESSAGE_BYTES + 1))
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await node.send(NodeFrame(response_chunk=huge))
        status, details = await node.refusal()
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the limit is" in details
        with pytest.raises(Fault) as caught:
            await attempt.head()
        assert caught.value.code is Code.NODE_LOST
    async with running(dialer(edge.port)):
        await edge.until(edge.is_connected)
        assert await edge.ask(b"another") == b"another"
