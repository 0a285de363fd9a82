"""One call between two ends of ours, on wires that move when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.frames import DATA, FrameReader
from iop_shared.rpc.messages import PREFIX_BYTES, prefixed
from iop_shared.rpc.stream import FIRST_WINDOW_BYTES, WINDOW_BYTES, Stream

from .joined import MAX_MESSAGE_BYTES, Joined, NothingYet, joined

SIZES = st.one_of(st.integers(0, 400), st.integers(60_000, 70_000), st.just(MAX_MESSAGE_BYTES))
ACTIONS = st.one_of(
    st.tuples(st.just("send"), SIZES),
    st.tuples(st.just("deliver"), st.one_of(st.integers(1, 40), st.integers(1, 100_000))),
    st.tuples(st.just("answer"), st.integers(1, 100)),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
)


@pytest.fixture
def pair() -> Iterator[Joined]:
    with joined() as made:
        yield made


def data_bytes(pair: Joined) -> int:
    """Of the DATA frames that the client has written and that are not delivered."""
    frames = FrameReader().feed(b"".join(pair.out.writes))
    return sum(len(content) for kind, _, _, content in frames if kind == DATA)


# -- what is sent -------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_messages_arrive_whole_and_in_order_whatever_the_wires_do(
    actions: list[tuple[str, int]],
) -> None:
    with joined() as pair:
        near, far = pair.call()
        sent: list[bytes] = []
        heard: list[bytes] = []
        for action, number in actions:
            match action:
                case "send":
                    sent.append(len(sent).to_bytes(4, "big") + bytes(number))
                    sent[-1] = sent[-1][:MAX_MESSAGE_BYTES]
                    near.send(sent[-1])
                case "deliver":
                    pair.out.deliver(number)
                case "answer":
                    pair.back.deliver(number)
                case "read":
                    heard += pair.arrived(far)
                case "pause":
                    pair.client.pause_writing()
                case "resume":
                    pair.client.resume_writing()
            assert far.held_bytes <= WINDOW_BYTES + MAX_MESSAGE_BYTES + PREFIX_BYTES
        pair.client.resume_writing()
        pair.client.end(near)
        pair.settle()
        while fresh := pair.arrived(far):
            heard += fresh
            pair.settle()
        assert heard == sent
        assert pair.read(far) is None
        assert pair.client.closed_reason is pair.server.closed_reason is None
        assert near.unsent_bytes == far.held_bytes == 0
        assert pair.client.blocked == {}


def test_a_message_that_fits_leaves_as_one_frame_in_one_write(pair: Joined) -> None:
    near, _ = pair.call()
    near.send(b"abc")
    [raw] = pair.out.writes
    assert list(FrameReader().feed(raw)) == [(DATA, 0, near.stream_id, prefixed(b"abc"))]


def test_a_long_message_is_cut_at_the_peers_longest_frame(pair: Joined) -> None:
    near, _ = pair.call()
    pair.client.max_frame_bytes = 16_384
    near.send(bytes(40_000))
    lengths = [len(content) for *_, content in FrameReader().feed(b"".join(pair.out.writes))]
    assert lengths == [16_384, 16_384, 40_000 + PREFIX_BYTES - 2 * 16_384]


def test_no_more_is_sent_than_the_narrower_window_takes(pair: Joined) -> None:
    near, far = pair.call()
    near.send_window, pair.client.send_window = 1000, 700
    near.send(bytes(2000))
    assert data_bytes(pair) == 700
    assert (near.send_window, pair.client.send_window) == (300, 0)
    near.send(b"behind it")
    assert not near.is_writable
    pair.server.grant(far, 10_000)
    pair.settle()
    assert near.unsent_bytes == 2000 + PREFIX_BYTES - 700 + len(b"behind it") + PREFIX_BYTES
    pair.server.write(b"\0\0\4\x08\0\0\0\0\0" + (5000).to_bytes(4, "big"))
    pair.settle()
    assert pair.arrived(far) == [bytes(2000), b"behind it"]
    assert near.is_writable


def test_nothing_is_written_while_the_transport_holds_enough(pair: Joined) -> None:
    near, far = pair.call()
    pair.client.pause_writing()
    near.send(b"one")
    near.send(b"two")
    assert pair.out.writes == []
    assert not near.is_writable
    pair.client.resume_writing()
    pair.settle()
    assert pair.arrived(far) == [b"one", b"two"]


def test_streams_that_are_blocked_take_turns(pair: Joined) -> None:
    calls = [pair.call()[0] for _ in range(3)]
    pair.client.send_window = 0
    for call in calls:
        call.send(bytes(100))
    turns = []
    for _ in range(6):
        before = [call.unsent_bytes for call in calls]
        pair.client.data_received(b"\0\0\4\x08\0\0\0\0\0\0\0\0\x0a")
        moved = [was - call.unsent_bytes for was, call in zip(before, calls, strict=True)]
        assert sum(moved) == 10
        turns.append(moved.index(10))
    assert turns == [0, 1, 2, 0, 1, 2]


def test_what_waits_for_all_to_be_sent_happens_once_and_nothing_is_sent_after(
    pair: Joined,
) -> None:
    near, far = pair.call()
    near.send_window = 0
    near.send(b"last words")
    said: list[str] = []
    near.when_sent(lambda: said.append("first"))
    near.when_sent(lambda: said.append("second"))
    near.send(b"too late")
    assert (said, near.is_writable) == ([], False)
    pair.server.grant(far, 1000)
    pair.settle()
    assert (said, pair.arrived(far)) == (["second"], [b"last words"])
    near.send(b"too late")
    pair.settle()
    assert (said, pair.arrived(far), near.is_writable) == (["second"], [], False)


def test_an_end_that_is_said_twice_is_said_once(pair: Joined) -> None:
    near, far = pair.call()
    pair.client.end(near)
    pair.client.end(near)
    pair.settle()
    assert pair.read(far) is None
    far.send(b"and back")
    pair.settle()
    assert pair.arrived(near) == [b"and back"]
    assert pair.client.closed_reason is pair.server.closed_reason is None


@pytest.mark.usefixtures("errors")
async def test_a_writer_waits_for_its_window_and_is_told_when_the_call_is_over() -> None:
    pair = Joined(asyncio.get_running_loop())
    near, far = pair.call()
    near.send_window = 0
    writing = asyncio.create_task(near.write(b"x"))
    await asyncio.sleep(0)
    assert not writing.done()
    pair.server.grant(far, 1000)
    pair.settle()
    await writing
    near.send_window = 0
    writing = asyncio.create_task(near.write(b"x"))
    await asyncio.sleep(0)
    pair.client.connection_lost(None)
    with pytest.raises(RpcError) as caught:
        await writing
    assert caught.value.code is StatusCode.UNAVAILABLE
    with pytest.raises(RpcError):
        await near.write(b"after its end")


def test_whoever_waits_for_room_is_told_when_there_is_some_and_at_the_end(pair: Joined) -> None:
    near, far = pair.call()
    told: list[bool] = []
    near.on_writable = lambda: told.append(near.is_writable)
    near.send(b"fits at once")
    assert told == []
    near.send_window = 0
    near.send(b"waits")
    assert told == []
    pair.server.grant(far, 1000)
    pair.settle()
    assert told == [True]
    near.fail(RpcError(StatusCode.CANCELLED, "enough"))
    assert told == [True, False]


def test_a_long_queue_is_not_a_deep_one(pair: Joined) -> None:
    """Each message is longer than a frame, and whoever is told of room sends the next at once."""
    near, far = pair.call()
    pair.client.max_frame_bytes = 16_384
    pair.client.send_window = near.send_window = 2**31 - 1
    left = 3000
    far.is_heard = False  # what arrives is not this test's

    def more() -> None:
        nonlocal left
        while left and near.is_writable:
            left -= 1
            near.send(bytes(16_384))

    near.on_writable = more
    pair.client.pause_writing()
    near.send(b"waits")
    pair.client.resume_writing()
    assert left == 0


# -- what is heard ------------------------------------------------------------------------------


def test_what_nobody_reads_is_not_paid_for_and_stops_at_a_window(pair: Joined) -> None:
    near, far = pair.call()
    for _ in range(40):
        near.send(bytes(50_000))
    pair.settle()
    assert WINDOW_BYTES - 50_005 <= far.held_bytes <= WINDOW_BYTES
    assert near.unsent_bytes >= 40 * 50_005 - WINDOW_BYTES
    heard = 0
    while fresh := pair.arrived(far):
        heard += len(fresh)
        pair.settle()
    assert heard == 40


def test_a_message_longer_than_a_window_arrives(pair: Joined) -> None:
    near, far = pair.call()
    near.window_bytes = far.window_bytes = 1000
    far._half_window = 500
    near.send_window = 1000
    near.send(bytes(MAX_MESSAGE_BYTES))
    pair.settle()
    assert pair.arrived(far) == [bytes(MAX_MESSAGE_BYTES)]


def test_short_messages_have_a_short_window() -> None:
    with joined() as pair:
        near, _ = pair.call()
        assert near.window_bytes == WINDOW_BYTES
        assert Stream(pair.client, 9, 4096).window_bytes == FIRST_WINDOW_BYTES


def test_a_peer_that_sends_more_than_its_credit_is_broken_off(pair: Joined) -> None:
    near, far = pair.call()
    near.send_window = pair.client.send_window = 2**31 - 1
    for _ in range(40):
        near.send(bytes(50_000))
    pair.settle()
    assert far.failure is not None
    assert far.failure.code is StatusCode.INTERNAL
    assert far.held_bytes <= WINDOW_BYTES + 65_536
    assert near.failure is not None
    assert "FLOW_CONTROL_ERROR" in near.failure.details
    other, _ = pair.call()
    assert not other.is_over


def test_padding_counts_against_the_window_and_is_paid_back(pair: Joined) -> None:
    _, far = pair.call()
    granted: list[int] = []
    pair.server.grant = lambda stream, size: granted.append(size)  # type: ignore[method-assign]
    for _ in range(2100):
        far.receive(b"", 250)
    assert sum(granted) >= WINDOW_BYTES // 2
    assert 2100 * 250 - sum(granted) < WINDOW_BYTES // 2


def test_a_sink_has_what_came_before_it_and_what_comes_after(pair: Joined) -> None:
    near, far = pair.call()
    heard: list[bytes] = []
    near.send(b"before")
    pair.settle()
    far.deliver_to(heard.append)
    near.send(b"after")
    near.send(bytes(MAX_MESSAGE_BYTES))
    pair.settle()
    assert heard == [b"before", b"after", bytes(MAX_MESSAGE_BYTES)]


def test_what_waited_for_a_sink_is_paid_for(pair: Joined) -> None:
    near, far = pair.call()
    for _ in range(20):
        near.send(bytes(50_000))
    pair.settle()
    heard: list[bytes] = []
    far.deliver_to(heard.append)
    for _ in range(100):
        near.send(bytes(50_000))
    pair.settle()
    assert len(heard) == 120


@pytest.mark.parametrize("is_early", [True, False], ids=["waiting", "arriving"])
def test_a_sink_that_refuses_a_message_fails_its_call_with_that(
    pair: Joined, is_early: bool
) -> None:
    near, far = pair.call()
    refused: list[bytes] = []

    def refuse(message: bytes) -> None:
        refused.append(message)
        raise RpcError(StatusCode.INVALID_ARGUMENT, "not this")

    if not is_early:
        far.deliver_to(refuse)
    near.send(b"one")
    near.send(b"two")
    pair.settle()
    if is_early:
        far.deliver_to(refuse)
    pair.settle()
    assert refused == [b"one"]
    assert far.failure is not None
    assert far.failure.details == "not this"
    assert near.is_over


@pytest.mark.parametrize("is_early", [True, False], ids=["waiting", "arriving"])
def test_a_sink_that_breaks_fails_its_call_alone_and_tells_nothing(
    pair: Joined, is_early: bool
) -> None:
    near, far = pair.call()
    other, far_other = pair.call()

    def break_down(_: bytes) -> None:
        raise ValueError("Bearer secret")

    with capture_logs() as logs:
        if not is_early:
            far.deliver_to(break_down)
        near.send(b"one")
        pair.settle()
        if is_early:
            far.deliver_to(break_down)
    assert [(line["event"], line["error"]) for line in logs] == [("message_failed", "ValueError")]
    assert far.failure is not None
    assert far.failure.code is StatusCode.INTERNAL
    assert "secret" not in str(far.failure)
    other.send(b"still there")
    pair.settle()
    assert pair.arrived(far_other) == [b"still there"]


def test_a_sink_that_ends_its_call_hears_no_more(pair: Joined) -> None:
    near, far = pair.call()
    heard: list[bytes] = []

    def enough(message: bytes) -> None:
        heard.append(message)
        far.fail(RpcError(StatusCode.CANCELLED, "enough"))

    far.deliver_to(enough)
    far.receive(prefixed(b"one") + prefixed(b"two"))
    assert heard == [b"one"]
    assert near.stream_id not in pair.server.streams


def test_messages_that_came_before_a_failure_are_still_read(pair: Joined) -> None:
    near, far = pair.call()
    near.send(b"one")
    pair.settle()
    near.fail(RpcError(StatusCode.CANCELLED, "enough"))
    pair.settle()
    assert pair.read(far) == b"one"
    with pytest.raises(RpcError) as caught:
        pair.read(far)
    assert caught.value.code is StatusCode.CANCELLED


def test_an_end_amid_a_message_is_a_failure(pair: Joined) -> None:
    near, far = pair.call()
    near._unsent.append(memoryview(b"\0\0\0\0\x09half"))
    pair.client.end(near)
    pair.settle()
    assert far.failure is not None
    assert "amid a message" in far.failure.details


def test_each_ending_is_told_once(pair: Joined) -> None:
    near, far = pair.call()
    told: list[str] = []
    far.on_end = lambda: told.append("end")
    far.on_over = lambda: told.append("over")
    pair.client.end(near)
    pair.settle()
    assert told == ["end"]
    far.fail(RpcError(StatusCode.CANCELLED, "enough"))
    far.fail(RpcError(StatusCode.CANCELLED, "again"))
    far.closed(None)
    assert told == ["end", "over"]
    assert far.failure is not None
    assert far.failure.details == "enough"


def test_a_reader_that_waits_is_woken_by_nothing_but_a_message_or_an_end(pair: Joined) -> None:
    near, far = pair.call()
    with pytest.raises(NothingYet):
        pair.read(far)
    far.receive(prefixed(b"abc")[:6])
    with pytest.raises(NothingYet):
        pair.read(far)
    far.receive(prefixed(b"abc")[6:])
    assert pair.read(far) == b"abc"
    assert not near.is_over


def test_a_call_shows_what_it_holds(pair: Joined) -> None:
    near, far = pair.call()
    near.send(b"abc")
    pair.settle()
    assert repr(far) == f"Stream({far.stream_id}, open, held=3, unsent=0)"
    assert repr(pair.server) == "Called(open, 1 calls, held=3)"
    pair.server.close("enough")
    assert repr(pair.server) == "Called(enough, 0 calls, held=0)"
