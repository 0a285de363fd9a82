"""What a node meets at its edge's address: later versions, and edges that break the rules.

Each scripted edge serves one session after the other; what a node does next shows what it made of
the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from iop.runtime_pb2 import (
    AttemptOpen,
    BodyChunk,
    Cancel,
    Credit,
    EdgeBatch,
    EdgeFrame,
    Fault,
    NodeBatch,
    NodeFrame,
    ProviderTunnelRequest,
    RunRequest,
    Welcome,
)
from iop_node.adapters.base import Responder, RunCall, TextDelta, ToolCallDelta
from iop_node.link.dialer import Dialer
from iop_node.runtime.router import Attempt
from iop_shared.session.flow import CREDIT_LIMIT_BYTES, INITIAL_WINDOW_BYTES
from tests.wire.runtime_pb2_grpc import NodeLinkServicer, add_NodeLinkServicer_to_server

from .official import SERVER_OPTIONS
from .rig import dialer, echo, running

UNKNOWN_FIELD = b"\xfa\x07\x03abc"  # field 127, three bytes: of no version yet


def welcome(**changes: int) -> Welcome:
    sane = {
        "protocol": 1,
        "session_epoch": 7,
        "heartbeat_interval_ms": 4000,
        "silence_limit_ms": 12_000,
        "initial_window_bytes": INITIAL_WINDOW_BYTES,
    }
    return Welcome(boot_id="scripted", node_id="gpu-a", **{**sane, **changes})


def tunnel(attempt_id: int, **fields: Any) -> EdgeFrame:
    request = ProviderTunnelRequest(adapter="a", target="t", body=b"asked")
    return EdgeFrame(attempt_open=AttemptOpen(attempt_id=attempt_id, tunnel=request, **fields))


class ScriptedSession:
    """The edge's end of one session, once the node has said hello."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[NodeFrame] = asyncio.Queue()
        self.outgoing: asyncio.Queue[EdgeBatch | None] = asyncio.Queue()
        self.frames: list[NodeFrame] = []

    async def hear(self, batches: AsyncIterator[NodeBatch]) -> None:
        """Take in what the node says; once it says no more, the session ends."""
        async for batch in batches:
            for frame in batch.frames:
                self._arrived.put_nowait(frame)
        self.outgoing.put_nowait(None)

    def send(self, *frames: EdgeFrame, epoch: int = 7) -> None:
        self.outgoing.put_nowait(EdgeBatch(session_epoch=epoch, frames=frames))

    async def until(self, kind: str, claim: Callable[[Any], bool] = lambda frame: True) -> Any:
        """The first frame of that kind for which the claim holds."""
        while True:
            for frame in self.frames:
                if frame.HasField(kind) and claim(getattr(frame, kind)):  # type: ignore[arg-type]
                    return getattr(frame, kind)
            self.frames.append(await self._arrived.get())

    async def whole_answer(self, attempt_id: int) -> tuple[bytes, Fault | None]:
        """All body bytes of an attempt, and the fault that it ended by."""
        content = b""
        place = 0
        while True:
            while place == len(self.frames):
                self.frames.append(await self._arrived.get())
            frame, place = self.frames[place], place + 1
            kind = frame.WhichOneof("frame")
            if kind is None or getattr(getattr(frame, kind), "attempt_id", None) != attempt_id:
                continue
            if kind == "attempt_end":
                end = frame.attempt_end
                return content, end.fault if end.HasField("fault") else None
            if kind in ("response_head", "response_chunk"):
                part = getattr(frame, kind)
                content += part.content
                if part.last:
                    return content, None

    async def next_frame(self) -> NodeFrame:
        """The next frame, which nobody else will see."""
        return await self._arrived.get()


class ScriptedEdge(NodeLinkServicer):
    def __init__(self) -> None:
        self.sessions: asyncio.Queue[ScriptedSession] = asyncio.Queue()

    async def Session(
        self, request_iterator: AsyncIterator[NodeBatch], context: Any
    ) -> AsyncIterator[EdgeBatch]:
        hello = await anext(request_iterator)
        assert hello.frames[0].HasField("hello")
        session = ScriptedSession()
        self.sessions.put_nowait(session)
        hearing = asyncio.create_task(session.hear(request_iterator))
        try:
            while (batch := await session.outgoing.get()) is not None:
                yield batch
        finally:
            hearing.cancel()

    async def next_session(self) -> ScriptedSession:
        return await self.sessions.get()

    async def joined(self) -> ScriptedSession:
        session = await self.next_session()
        session.send(EdgeFrame(welcome=welcome()))
        await session.until("config_answer")
        return session


class World:
    def __init__(self, edge: ScriptedEdge, node: Dialer) -> None:
        self.edge = edge
        self.node = node


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as made:
        yield made


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    edge = ScriptedEdge()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_NodeLinkServicer_to_server(edge, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    node = dialer(port)
    try:
        async with asyncio.timeout(30), running(node):
            yield World(edge, node)
    finally:
        await server.stop(0)


def _lost(logs: Any) -> list[str]:
    return [entry["reason"] for entry in logs if entry["event"] == "edge_lost"]


@pytest.mark.req("NODE-6")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": 2}, "the edge wants to speak protocol 2, this node speaks 1 to 1"),
        ({"protocol": 0}, "the edge wants to speak protocol 0, this node speaks 1 to 1"),
        ({"silence_limit_ms": 4000}, "a heartbeat every 4000 ms needs a longer silence limit"),
        ({"heartbeat_interval_ms": 0}, "a heartbeat every 0 ms needs a longer silence limit"),
        ({"initial_window_bytes": 0}, "a window begins with 16384 to"),
        ({"initial_window_bytes": 2**32 - 1}, "a window begins with 16384 to"),
    ],
)
async def test_a_welcome_that_holds_no_session_is_told_and_tried_again(
    world: World, changes: dict[str, int], said: str
) -> None:
    with capture_logs() as logs:
        session = await world.edge.next_session()
        session.send(EdgeFrame(welcome=welcome(**changes)))
        later = await world.edge.joined()
    assert any(reason.startswith("protocol_error: ") and said in reason for reason in _lost(logs))
    later.send(tunnel(1))
    assert (await later.whole_answer(1))[0] == b"asked"


async def test_a_frame_before_the_welcome_is_no_welcome(world: World) -> None:
    with capture_logs() as logs:
        (await world.edge.next_session()).send(tunnel(1))
        await world.edge.joined()
    assert _lost(logs) == ["the edge's first frame was no welcome"]


def _second_welcome() -> list[EdgeFrame]:
    return [EdgeFrame(welcome=welcome())]


def _opened_twice() -> list[EdgeFrame]:
    return [tunnel(1, chunked_body_bytes=9), tunnel(1, chunked_body_bytes=9)]


def _over_credit() -> list[EdgeFrame]:
    chunk = BodyChunk(attempt_id=1, content=b"x" * (INITIAL_WINDOW_BYTES // 2 + 1))
    return [tunnel(1, chunked_body_bytes=10**6), *[EdgeFrame(request_chunk=chunk)] * 2]


def _too_much_credit() -> list[EdgeFrame]:
    credit = Credit(attempt_id=1, window_bytes=CREDIT_LIMIT_BYTES)
    return [tunnel(1, chunked_body_bytes=10**6), EdgeFrame(credit=credit)]


@pytest.mark.req("NODE-6", "NODE-7", "NODE-8")
@pytest.mark.parametrize(
    ("breach", "said"),
    [
        (_second_welcome, "a greeting frame while the session is open"),
        (_opened_twice, "attempt 1 was opened twice"),
        (_over_credit, "32769 bytes received, at most 32767 are allowed"),
        (_too_much_credit, f"bytes of credit, at most {CREDIT_LIMIT_BYTES} are allowed"),
    ],
)
async def test_an_edge_that_breaks_a_rule_is_told_which_and_dialled_again(
    world: World, breach: Callable[[], list[EdgeFrame]], said: str
) -> None:
    with capture_logs() as logs:
        session = await world.edge.joined()
        session.send(*breach())
        goodbye = await session.until("goodbye")
        later = await world.edge.joined()
    assert goodbye.reason.startswith("protocol_error: ")
    assert said in goodbye.reason
    assert _lost(logs) == [goodbye.reason]
    later.send(tunnel(1))
    assert (await later.whole_answer(1))[0] == b"asked"


async def test_what_names_no_open_attempt_and_what_is_unknown_is_counted_and_ignored(
    world: World,
) -> None:
    session = await world.edge.joined()
    session.send(
        EdgeFrame.FromString(UNKNOWN_FIELD),
        EdgeFrame(cancel=Cancel(attempt_id=5)),
        EdgeFrame(credit=Credit(attempt_id=5, window_bytes=2**31)),
        EdgeFrame(request_chunk=BodyChunk(attempt_id=5, content=b"x" * 100_000)),
    )
    session.send(EdgeFrame(welcome=welcome()), tunnel(9), epoch=6)
    newer = AttemptOpen.FromString(tunnel(1).attempt_open.SerializeToString() + UNKNOWN_FIELD)
    session.send(EdgeFrame(attempt_open=newer))
    assert await session.whole_answer(1) == (b"asked", None)
    assert world.node.dropped_frames == {"unknown": 1, "late": 3, "old_epoch": 2}


@pytest.mark.parametrize(
    "opening",
    [
        AttemptOpen(attempt_id=1),
        AttemptOpen.FromString(b"\x08\x01" + UNKNOWN_FIELD),
        AttemptOpen(attempt_id=1, chunked_body_bytes=4, run=RunRequest(adapter="a")),
    ],
    ids=["no work", "unknown work", "garbled run"],
)
async def test_work_that_a_node_does_not_understand_ends_with_a_fault_and_nothing_else(
    world: World, opening: AttemptOpen
) -> None:
    session = await world.edge.joined()
    session.send(
        EdgeFrame(attempt_open=opening),
        EdgeFrame(request_chunk=BodyChunk(attempt_id=1, content=b"\xff\xff\xff\xff", last=True)),
    )
    _, fault = await session.whole_answer(1)
    assert fault is not None
    assert (fault.code, fault.upstream_may_have_started) == ("internal", False)
    session.send(tunnel(2))
    assert (await session.whole_answer(2))[0] == b"asked"


@pytest.mark.req("NODE-6", "NODE-8")
async def test_a_delta_of_many_megabytes_crosses_in_pieces_and_the_session_lives(
    world: World,
) -> None:
    text, arguments = "강" * 6_000_000, "7" * 1_000_000

    async def talkative(attempt: Attempt, out: Responder) -> None:
        if not isinstance(attempt.work, RunCall):
            return await echo(attempt, out)
        await out.event(TextDelta(text))
        await out.event(ToolCallDelta(index=3, id="c", name="f", arguments_json=arguments))
        await out.event(ToolCallDelta(index=4, id="c" * 100_000))
        return None

    world.node._ports.execute = talkative  # type: ignore[method-assign]
    session = await world.edge.joined()
    session.send(EdgeFrame(attempt_open=AttemptOpen(attempt_id=1, run=RunRequest(adapter="a"))))
    said, called, ended = [], [], None
    while ended is None:
        frame = await session.next_frame()
        if frame.HasField("run_event"):
            session.send(EdgeFrame(credit=Credit(attempt_id=1, window_bytes=16 * 1024)))
            event = frame.run_event
            (said if event.HasField("text_delta") else called).append(event)
            assert event.ByteSize() < 32 * 1024
        elif frame.HasField("attempt_end"):
            ended = frame.attempt_end
    assert "".join(event.text_delta for event in said) == text
    calls = [event.tool_call_delta for event in called]
    assert (calls[0].id, calls[0].name, {call.index for call in calls}) == ("c", "f", {3})
    assert "".join(call.arguments_json for call in calls) == arguments
    # What cannot be cut fails its own run.
    assert ended.fault.code == "upstream_invalid"
    session.send(tunnel(2))
    assert (await session.whole_answer(2))[0] == b"asked"


@pytest.mark.req("NODE-6")
async def test_an_edge_that_ends_every_session_at_once_is_dialled_ever_more_slowly(
    world: World,
) -> None:
    for failures in range(4):
        session = await world.edge.next_session()
        assert world.node._backoff.failures == failures
        session.send(EdgeFrame(welcome=welcome()))
        session.outgoing.put_nowait(None)
