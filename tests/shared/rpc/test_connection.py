"""What a peer may not do, and what it may: frames that it has written itself, and the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    AltSvcFrame,
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_shared.rpc import connection, frames
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.frames import PREFACE, head
from iop_shared.rpc.messages import prefixed
from iop_shared.rpc.patience import BURST
from iop_shared.rpc.rules import MAX_BORNE_HEADERS_BYTES
from iop_shared.rpc.stream import WINDOW_BYTES

from .joined import Called, Joined, Wire, joined

CALM = ErrorCodes.ENHANCE_YOUR_CALM
CLOSED = ErrorCodes.STREAM_CLOSED
FLOW = ErrorCodes.FLOW_CONTROL_ERROR
LENGTH = ErrorCodes.FRAME_SIZE_ERROR
PROTOCOL = ErrorCodes.PROTOCOL_ERROR

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t/t"),
    (":authority", "test"),
    ("content-type", "application/grpc"),
)
GREETING = (PREFACE, SettingsFrame(0))


def frame(kind: int, flags: int, stream_id: int, content: bytes) -> bytes:
    return head(kind, flags, stream_id, len(content)) + content


class Attacker:
    """Says bytes to one end of ours and reads what it answers."""

    def __init__(self, end: Connection, wire: Wire) -> None:
        self.end = end
        self.wire = wire
        self.encoder = Encoder()
        end.connection_made(wire)

    def say(self, *what: Frame | bytes) -> None:
        for each in what:
            self.end.data_received(each if isinstance(each, bytes) else each.serialize())

    def request(self, stream_id: int, *more: tuple[str, str], ends: bool = False) -> HeadersFrame:
        flags = ["END_HEADERS", "END_STREAM"] if ends else ["END_HEADERS"]
        return HeadersFrame(stream_id, self.encoder.encode([*HEADERS, *more]), flags=flags)

    def answers(self) -> list[Frame]:
        """What the end has written since it was last asked."""
        raw, self.wire.writes = b"".join(self.wire.writes), []
        said = []
        while raw:
            one, length = Frame.parse_frame_header(memoryview(raw[:9]))
            one.parse_body(memoryview(raw[9 : 9 + length]))
            raw = raw[9 + length :]
            said.append(one)
        return said

    def goodbyes(self) -> list[int]:
        return [each.error_code for each in self.answers() if isinstance(each, GoAwayFrame)]

    def resets(self) -> list[tuple[int, int]]:
        return [
            (each.stream_id, each.error_code)
            for each in self.answers()
            if isinstance(each, RstStreamFrame)
        ]


@pytest.fixture
def pair() -> Iterator[Joined]:
    with joined() as made:
        yield made


@pytest.fixture
def attacker(pair: Joined) -> Attacker:
    """It has greeted, and has one call."""
    made = Attacker(Called(pair.loop), Wire())
    made.say(*GREETING, made.request(1))
    made.answers()
    return made


def called(attacker: Attacker) -> Called:
    assert isinstance(attacker.end, Called)
    return attacker.end


# -- what ends the connection --------------------------------------------------------------------

BLOCK = Encoder().encode([*HEADERS])
NO_HEADERS = HeadersFrame(3, b"")
BROKEN: dict[str, tuple[Sequence[Frame | bytes], ErrorCodes]] = {
    "a frame too long": ((head(frames.DATA, 0, 1, frames.MAX_FRAME_BYTES + 1),), LENGTH),
    "data of the connection": ((frame(frames.DATA, 0, 0, b"x"),), PROTOCOL),
    "data of a call that is not yet": ((frame(frames.DATA, 0, 3, b"x"),), PROTOCOL),
    "data of a call that would be ours": ((frame(frames.DATA, 0, 2, b"x"),), PROTOCOL),
    "padding alone": ((frame(frames.DATA, frames.PADDED, 1, b"\5abc"),), PROTOCOL),
    "padding without a length": ((frame(frames.DATA, frames.PADDED, 1, b""),), PROTOCOL),
    "headers of the connection": ((frame(frames.HEADERS, 4, 0, BLOCK),), PROTOCOL),
    "headers of a call that would be ours": ((frame(frames.HEADERS, 4, 2, BLOCK),), PROTOCOL),
    "headers that are none": ((frame(frames.HEADERS, 4, 3, b"\xff\xff\xff\xff"),), PROTOCOL),
    "headers without a path": ((frame(frames.HEADERS, 4, 3, b"\x83"),), PROTOCOL),
    "headers twice": ((frame(frames.HEADERS, 4, 1, BLOCK),), PROTOCOL),
    "credit of nothing": ((frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)),), PROTOCOL),
    "credit of another length": ((frame(frames.WINDOW_UPDATE, 0, 1, bytes(3)),), LENGTH),
    "credit for a call that is not yet": ((WindowUpdateFrame(3, 1),), PROTOCOL),
    "credit without end": ((WindowUpdateFrame(0, 2**31 - 1),), FLOW),
    "settings of another length": ((frame(frames.SETTINGS, 0, 0, bytes(5)),), LENGTH),
    "settings of a call": ((frame(frames.SETTINGS, 0, 1, b""),), PROTOCOL),
    "an answer to settings with content": ((frame(frames.SETTINGS, 1, 0, bytes(6)),), PROTOCOL),
    "a window too wide": ((SettingsFrame(0, settings={4: 2**31}),), FLOW),
    "a window that makes a call's too wide": (
        (WindowUpdateFrame(1, 1000), SettingsFrame(0, settings={4: 2**31 - 1})),
        FLOW,
    ),
    "frames too short": ((SettingsFrame(0, settings={5: 16_383}),), PROTOCOL),
    "a push that is neither on nor off": ((SettingsFrame(0, settings={2: 2}),), PROTOCOL),
    "too many settings": ((frame(frames.SETTINGS, 0, 0, bytes(6 * 33)),), CALM),
    "a ping of another length": ((frame(frames.PING, 0, 0, bytes(7)),), LENGTH),
    "a ping of a call": ((frame(frames.PING, 0, 1, bytes(8)),), PROTOCOL),
    "a goodbye of another length": ((frame(frames.GOAWAY, 0, 0, bytes(7)),), LENGTH),
    "a goodbye of a call": ((frame(frames.GOAWAY, 0, 1, bytes(8)),), PROTOCOL),
    "a reset of another length": ((frame(0x3, 0, 1, bytes(3)),), LENGTH),
    "a reset of the connection": ((frame(0x3, 0, 0, bytes(4)),), PROTOCOL),
    "a priority of another length": ((frame(0x2, 0, 1, bytes(4)),), LENGTH),
    "a call that depends on itself": ((PriorityFrame(1, depends_on=1),), PROTOCOL),
    "a promise from a client": ((PushPromiseFrame(1, 2, BLOCK, flags=["END_HEADERS"]),), PROTOCOL),
    "a continuation of nothing": ((ContinuationFrame(1, b"", flags=["END_HEADERS"]),), PROTOCOL),
    "a continuation of another call": ((NO_HEADERS, ContinuationFrame(5, b"")), PROTOCOL),
    "data amid headers": ((NO_HEADERS, DataFrame(1, b"x")), PROTOCOL),
    "credit amid headers": ((NO_HEADERS, WindowUpdateFrame(1, 1)), PROTOCOL),
    "a ping amid headers": ((NO_HEADERS, PingFrame(0, bytes(8))), PROTOCOL),
    "a goodbye amid headers": ((NO_HEADERS, GoAwayFrame(0)), PROTOCOL),
    "an unknown frame amid headers": ((NO_HEADERS, frame(0xEE, 0, 0, b"x")), PROTOCOL),
    "headers amid headers": ((NO_HEADERS, HeadersFrame(5, BLOCK, flags=["END_HEADERS"])), PROTOCOL),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_ends_the_connection_with_one_goodbye(attacker: Attacker, case: str) -> None:
    what, code = BROKEN[case]
    [call] = called(attacker).calls
    attacker.say(*what)
    assert attacker.goodbyes() == [code]
    assert attacker.wire.is_closed
    assert call.failure is not None
    assert call.failure.code is StatusCode.UNAVAILABLE
    attacker.say(PingFrame(0, bytes(8)), b"\0" * 100)
    assert (attacker.answers(), attacker.end.held_bytes) == ([], 0)


@pytest.mark.parametrize(
    "what",
    [
        (b"GET / HTTP/1.1\r\n",),
        (PREFACE[:10], b"nonsense"),
        (PREFACE, PingFrame(0, bytes(8))),
        (PREFACE, HeadersFrame(1, BLOCK, flags=["END_HEADERS"])),
        (PREFACE, SettingsFrame(0, flags=["ACK"])),
        (PREFACE, frame(frames.DATA, 0, 1, b"x")),
    ],
)
def test_what_does_not_begin_as_http2_does_is_hung_up_on(
    pair: Joined, what: Sequence[Frame | bytes]
) -> None:
    attacker = Attacker(Called(pair.loop), Wire())
    attacker.say(*what)
    assert attacker.goodbyes() == [PROTOCOL]
    assert not attacker.end.has_heard


def test_a_preface_may_come_byte_by_byte(pair: Joined) -> None:
    attacker = Attacker(Called(pair.loop), Wire())
    for byte in PREFACE + SettingsFrame(0).serialize():
        attacker.say(bytes([byte]))
    assert attacker.end.has_heard


def test_no_words_of_a_peer_are_in_what_is_said_of_it(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.say(attacker.request(3, ("authorization", "Bearer secret\0")))
    assert attacker.end.closed_reason == "the peer broke a rule: ProtocolError"
    assert "secret" not in str(call.failure)


def test_a_lost_connection_says_what_the_system_said_and_no_more(pair: Joined) -> None:
    for lost, reason in (
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (ValueError("Bearer secret"), "ValueError"),
        (None, "the connection was closed"),
    ):
        end = Called(pair.loop)
        end.connection_made(Wire())
        end.connection_lost(lost)
        assert reason in (end.closed_reason or "")
        assert "secret" not in (end.closed_reason or "")


# -- what ends a call, and not its connection ----------------------------------------------------


def test_data_after_the_end_is_a_closed_call(attacker: Attacker) -> None:
    attacker.say(DataFrame(1, prefixed(b"x"), flags=["END_STREAM"]), DataFrame(1, b"x"))
    assert attacker.resets() == [(1, CLOSED)]
    assert attacker.end.closed_reason is None


def test_an_end_after_the_end_is_a_closed_call(attacker: Attacker) -> None:
    end = DataFrame(1, flags=["END_STREAM"])
    attacker.say(end, end)
    assert attacker.resets() == [(1, CLOSED)]
    assert attacker.end.closed_reason is None


def test_headers_after_the_end_are_a_closed_call(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.say(DataFrame(1, flags=["END_STREAM"]), attacker.request(1, ends=True))
    assert attacker.resets() == [(1, CLOSED)]
    assert attacker.end.closed_reason is None
    assert call.failure is not None
    assert "after its end" in call.failure.details


def test_a_window_too_wide_ends_its_call(attacker: Attacker) -> None:
    attacker.say(WindowUpdateFrame(1, 2**31 - 1))
    assert attacker.resets() == [(1, FLOW)]
    assert attacker.end.closed_reason is None


def test_more_than_there_is_credit_for_ends_its_call_and_is_not_held(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    piece = DataFrame(1, prefixed(bytes(60_000)))
    for _ in range(40):
        attacker.say(piece)
        assert attacker.end.held_bytes <= WINDOW_BYTES + 65_536
    assert attacker.resets() == [(1, FLOW)]
    assert call.is_over
    assert attacker.end.closed_reason is None


# -- what is allowed -----------------------------------------------------------------------------

ALLOWED: dict[str, Sequence[Frame | bytes]] = {
    "a frame of an unknown kind": (frame(0xEE, 0xFF, 0, b"x"), frame(0x17, 0, 1, bytes(60_000))),
    "an alternative service": (AltSvcFrame(0, b"here", b"there"), AltSvcFrame(1, b"", b"there")),
    "unknown flags": (frame(frames.DATA, 0xF6, 1, b""),),
    "a priority of a call that is not yet": (PriorityFrame(9, depends_on=1),),
    "settings of unknown kinds": (SettingsFrame(0, settings={0xFA: 1, 8: 7}),),
    "an answer to settings that were not sent": (SettingsFrame(0, flags=["ACK"]),) * 3,
    "an answer to a ping that was not sent": (PingFrame(0, bytes(8), flags=["ACK"]),),
    "padding": (DataFrame(1, b"", pad_length=3, flags=["PADDED"]),),
    "a window of nothing": (SettingsFrame(0, settings={4: 0}),),
    "the widest window": (SettingsFrame(0, settings={4: 2**31 - 1}),),
    "a reset of a call that is not yet": (RstStreamFrame(9),),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_allowed_changes_nothing(attacker: Attacker, case: str) -> None:
    [call] = called(attacker).calls
    attacker.say(*ALLOWED[case], DataFrame(1, prefixed(b"x")))
    assert attacker.end.closed_reason is None
    assert Joined.read(call) == b"x"
    assert not attacker.resets()


@pytest.mark.parametrize("length", [b"0", b"7", b"1000000"])
def test_a_length_that_is_told_beforehand_is_nobodys_business(
    attacker: Attacker, length: bytes
) -> None:
    attacker.say(attacker.request(3, ("content-length", length.decode())))
    attacker.say(DataFrame(3, prefixed(b"x"), flags=["END_STREAM"]))
    call = called(attacker).calls[-1]
    assert (Joined.read(call), Joined.read(call)) == (b"x", None)
    assert attacker.end.closed_reason is None


def test_trailers_of_a_client_are_its_end(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    block = attacker.encoder.encode([("x-sum", "1")])
    attacker.say(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]))
    assert Joined.read(call) is None
    assert not call.is_over


def test_what_was_on_its_way_to_a_call_that_has_ended_is_nobodys(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    call.fail(RpcError(StatusCode.CANCELLED, "enough"))
    attacker.answers()
    for _ in range(BURST // 2 - 10):
        attacker.say(DataFrame(1, bytes(300)), WindowUpdateFrame(1, 300))
    attacker.say(DataFrame(1, b"x", flags=["END_STREAM"]), RstStreamFrame(1))
    assert attacker.end.closed_reason is None
    assert attacker.answers() == []


def test_late_words_of_many_calls_that_ended_are_nothing_to_be_borne(attacker: Attacker) -> None:
    for number in range(3, 4 * BURST, 2):
        attacker.say(attacker.request(number))
        called(attacker).calls[-1].fail(RpcError(StatusCode.CANCELLED, "enough"))
        attacker.say(WindowUpdateFrame(number, 6), DataFrame(number, b""))
        attacker.answers()
    assert attacker.end.closed_reason is None


def test_data_of_calls_that_have_ended_is_paid_back_to_the_connection(attacker: Attacker) -> None:
    called(attacker).calls[0].fail(RpcError(StatusCode.CANCELLED, "enough"))
    sent = 0
    for _ in range(300):
        attacker.say(DataFrame(1, bytes(60_000)))
        sent += 60_000
    granted = [each for each in attacker.answers() if isinstance(each, WindowUpdateFrame)]
    assert {each.stream_id for each in granted} == {0}
    assert sent - sum(each.window_increment for each in granted) < 8 * 1024 * 1024


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                frame,
                st.integers(0, 10),
                st.integers(0, 255),
                st.sampled_from([0, 1, 2, 3, 5]),
                st.one_of(st.binary(max_size=20), st.just(BLOCK)),
            ),
        ),
        max_size=12,
    )
)
def test_no_bytes_at_all_break_anything_but_the_rules(what: list[bytes]) -> None:
    with joined() as pair:
        attacker = Attacker(Called(pair.loop), Wire())
        attacker.say(*GREETING, attacker.request(1), *what)
        assert attacker.end.held_bytes < 70_000
        assert len(attacker.goodbyes()) <= 1


# -- floods --------------------------------------------------------------------------------------


def flood(attacker: Attacker, *what: Frame | bytes, times: int) -> None:
    """Until the connection is over, of which the peer reads nothing."""
    for _ in range(times):
        if attacker.end.closed_reason is not None:
            return
        attacker.say(*what)


IDLE: dict[str, Frame | bytes] = {
    "pings": PingFrame(0, bytes(8)),
    "answers to pings": PingFrame(0, bytes(8), flags=["ACK"]),
    "settings": SettingsFrame(0),
    "settings that change": SettingsFrame(0, settings={1: 0, 4: 100}),
    "answers to settings": SettingsFrame(0, flags=["ACK"]),
    "priorities": PriorityFrame(1, depends_on=0),
    "unknown frames": frame(0xEE, 0, 0, b""),
    "empty data": DataFrame(1, b""),
    "padding": DataFrame(1, b"", pad_length=200, flags=["PADDED"]),
    "empty data of a call that is over": DataFrame(3, b""),
    "data of a call that is over": DataFrame(3, b"x"),
    "credit": WindowUpdateFrame(0, 1),
    "credit of a call": WindowUpdateFrame(1, 1),
    "credit of a call that is over": WindowUpdateFrame(3, 1),
    "a message in crumbs": DataFrame(1, b"\0"),
    "resets": RstStreamFrame(3),
}


@pytest.mark.parametrize("case", IDLE)
def test_frames_that_carry_nothing_are_borne_up_to_a_number(attacker: Attacker, case: str) -> None:
    attacker.say(attacker.request(3), RstStreamFrame(3))
    flood(attacker, IDLE[case], times=BURST - 6)
    assert attacker.end.closed_reason is None
    flood(attacker, IDLE[case], times=BURST)
    assert attacker.goodbyes()[-1:] == [CALM]


def test_calls_that_are_broken_off_at_once_are_borne_up_to_a_number(attacker: Attacker) -> None:
    for number in range(3, 4 * BURST, 2):
        attacker.say(attacker.request(number), RstStreamFrame(number))
        assert len(attacker.end.streams) <= 1
        if attacker.end.closed_reason is not None:
            break
    assert attacker.goodbyes() == [CALM]


def test_headers_of_calls_that_were_broken_off_are_borne_up_to_a_number(
    attacker: Attacker,
) -> None:
    attacker.say(RstStreamFrame(1))
    for _ in range(2 * BURST):
        attacker.say(attacker.request(1, ends=True))
    assert attacker.goodbyes() == [CALM]


def test_whoever_is_spoken_to_may_ping_as_often(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    for _ in range(3 * BURST):
        call.send(b"x")
        attacker.say(PingFrame(0, bytes(8)), WindowUpdateFrame(0, 6), WindowUpdateFrame(1, 6))
        attacker.answers()
    assert attacker.end.closed_reason is None


def test_credit_alone_does_not_buy_pings(attacker: Attacker) -> None:
    flood(attacker, WindowUpdateFrame(0, 1), PingFrame(0, bytes(8)), times=2 * BURST)
    assert attacker.goodbyes() == [CALM]


def test_headers_are_bounded_before_they_are_whole(attacker: Attacker) -> None:
    attacker.say(HeadersFrame(3, bytes(MAX_BORNE_HEADERS_BYTES - 10)))
    assert attacker.end.held_bytes == MAX_BORNE_HEADERS_BYTES - 10
    attacker.say(ContinuationFrame(3, bytes(11)))
    assert attacker.goodbyes() == [CALM]


@pytest.mark.parametrize("content", [b"", b"\0"])
def test_headers_that_never_end_are_not_waited_for(attacker: Attacker, content: bytes) -> None:
    attacker.say(HeadersFrame(3, b""))
    flood(attacker, ContinuationFrame(3, content), times=200)
    assert attacker.goodbyes() == [PROTOCOL]


def test_headers_that_unpack_to_many_are_not_unpacked(attacker: Attacker) -> None:
    attacker.say(attacker.request(3, ("x-long", "x" * 3000)))
    bomb = attacker.encoder.encode([*HEADERS]) + attacker.encoder.encode([("x-long", "x" * 3000)])
    repeated = bomb[-1:] * 6000
    attacker.say(HeadersFrame(5, bomb + repeated, flags=["END_HEADERS"]))
    assert attacker.goodbyes() == [CALM]


def test_settings_cost_no_memory(attacker: Attacker) -> None:
    """Neither the unknown ones, nor a table of headers as large as it may be."""
    h2 = attacker.end._h2
    for number in range(400):
        known = {1: 2**32 - 1 if number % 2 else 0}
        unknown = {1000 + 30 * number + extra: extra for extra in range(30)}
        body = b"".join(
            code.to_bytes(2, "big") + value.to_bytes(4, "big")
            for code, value in (known | unknown).items()
        )
        attacker.say(frame(frames.SETTINGS, 0, 0, body))
        attacker.answers()
    assert attacker.end.closed_reason is None
    assert len(h2.remote_settings) < 10
    assert len(h2.encoder.table_size_changes) <= 2
    assert h2.encoder.header_table_size <= frames.MAX_TABLE_BYTES


def test_calls_that_are_over_are_remembered_up_to_a_number(attacker: Attacker) -> None:
    end = called(attacker)
    for number in range(3, 3000, 2):
        attacker.say(attacker.request(number, ends=True))
        end._h2.send_headers(number, [("grpc-status", "0")], end_stream=True)
        end._forget(end.calls.pop())
        attacker.answers()
    assert end.closed_reason is None
    assert len(end._h2._closed_streams) <= 1024
    assert len(end._h2.streams) < 200


def test_answers_that_nobody_reads_end_the_connection(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_WAITING_BYTES", 50_000)
    end = called(attacker)
    reasons = []
    for number in range(3, 10_000, 2):
        attacker.say(attacker.request(number, ends=True))
        if end.closed_reason is not None:
            reasons.append(end.closed_reason)
            break
        end._h2.send_headers(number, [("grpc-status", "0")], end_stream=True)
        end._forget(end.calls.pop())
        assert attacker.wire.get_write_buffer_size() <= 50_000
    assert reasons == ["the peer takes nothing of what it asks for"]
    assert attacker.wire.is_aborted


# -- windows that the peer changes ---------------------------------------------------------------


def test_a_window_that_shrinks_below_nothing_holds_back_what_is_sent(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    call.send(bytes(1000))
    attacker.answers()
    attacker.say(SettingsFrame(0, settings={4: 500}))
    assert call.send_window == 500 - 1005
    call.send(b"held")
    attacker.say(WindowUpdateFrame(1, 505))
    assert [each for each in attacker.answers() if isinstance(each, DataFrame)] == []
    attacker.say(WindowUpdateFrame(1, 4))
    [piece] = [each for each in attacker.answers() if isinstance(each, DataFrame)]
    assert len(piece.data) == 4
    attacker.say(SettingsFrame(0, settings={4: 1000}))
    [rest] = [each for each in attacker.answers() if isinstance(each, DataFrame)]
    assert piece.data + rest.data == prefixed(b"held")
    attacker.say(attacker.request(3))
    assert called(attacker).calls[-1].send_window == 1000


def test_frames_are_as_long_as_the_peer_takes_them(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.say(SettingsFrame(0, settings={5: 20_000}))
    attacker.answers()
    call.send(bytes(50_000))
    lengths = [len(each.data) for each in attacker.answers() if isinstance(each, DataFrame)]
    assert lengths == [20_000, 20_000, 10_005]
    attacker.say(SettingsFrame(0, settings={5: 2**24 - 1}))
    assert attacker.end.max_frame_bytes == frames.MAX_FRAME_BYTES


# -- peers that take nothing ---------------------------------------------------------------------


def test_a_call_whose_peer_takes_nothing_is_given_up_and_the_others_are_not(
    attacker: Attacker,
) -> None:
    attacker.say(attacker.request(3), SettingsFrame(0, settings={4: 0}))
    stalled, moving = called(attacker).calls
    stalled.send(bytes(100))
    moving.send(bytes(100))
    for _ in range(3):
        attacker.say(WindowUpdateFrame(3, 1))
        is_watched = attacker.end._give_up_stalled()
        assert is_watched
    assert stalled.failure is not None
    assert "takes nothing" in stalled.failure.details
    assert not moving.is_over
    attacker.say(WindowUpdateFrame(3, 1000))
    assert not attacker.end._give_up_stalled()


def test_a_connection_whose_peer_takes_nothing_is_given_up(attacker: Attacker) -> None:
    end, wire = attacker.end, attacker.wire
    wire.write(bytes(1000))
    end.pause_writing()
    assert end._give_up_stalled()
    end.resume_writing()
    end.pause_writing()
    assert end._give_up_stalled()
    wire.writes = [bytes(900)]
    assert end._give_up_stalled()
    assert not wire.is_aborted
    assert not end._give_up_stalled()
    assert wire.is_aborted


def test_a_call_is_not_blamed_for_what_the_connection_does_not_take(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.wire.write(bytes(1000))
    attacker.end.pause_writing()
    call.send(b"waits")
    for left in (900, 800, 700):
        attacker.wire.writes = [bytes(left)]
        assert attacker.end._give_up_stalled()
    assert not call.is_over


# -- goodbyes ------------------------------------------------------------------------------------


def test_a_server_that_goes_lets_the_calls_that_it_serves_end(pair: Joined) -> None:
    near, far = pair.call()
    goodbye = GoAwayFrame(0, last_stream_id=near.stream_id)
    pair.client.data_received(goodbye.serialize())
    with pytest.raises(RpcError) as caught:
        pair.client.call("test", "/t/t", (), max_message_bytes=1)
    assert caught.value.code is StatusCode.UNAVAILABLE
    near.send(b"still")
    pair.settle()
    assert pair.arrived(far) == [b"still"]
    far.send(b"said")
    pair.server._h2.send_headers(far.stream_id, [("grpc-status", "0")], end_stream=True)
    pair.server._write_h2()
    pair.settle()
    assert pair.arrived(near) == [b"said"]
    assert (near.is_over, near.failure) == (True, None)
    pair.turn()
    assert pair.out.is_closed


def test_a_server_that_goes_refuses_the_calls_that_it_has_not_seen(pair: Joined) -> None:
    seen, _ = pair.call()
    unseen, _ = pair.call()
    pair.client.data_received(GoAwayFrame(0, last_stream_id=seen.stream_id).serialize())
    assert unseen.failure is not None
    assert unseen.failure.code is StatusCode.UNAVAILABLE
    assert not seen.is_over


def test_a_client_that_goes_has_its_calls_served_to_their_end(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.say(GoAwayFrame(0), DataFrame(1, prefixed(b"x"), flags=["END_STREAM"]))
    assert (Joined.read(call), Joined.read(call)) == (b"x", None)
    assert not attacker.wire.is_closed
    call.fail(RpcError(StatusCode.CANCELLED, "enough"))
    attacker.end.loop.run_until_complete(_turn())
    assert attacker.wire.is_closed


async def _turn() -> None:
    pass


def test_a_goodbye_because_of_an_error_ends_every_call(attacker: Attacker) -> None:
    [call] = called(attacker).calls
    attacker.say(GoAwayFrame(0, error_code=0xB), GoAwayFrame(0, error_code=0xFFFF))
    assert attacker.end.closed_reason == "the peer went away: ENHANCE_YOUR_CALM"
    assert call.is_over


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCodes.CANCEL, StatusCode.CANCELLED),
        (ErrorCodes.REFUSED_STREAM, StatusCode.UNAVAILABLE),
        (ErrorCodes.ENHANCE_YOUR_CALM, StatusCode.RESOURCE_EXHAUSTED),
        (ErrorCodes.NO_ERROR, StatusCode.INTERNAL),
        (0xFFFF_FFFF, StatusCode.INTERNAL),
    ],
)
def test_a_reset_says_why(attacker: Attacker, code: int, status: StatusCode) -> None:
    [call] = called(attacker).calls
    attacker.say(RstStreamFrame(1, error_code=code))
    assert call.failure is not None
    assert call.failure.code is status
