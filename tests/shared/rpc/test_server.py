"""A server of ours on real sockets, with clients of ours, official ones, and attackers."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)
from structlog.testing import capture_logs

from iop_shared.rpc import connection, server, stalls
from iop_shared.rpc.client import ClientConnection
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.frames import PREFACE
from iop_shared.rpc.messages import prefixed
from iop_shared.rpc.rules import MAX_HEADERS_BYTES, MAX_STREAMS
from iop_shared.rpc.stream import FIRST_WINDOW_BYTES, WINDOW_BYTES

from .rig import MAX_MESSAGE_BYTES, REQUEST, Served, data, message, raw, serving, window

pytestmark = pytest.mark.usefixtures("errors")

TEXT = "naïve — 壊れた 💥 100%\n"


# -- with clients of ours ------------------------------------------------------------------------


async def test_messages_come_back_in_their_order(served: Served) -> None:
    async with served.calling("/t/echo") as call:
        sent = [bytes([size % 251]) * size for size in (0, 1, 300, 16_384, 65_531, 65_532, 200_000)]
        for content in sent:
            call.send(content)
        call.connection.end(call)
        assert [await call.read() for _ in sent] == sent
        assert await call.read() is None
        assert (call.is_over, call.failure) == (True, None)


async def test_the_longest_message_passes_and_one_byte_more_does_not(served: Served) -> None:
    async with served.calling("/t/count") as call:
        call.send(bytes(MAX_MESSAGE_BYTES))
        call.connection.end(call)
        assert await call.read() == str(MAX_MESSAGE_BYTES).encode()
    async with served.calling("/t/count") as call:
        call.send(bytes(MAX_MESSAGE_BYTES + 1))
        with pytest.raises(RpcError) as caught:
            await call.read()
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE_BYTES + 1) in caught.value.details


async def test_many_answers_wait_for_their_reader(served: Served) -> None:
    async with served.calling("/t/many") as call:
        call.send(b"40 100000")
        far = await served.handlers.calls.get()
        heard = []
        while (answer := await call.read()) is not None:
            heard.append(int.from_bytes(answer[:4], "big"))
            assert far.unsent_bytes <= 100_009
            assert call.held_bytes <= WINDOW_BYTES
    assert heard == list(range(40))


async def test_many_calls_of_one_connection_run_side_by_side(served: Served) -> None:
    one = await served.connect()
    calls = [
        one.call("test", "/t/echo", (), max_message_bytes=MAX_MESSAGE_BYTES)
        for _ in range(MAX_STREAMS)
    ]
    for number, call in enumerate(calls):
        call.send(bytes(30_000) + bytes([number]))
        one.end(call)
    for number, call in enumerate(calls):
        answer = await call.read()
        assert answer is not None
        assert answer[-1] == number
        assert await call.read() is None
    one.close("the test is over")
    await one.lost


async def test_a_refusal_is_told_in_any_language_and_with_what_comes_with_it(
    served: Served,
) -> None:
    text = b64encode(TEXT.encode()).decode()
    async with served.calling("/t/refuse", ("x-text-bin", text)) as call:
        with pytest.raises(RpcError) as caught:
            await call.read()
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert caught.value.details == TEXT
    assert caught.value.trailers == (("x-why", "because"),)


async def test_a_handler_that_breaks_tells_the_log_its_kind_and_the_caller_nothing(
    plain: Served,
) -> None:
    with capture_logs() as logs:
        async with plain.calling("/t/break") as call:
            with pytest.raises(RpcError) as caught:
                await call.read()
    assert [(line["event"], line["error"]) for line in logs] == [("handler_failed", "ValueError")]
    assert caught.value.code is StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    await plain.still_serves()


@pytest.mark.parametrize("timeout", ["0n", "1m"])
async def test_a_deadline_cuts_a_handler(served: Served, timeout: str) -> None:
    async with served.calling("/t/hold", ("grpc-timeout", timeout)) as call:
        with pytest.raises(RpcError) as caught:
            await call.read()
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", ["99999999H", "soon"])
async def test_a_deadline_that_is_far_or_none_cuts_nothing(plain: Served, timeout: str) -> None:
    async with plain.calling("/t/echo", ("grpc-timeout", timeout)) as call:
        call.send(b"x")
        assert await call.read() == b"x"


async def test_a_call_that_its_caller_breaks_off_is_left_by_its_handler(served: Served) -> None:
    async with served.calling("/t/hold") as call:
        await served.handlers.calls.get()
        call.fail(RpcError(StatusCode.CANCELLED, "enough"))
        assert await served.handlers.left.get() == "cancelled"
        assert served.connection().streams == {}


async def test_a_caller_that_vanishes_takes_its_calls_along(served: Served) -> None:
    async with served.calling("/t/hold") as call:
        far = await served.handlers.calls.get()
        call.connection.transport.abort()
        assert await served.handlers.left.get() == "cancelled"
    assert far.failure is not None
    assert far.failure.code is StatusCode.UNAVAILABLE


async def test_a_peer_is_known_by_its_address(plain: Served) -> None:
    async with plain.calling("/t/hold"):
        assert (await plain.handlers.calls.get()).peer == "127.0.0.1"


# -- with official clients -----------------------------------------------------------------------


@asynccontextmanager
async def official(served: Served, **options: int) -> AsyncIterator[grpc.aio.Channel]:
    given = {
        "grpc.use_local_subchannel_pool": 1,
        "grpc.enable_http_proxy": 0,
        "grpc.max_send_message_length": -1,
        "grpc.max_receive_message_length": -1,
        **options,
    }
    address = f"localhost:{served.port}"
    if served.tls is None:
        channel = grpc.aio.insecure_channel(address, options=tuple(given.items()))
    else:
        credentials = grpc.ssl_channel_credentials(served.tls.authority_pem)
        channel = grpc.aio.secure_channel(address, credentials, options=tuple(given.items()))
    async with channel:
        yield channel


@pytest.mark.parametrize("size", [0, 5, 70_000, MAX_MESSAGE_BYTES])
async def test_an_official_client_is_answered_once(served: Served, size: int) -> None:
    async with official(served) as channel:
        assert await channel.unary_unary("/t/echo")(bytes(size)) == bytes(size)


async def test_an_official_client_hears_a_stream(served: Served) -> None:
    async with official(served) as channel:
        heard = [answer async for answer in channel.unary_stream("/t/many")(b"300 5000")]
    assert [int.from_bytes(answer[:4], "big") for answer in heard] == list(range(300))
    assert {len(answer) for answer in heard} == {5004}


async def test_an_official_client_talks_back_and_forth(served: Served) -> None:
    async with official(served) as channel:
        call = channel.stream_stream("/t/echo")()
        for size in (1, 100_000, 0, 2_000_000, 30):
            await call.write(bytes(size))
            assert await call.read() == bytes(size)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_an_official_client_sends_a_stream(served: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield bytes(10_000)

    async with official(served) as channel:
        assert await channel.stream_unary("/t/count")(pieces()) == b"2000000"


async def test_an_official_client_hears_a_refusal_in_any_language(served: Served) -> None:
    async with official(served) as channel:
        metadata = (("x-text-bin", TEXT.encode()),)
        call = channel.unary_unary("/t/refuse")(b"", metadata=metadata)
        assert (await call.code(), await call.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            TEXT,
        )
        trailers = await call.trailing_metadata()
        assert dict(trailers or ())["x-why"] == "because"


async def test_an_official_client_hears_a_long_refusal(plain: Served) -> None:
    async with official(plain) as channel:
        text = "漢" * 1500
        metadata = (("x-text-bin", text.encode()),)
        call = channel.unary_unary("/t/refuse")(b"", metadata=metadata)
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert text.startswith(await call.details())


async def test_an_official_clients_deadline_ends_the_handler(served: Served) -> None:
    async with official(served) as channel:
        while served.handlers.calls.empty():  # it may pass before the call is there
            call = channel.unary_unary("/t/hold")(b"", timeout=0.1)
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await served.handlers.left.get() == "cancelled"


async def test_a_cancel_of_an_official_client_ends_the_handler(served: Served) -> None:
    async with official(served) as channel:
        call = channel.unary_unary("/t/hold")(b"")
        await served.handlers.calls.get()
        call.cancel()
        assert await served.handlers.left.get() == "cancelled"


async def test_an_official_clients_metadata_arrives(plain: Served) -> None:
    async with official(plain) as channel:
        metadata = (("x-one", "a"), ("x-one", "b"), ("x-bytes-bin", b"\x00\xff"))
        call = channel.unary_unary("/t/hold")(b"", metadata=metadata)
        headers = (await plain.handlers.calls.get()).headers
        assert headers["x-one"] == "a,b"
        assert headers["x-bytes-bin"].rstrip("=") == "AP8"
        call.cancel()


async def test_an_official_client_that_compresses_is_told_that_nobody_unpacks(
    plain: Served,
) -> None:
    async with official(plain) as channel:
        call = channel.unary_unary("/t/echo")(bytes(5000), compression=grpc.Compression.Gzip)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_official_client_is_told_what_is_no_method(plain: Served) -> None:
    async with official(plain) as channel:
        call = channel.unary_unary("/t/nothing")(b"")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_more_calls_than_run_at_once_wait_at_an_official_client(plain: Served) -> None:
    async with official(plain) as channel:
        calls = [channel.unary_unary("/t/hold")(b"") for _ in range(MAX_STREAMS)]
        for _ in calls:
            await plain.handlers.calls.get()
        late = channel.unary_unary("/t/echo")(b"late")
        calls[0].cancel()
        assert await late == b"late"
        for call in calls:
            call.cancel()


# -- what is refused -----------------------------------------------------------------------------


async def test_a_call_beyond_the_number_is_refused_and_the_others_live(plain: Served) -> None:
    async with plain.attacked() as peer:
        for number in range(MAX_STREAMS + 5):
            peer.send(peer.request(2 * number + 1, "/t/echo"))
        for number in range(MAX_STREAMS, MAX_STREAMS + 5):
            assert await peer.reset_code(2 * number + 1) == ErrorCodes.REFUSED_STREAM
        peer.send(message(1, b"x", ends=True))
        assert await peer.status(1) == (StatusCode.OK, "")
        peer.send(peer.request(1001, "/t/echo", ends=True))
        assert await peer.status(1001) == (StatusCode.OK, "")
    await plain.still_serves()


async def test_handlers_of_calls_that_were_broken_off_count_until_they_have_left(
    plain: Served,
) -> None:
    leave = asyncio.Event()

    async def linger(call: server.ServerCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await leave.wait()

    plain.server.methods = {**plain.server.methods, "/t/linger": server.Method(linger, 10)}
    async with plain.attacked() as peer:
        for number in range(1, 2 * server.MAX_HANDLERS, 2):
            peer.send(peer.request(number, "/t/linger"))
            await peer.barrier()
            peer.send(RstStreamFrame(number))
        await peer.barrier()
        peer.send(peer.request(1001, "/t/echo"))
        assert await peer.reset_code(1001) == ErrorCodes.REFUSED_STREAM
        leave.set()
        while plain.connection().handling:
            await peer.barrier()
        peer.send(peer.request(1003, "/t/echo", ends=True))
        assert await peer.status(1003) == (StatusCode.OK, "")


@pytest.mark.parametrize(
    "changed",
    [("content-type", "application/json"), ("content-type", "application/grpc-web"), None],
)
async def test_what_is_no_grpc_is_told_so_in_http(
    plain: Served, changed: tuple[str, str] | None
) -> None:
    headers = dict(REQUEST) | {":path": "/t/echo"}
    headers |= dict([changed]) if changed else {":method": "GET"}
    async with plain.attacked() as peer:
        peer.send(peer.headers(1, *headers.items()))
        answer = await peer.next(HeadersFrame, 1)
        assert answer.decoded == {":status": "415"}
        assert await peer.reset_code(1) == ErrorCodes.NO_ERROR
        await peer.barrier()
    await plain.still_serves()


async def test_two_tokens_are_not_one(plain: Served) -> None:
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/hold", ("authorization", "a"), ("authorization", "b")))
        await peer.barrier()
        assert (await plain.handlers.calls.get()).headers["authorization"] == "a,b"


async def test_a_status_that_cannot_be_said_resets_the_call(plain: Served) -> None:
    async def speak_badly(call: server.ServerCall) -> None:
        raise RpcError(StatusCode.NOT_FOUND, "gone", [(":status", "200")])

    plain.server.methods = {"/t/bad": server.Method(speak_badly, 10), **plain.server.methods}
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/bad"))
        assert await peer.reset_code(1) == ErrorCodes.INTERNAL_ERROR
    await plain.still_serves()


# -- attackers on sockets ------------------------------------------------------------------------


async def test_calls_are_cut_off_in_numbers_and_the_peer_is_sent_away(plain: Served) -> None:
    """CVE-2023-44487."""
    async with plain.attacked() as peer:
        for number in range(1, 6001, 2):
            peer.send(peer.request(number, "/t/hold"), RstStreamFrame(number))
        end = plain.connection()
        assert await peer.sent_away(end) == "too many frames without content"
        assert not end.handling
    assert plain.server.connections == set()
    await plain.still_serves()


@pytest.mark.parametrize(
    "frame",
    [PingFrame(0, bytes(8)), SettingsFrame(0, settings={4: 7}), DataFrame(1, b"")],
    ids=["pings", "settings", "empty data"],
)
async def test_a_flood_of_frames_ends_with_a_goodbye(
    plain: Served, frame: PingFrame | SettingsFrame | DataFrame
) -> None:
    """CVE-2019-9512, CVE-2019-9515, CVE-2019-9518."""
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/hold"))
        peer.send(frame.serialize() * 5000)
        assert await peer.sent_away(plain.connection()) == "too many frames without content"
    await plain.still_serves()


async def test_who_breaks_the_rules_is_logged_and_cannot_fill_the_log(plain: Served) -> None:
    with capture_logs() as logs:
        for _ in range(5):
            async with plain.attacked() as peer:
                peer.send(PingFrame(0, bytes(8)).serialize() * 5000)
                await peer.sent_away(plain.connection())
    lines = [line for line in logs if line["event"] == "grpc_connection_broken"]
    assert [line["times"] for line in lines] == [1, 2, 4]
    assert {line["reason"] for line in lines} == {"too many frames without content"}
    assert all(line["log_level"] == "warning" for line in lines)


async def test_answers_that_are_not_read_are_held_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_WAITING_BYTES", 4096)
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_S", 60.0)  # none of these calls is one
    async with (
        serving(send_buffer_bytes=4096) as up,
        up.attacked(receive_buffer_bytes=4096) as peer,
    ):
        peer.stop_reading()
        end = up.connection()
        number = 1
        while end.closed_reason is None:
            peer.send(peer.request(number, "/t/nothing", ends=True))
            number += 2
            await asyncio.sleep(0)
            assert end.transport.get_write_buffer_size() < 4096 + 100
        assert end.closed_reason == "the peer takes nothing of what it asks for"
        await up.still_serves()


async def test_a_window_that_stays_shut_holds_one_message_and_then_the_call_is_given_up(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "STALL_TIMEOUT_S", 0.02)
    async with plain.attacked({SettingsFrame.INITIAL_WINDOW_SIZE: 0}) as peer:
        peer.send(peer.request(1, "/t/many"), message(1, b"5 1000", ends=True))
        call = await plain.handlers.calls.get()
        assert call.unsent_bytes <= 1009
        assert await peer.status(1) == (StatusCode.UNAVAILABLE, "the peer takes nothing")
        await peer.barrier()
        assert plain.connection().streams == {}
        while plain.connection().handling:
            await peer.barrier()
    await plain.still_serves()


async def test_what_a_handler_has_left_behind_is_given_up_too(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call has ended but for the bytes that the peer does not take."""
    monkeypatch.setattr(stalls, "STALL_TIMEOUT_S", 0.02)
    async with plain.attacked({SettingsFrame.INITIAL_WINDOW_SIZE: 0}) as peer:
        peer.send(peer.request(1, "/t/count", ends=True))
        assert await peer.status(1) == (StatusCode.UNAVAILABLE, "the peer takes nothing")
        await peer.barrier()
        assert plain.connection().streams == plain.connection().blocked == {}
        assert plain.connection().handling == set()


async def test_a_socket_that_is_not_read_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "STALL_TIMEOUT_S", 0.02)
    async with served.calling("/t/many") as call:
        call.connection.send_window = call.send_window = 1000
        call.window_bytes = 2**30
        call.connection.grant(call, 2**30)
        call.connection.write(b"\0\0\4\x08\0\0\0\0\0" + (2**30).to_bytes(4, "big"))
        call.send(b"1000 1000000")
        far = await served.handlers.calls.get()
        call.connection.transport.pause_reading()
        with suppress(asyncio.CancelledError):
            [task] = served.connection().handling
            await task
        assert far.failure is not None
        assert "takes nothing" in far.failure.details
    await served.still_serves()


async def test_a_window_opened_byte_by_byte_is_served_byte_by_byte(plain: Served) -> None:
    """CVE-2019-9511: it costs the server no more than the message that it holds."""
    async with plain.attacked({SettingsFrame.INITIAL_WINDOW_SIZE: 0}) as peer:
        peer.send(peer.request(1, "/t/many"), message(1, b"2 20", ends=True))
        call = await plain.handlers.calls.get()
        content = b""
        for _ in range(2 * (20 + 4 + 5)):
            peer.send(window(1, 1))
            content += (await peer.next(DataFrame, 1)).data
            assert call.unsent_bytes <= 29
        assert content == prefixed(bytes(24)) + prefixed(b"\0\0\0\1" + bytes(20))
        assert await peer.status(1) == (StatusCode.OK, "")


async def test_a_message_announced_as_four_gigabytes_is_refused_at_once(plain: Served) -> None:
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/hold"), data(1, b"\0\xff\xff\xff\xff"))
        code, details = await peer.status(1)
        assert (code, "4294967295" in details) == (StatusCode.RESOURCE_EXHAUSTED, True)
        assert plain.connection().held_bytes == 0
    await plain.still_serves()


@pytest.mark.parametrize(
    ("path", "most"), [("/t/hold", WINDOW_BYTES), ("/t/hold-short", FIRST_WINDOW_BYTES)]
)
async def test_what_no_handler_reads_is_held_up_to_a_window(
    plain: Served, path: str, most: int
) -> None:
    async with plain.attacked() as peer:
        peer.send(peer.request(1, path))
        call = await plain.handlers.calls.get()
        peer.send(*[message(1, bytes(1000)) for _ in range(most // 1005)])
        await peer.barrier()
        assert most - 1005 <= call.held_bytes + 5 * (most // 1005) <= most
        peer.send(message(1, bytes(1000)))
        assert await peer.reset_code(1) == ErrorCodes.FLOW_CONTROL_ERROR
        assert plain.connection().held_bytes == 0
    await plain.still_serves()


async def test_half_a_frame_and_half_of_headers_hold_what_they_are(plain: Served) -> None:
    async with plain.attacked() as peer:
        peer.send(b"\1\0\0\0\0\0\0\0\1" + bytes(65_000))
        async with plain.attacked() as other:
            block = HeadersFrame(1, bytes(16_000))
            other.send(block)
            await other.drain()
            ends = plain.server.connections
            while sum(end.held_bytes for end in ends) < 65_009 + 16_000:
                await asyncio.sleep(0)
            assert sum(end.held_bytes for end in ends) == 65_009 + 16_000
            await plain.still_serves()


async def test_whoever_says_nothing_is_sent_away(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(server, "HANDSHAKE_TIMEOUT_S", 0.02)
        async with raw(plain.port) as silent, raw(plain.port) as half:
            half.send(PREFACE[:20])
            assert await silent.goodbye() == await half.goodbye() == ErrorCodes.NO_ERROR
    await plain.still_serves()


async def test_a_connection_too_many_takes_the_place_of_the_longest_idle_one(
    plain: Served,
) -> None:
    plain.server._max_connections = 2
    async with plain.attacked() as first, plain.attacked() as second:
        await first.barrier()
        await second.barrier()
        async with plain.attacked() as third:
            await third.barrier()
            await first.rest()
            await second.barrier()
    while plain.server.connections:
        await asyncio.sleep(0)
    assert plain.server.idle == {}
    plain.server._max_connections = 10
    await plain.still_serves()


async def test_a_connection_without_a_call_is_sent_away_in_time(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_S", 0.02)
    async with raw(plain.port) as peer:
        peer.send(PREFACE, SettingsFrame(0))
        assert await peer.goodbye() == ErrorCodes.NO_ERROR


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 500, b"\x16\x03\x01\0\1\1"])
async def test_noise_on_a_port_with_tls_leaves_nothing_behind(
    tls_served: Served, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(server, "HANDSHAKE_TIMEOUT_S", 0.02)
        async with raw(tls_served.port) as peer:
            peer.send(noise)
            peer.writer.write_eof()
            with suppress(ConnectionError):
                await peer._reader.read()
    assert tls_served.server.connections == set()
    await tls_served.still_serves()


@pytest.fixture
async def tls_served(tls: object) -> AsyncIterator[Served]:
    async with serving(tls=tls) as up:  # type: ignore[arg-type]  # the fixture's own type
        yield up


async def test_a_client_that_trusts_nobody_is_no_error_of_the_server(tls_served: Served) -> None:
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(
            "localhost", tls_served.port, ssl=ssl.create_default_context()
        )
    await tls_served.still_serves()


# -- the end -------------------------------------------------------------------------------------


async def test_a_server_that_stops_tells_every_call_and_leaves_nothing(tls: object) -> None:
    async with serving(tls=tls) as up:  # type: ignore[arg-type]  # the fixture's own type
        one = await up.connect()
        calls = [one.call("test", "/t/hold", (), max_message_bytes=10) for _ in range(3)]
        for _ in calls:
            await up.handlers.calls.get()
        await up.server.stop()
        assert up.server.connections == set()
        assert not up.server._handling
        for call in calls:
            with pytest.raises(RpcError) as caught:
                await call.read()
            assert caught.value.code is StatusCode.UNAVAILABLE
            assert caught.value.details == "the server is stopping"
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", up.port)


async def test_a_call_that_comes_while_a_server_stops_is_refused(plain: Served) -> None:
    leave = asyncio.Event()

    async def linger(call: server.ServerCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await leave.wait()

    plain.server.methods = {**plain.server.methods, "/t/linger": server.Method(linger, 10)}
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/linger"))
        await peer.barrier()
        stopping = asyncio.create_task(plain.server.stop())
        peer.send(peer.request(3, "/t/echo"))
        assert await peer.status(3) == (StatusCode.UNAVAILABLE, "the server is stopping")
        assert not stopping.done()
        leave.set()
        assert await peer.status(1) == (StatusCode.UNAVAILABLE, "the server is stopping")
        assert await peer.goodbye() == ErrorCodes.NO_ERROR
        await stopping


async def test_a_peer_that_does_not_read_holds_up_no_stop_for_long(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PARTING_TIMEOUT_S", 0.02)
    async with plain.attacked({SettingsFrame.INITIAL_WINDOW_SIZE: 2**31 - 1}) as peer:
        peer.writer.transport.pause_reading()
        peer.send(window(0, 2**30), peer.request(1, "/t/many"))
        peer.send(message(1, b"1000 1000000", ends=True))
        await plain.handlers.calls.get()
        end = plain.connection()
        while not end.is_paused:
            await asyncio.sleep(0)
        await plain.server.stop()
        assert plain.server.connections == set()


async def test_a_graceful_goodbye_of_a_client_lets_its_call_end(plain: Served) -> None:
    async with plain.attacked() as peer:
        peer.send(peer.request(1, "/t/echo"), b"\0\0\x08\7\0\0\0\0\0" + bytes(8))
        peer.send(message(1, b"x", ends=True))
        assert (await peer.next(DataFrame, 1)).data == prefixed(b"x")
        assert await peer.status(1) == (StatusCode.OK, "")
        assert await peer.goodbye() == ErrorCodes.NO_ERROR


async def test_metadata_over_the_limit_refuses_its_call_and_no_other(plain: Served) -> None:
    async with plain.calling("/t/echo") as call:
        assert isinstance(call.connection, ClientConnection)
        metadata = [("x-long", "x" * MAX_HEADERS_BYTES)]
        long = call.connection.call("test", "/t/echo", metadata, max_message_bytes=1000)
        with pytest.raises(RpcError, match="the limit is 16384") as caught:
            await long.read()
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
        call.send(b"hello")
        assert await call.read() == b"hello"
