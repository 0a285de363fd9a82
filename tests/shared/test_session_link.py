"""A session on the stream of its call: what is taken when, and how each ends the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from iop.runtime_pb2 import Heartbeat, NodeBatch, NodeFrame
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.session.handshake import ProtocolError
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import Chunk
from iop_shared.session_end import SessionEnd
from iop_shared.session_link import SessionLink
from iop_shared.wire import node_batch
from tests.shared.rpc.joined import Joined

EPOCH = 7
HOUR_S = 3600.0


class End(SessionEnd[NodeFrame, NodeFrame, NodeBatch]):
    """Keeps what it hears; 0 breaks its rules, and 99 breaks itself."""

    def __init__(self) -> None:
        super().__init__(EPOCH, Liveness(asyncio.get_running_loop().time(), HOUR_S, 3 * HOUR_S))
        self.heard: list[int] = []

    def say(self, *numbers: int) -> None:
        for number in numbers:
            self.send_frame(1, frame(number))

    def _batch(self, items: Iterable[NodeFrame | Chunk]) -> NodeBatch:
        return node_batch(EPOCH, items)

    def _heartbeat(self, heartbeat: Heartbeat) -> NodeFrame:
        return NodeFrame(heartbeat=heartbeat)

    def _receive(self, frame: NodeFrame) -> None:
        if frame.heartbeat.sequence == 0:
            raise ProtocolError("none")
        if frame.heartbeat.sequence == 99:
            raise ValueError("Bearer secret")
        self.heard.append(frame.heartbeat.sequence)

    def _closed(self, reason: str) -> None: ...


def frame(number: int) -> NodeFrame:
    return NodeFrame(heartbeat=Heartbeat(sequence=number))


def message(*numbers: int) -> bytes:
    return node_batch(EPOCH, map(frame, numbers)).SerializeToString()


class Linked:
    """An end on the far side of a call, whose near side is the test's."""

    def __init__(self, *, is_linked: bool = True) -> None:
        self.pair = Joined(asyncio.get_running_loop())
        self.near, self.far = self.pair.call()
        self.end = End()
        self.link: Link
        if is_linked:
            self.make_link()

    def make_link(self) -> None:
        self.link = SessionLink(self.end, self.far, NodeBatch.FromString, peer="node")

    async def turn(self) -> None:
        """Until all that is due has happened on both sides."""
        for _ in range(3):
            await asyncio.sleep(0)
            self.pair.settle()

    async def batches(self) -> list[list[int]]:
        """What has arrived at the near side since it was last asked."""
        await self.turn()
        return [
            [each.heartbeat.sequence for each in NodeBatch.FromString(raw).frames]
            for raw in self.pair.arrived(self.near)
        ]


Link = SessionLink[NodeFrame, NodeFrame, NodeBatch]


async def test_what_one_turn_brings_leaves_together() -> None:
    linked = Linked()
    linked.end.say(1, 2)
    linked.end.say(3)
    assert linked.pair.back.writes == []
    assert await linked.batches() == [[1, 2, 3]]
    linked.end.say(4)
    assert await linked.batches() == [[4]]


async def test_what_waited_before_the_link_leaves_with_it() -> None:
    linked = Linked(is_linked=False)
    linked.end.say(1)
    linked.near.send(message(5))
    linked.pair.settle()
    linked.make_link()
    assert linked.end.heard == [5]
    assert await linked.batches() == [[1]]


async def test_nothing_is_taken_while_the_stream_cannot_send_it() -> None:
    linked = Linked()
    linked.far.send_window = 0
    linked.end.say(1)
    await linked.turn()
    linked.end.say(2)
    linked.end.say(3)
    assert await linked.batches() == []
    linked.pair.client.grant(linked.near, 1000)
    assert await linked.batches() == [[1], [2, 3]]


async def test_each_message_reaches_the_session_as_it_arrives() -> None:
    linked = Linked()
    linked.near.send(message(1, 2))
    linked.pair.settle()
    assert linked.end.heard == [1, 2]
    linked.near.send(message(3) * 2)
    linked.pair.settle()
    assert linked.end.heard == [1, 2, 3, 3]


async def test_a_peer_that_says_no_more_closes_the_session_and_still_hears_its_last_words() -> None:
    linked = Linked()
    linked.end.say(1)
    linked.pair.client.end(linked.near)
    linked.pair.settle()
    assert linked.link.over.done()
    assert linked.end.close_reason == "closed by the node"
    assert await linked.batches() == [[1]]
    assert await linked.link.said_all(HOUR_S)


async def test_a_call_that_fails_closes_the_session_with_the_reason() -> None:
    linked = Linked()
    linked.far.fail(RpcError(StatusCode.ABORTED, "enough"))
    assert linked.end.close_reason == "ABORTED: enough"
    assert linked.link.over.done()
    assert not await linked.link.said_all(HOUR_S)


async def test_a_lost_connection_closes_the_session() -> None:
    linked = Linked()
    linked.pair.server.connection_lost(None)
    assert linked.end.close_reason == "UNAVAILABLE: the connection was closed"
    assert not await linked.link.said_all(HOUR_S)


async def test_a_session_that_closes_says_all_that_it_still_has() -> None:
    linked = Linked()
    linked.end.say(1, 2)
    linked.end.close("drained")
    assert await linked.link.said_all(HOUR_S)
    assert await linked.batches() == [[1, 2]]
    assert not linked.far.is_over


async def test_last_words_that_the_peer_does_not_take_are_waited_for_so_long() -> None:
    linked = Linked()
    linked.far.send_window = 0
    linked.end.say(1)
    await linked.turn()
    linked.end.say(2)
    linked.end.close("drained")
    assert not await linked.link.said_all(0.01)


async def test_last_words_are_not_waited_for_once_the_call_is_over() -> None:
    """Also where the peer had said no more before."""
    linked = Linked()
    linked.far.send_window = 0
    linked.end.say(1)
    await linked.turn()
    linked.end.say(2)
    linked.pair.client.end(linked.near)
    linked.pair.settle()
    waiting = asyncio.create_task(linked.link.said_all(HOUR_S))
    await linked.turn()
    assert not waiting.done()
    linked.pair.server.connection_lost(None)
    assert not await waiting


@pytest.mark.parametrize("is_early", [True, False], ids=["waiting", "arriving"])
async def test_a_message_that_is_no_batch_ends_call_and_session(is_early: bool) -> None:
    linked = Linked(is_linked=not is_early)
    linked.near.send(b"\xff\xff")
    linked.pair.settle()
    if is_early:
        linked.make_link()
    assert linked.far.failure is not None
    assert linked.far.failure.code is StatusCode.INTERNAL
    assert linked.end.close_reason == "INTERNAL: a message that is no batch"
    assert linked.link.over.done()


async def test_a_session_that_breaks_ends_its_call_and_tells_nothing() -> None:
    linked = Linked()
    linked.near.send(message(99))
    linked.pair.settle()
    assert linked.end.close_reason == "INTERNAL: this end failed on a message"


async def test_a_peer_that_breaks_the_sessions_rules_closes_it_and_not_the_call() -> None:
    linked = Linked()
    linked.end.say(1)
    linked.near.send(message(0))
    linked.pair.settle()
    assert linked.end.close_reason == "protocol_error: none"
    assert await linked.link.said_all(HOUR_S)
    assert await linked.batches() == [[1]]


async def test_a_call_that_is_over_before_the_link_closes_the_session_at_once() -> None:
    linked = Linked(is_linked=False)
    linked.far.fail(RpcError(StatusCode.CANCELLED, "gone"))
    linked.make_link()
    assert linked.end.close_reason == "CANCELLED: gone"
    assert not await linked.link.said_all(HOUR_S)


async def test_a_long_queue_leaves_without_an_end_of_room() -> None:
    """Every batch longer than a frame, and more of them than the stack is deep."""
    linked = Linked()
    linked.pair.client.grant(linked.near, 2**30)
    linked.pair.client.write(b"\0\0\4\x08\0\0\0\0\0" + (2**30).to_bytes(4, "big"))
    await linked.turn()
    heard = 0

    def count(content: bytes) -> None:
        nonlocal heard
        heard += sum(
            len(each.response_chunk.content) for each in NodeBatch.FromString(content).frames
        )

    linked.near.deliver_to(count)
    linked.pair.server.pause_writing()
    for _ in range(1500):
        linked.end.send_body(1, bytes(40_000))
    await linked.turn()
    linked.pair.server.resume_writing()
    await linked.turn()
    assert heard == 1500 * 40_000
