"""A client of ours on real sockets: official servers, servers that break rules, and none."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
)

from iop_shared.rpc import connection
from iop_shared.rpc.client import DialError, dial
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.messages import prefixed
from iop_shared.rpc.stream import Stream

from .rig import MAX_MESSAGE_BYTES, Raw, Tls, message, raw_server, serving

pytestmark = pytest.mark.usefixtures("errors")

TEXT = "naïve — 壊れた 💥 100%"


@asynccontextmanager
async def calling(
    port: int, path: str, *metadata: tuple[str, str], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Stream]:
    dialled = await dial("localhost" if tls else "127.0.0.1", port, tls=tls)
    try:
        yield dialled.call("test", path, metadata, max_message_bytes=MAX_MESSAGE_BYTES)
    finally:
        dialled.close("the test is over")
        await dialled.lost


async def ending(call: Stream) -> RpcError:
    with pytest.raises(RpcError) as caught:
        while await call.read() is not None:
            pass
    return caught.value


# -- an official server --------------------------------------------------------------------------


class Official(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.metadata: list[tuple[str, Any]] = []
        self.cancelled = asyncio.Event()
        self.began = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.metadata = [(key, value) for key, value in details.invocation_metadata]
        return {
            "/t/echo": grpc.stream_stream_rpc_method_handler(self.echo),
            "/t/refuse": grpc.stream_stream_rpc_method_handler(self.refuse),
            "/t/hold": grpc.stream_stream_rpc_method_handler(self.hold),
        }.get(details.method)

    async def echo(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for content in messages:
            yield content

    async def refuse(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        context.set_trailing_metadata((("x-why", "because"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, TEXT)
        yield b""

    async def hold(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        yield b""


class OfficialServer:
    def __init__(self, server: grpc.aio.Server, port: int, tls: Tls | None) -> None:
        self.server = server
        self.handler = Official()
        self.port = port
        self.tls = tls.client if tls else None

    def calling(self, path: str, *metadata: tuple[str, str]) -> Any:
        return calling(self.port, path, *metadata, tls=self.tls)


@pytest.fixture(params=["plaintext", "tls"])
async def official(
    request: pytest.FixtureRequest, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OfficialServer]:
    # It takes no leave of TLS.
    monkeypatch.setattr(connection, "PARTING_TIMEOUT_S", 0.01)
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        )
    )
    is_tls = request.param == "tls"
    if is_tls:
        chain = b"".join(pem.bytes() for pem in tls.issued.cert_chain_pems)
        credentials = grpc.ssl_server_credentials([(tls.issued.private_key_pem.bytes(), chain)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    made = OfficialServer(server, port, tls if is_tls else None)
    server.add_generic_rpc_handlers((made.handler,))
    await server.start()
    yield made
    await server.stop(None)


async def test_messages_come_back_from_an_official_server(official: OfficialServer) -> None:
    async with official.calling("/t/echo") as call:
        for size in (0, 1, 300, 16_384, 70_000, 3_000_000):
            call.send(bytes(size))
            assert await call.read() == bytes(size)
        call.connection.end(call)
        assert await call.read() is None
        assert (call.is_over, call.failure) == (True, None)


async def test_the_longest_message_passes_both_ways(official: OfficialServer) -> None:
    async with official.calling("/t/echo") as call:
        call.send(bytes(MAX_MESSAGE_BYTES))
        assert await call.read() == bytes(MAX_MESSAGE_BYTES)
        call.send(bytes(MAX_MESSAGE_BYTES + 1))
        assert (await ending(call)).code is StatusCode.RESOURCE_EXHAUSTED


async def test_many_messages_keep_their_order(official: OfficialServer) -> None:
    async with official.calling("/t/echo") as call:
        heard: list[bytes] = []
        call.deliver_to(heard.append)
        for number in range(2000):
            await call.write(number.to_bytes(4, "big") + bytes(300))
        done = asyncio.get_running_loop().create_future()
        call.on_over = lambda: done.set_result(None)
        call.connection.end(call)
        await done
    assert [int.from_bytes(content[:4], "big") for content in heard] == list(range(2000))


async def test_an_official_servers_refusal_is_heard_in_any_language(
    official: OfficialServer,
) -> None:
    async with official.calling("/t/refuse") as call:
        error = await ending(call)
    assert (error.code, error.details) == (StatusCode.FAILED_PRECONDITION, TEXT)
    assert ("x-why", "because") in error.trailers


async def test_an_official_server_that_knows_no_method_says_so(official: OfficialServer) -> None:
    async with official.calling("/t/nothing") as call:
        assert (await ending(call)).code is StatusCode.UNIMPLEMENTED


async def test_metadata_arrives_at_an_official_server(official: OfficialServer) -> None:
    metadata = (("authorization", "Bearer x"), ("x-bytes-bin", "AP8"))
    async with official.calling("/t/echo", *metadata) as call:
        call.send(b"x")
        await call.read()
    told = dict(official.handler.metadata)
    assert (told["authorization"], told["x-bytes-bin"]) == ("Bearer x", b"\x00\xff")


async def test_a_call_that_is_broken_off_ends_the_official_handler(
    official: OfficialServer,
) -> None:
    async with official.calling("/t/hold") as call:
        await official.handler.began.wait()
        call.fail(RpcError(StatusCode.CANCELLED, "enough"))
        await official.handler.cancelled.wait()


async def test_an_official_server_that_goes_gracefully_lets_the_call_end(
    official: OfficialServer,
) -> None:
    async with official.calling("/t/echo") as call:
        call.send(b"one")
        assert await call.read() == b"one"
        stopping = asyncio.create_task(official.server.stop(10))
        while not call.connection.is_leaving:
            await asyncio.sleep(0)
        call.send(b"two")
        assert await call.read() == b"two"
        with pytest.raises(RpcError) as caught:
            call.connection.call("test", "/t/echo", (), max_message_bytes=1)
        assert caught.value.code is StatusCode.UNAVAILABLE
        call.connection.end(call)
        assert await call.read() is None
        assert call.failure is None
        await stopping


# -- servers that break rules --------------------------------------------------------------------

OK = ((":status", "200"), ("content-type", "application/grpc"))
Answer = Callable[[Raw], Sequence[Frame | bytes]]

ANSWERS: dict[str, tuple[Answer, StatusCode, str]] = {
    "trailers alone": (
        lambda peer: [peer.headers(1, *OK, ("grpc-status", "5"), ends=True)],
        StatusCode.NOT_FOUND,
        "",
    ),
    "a status without the end": (
        lambda peer: [peer.headers(1, *OK, ("grpc-status", "5"))],
        StatusCode.NOT_FOUND,
        "",
    ),
    "another protocol": (
        lambda peer: [peer.headers(1, (":status", "200"), ("content-type", "text/html"))],
        StatusCode.UNKNOWN,
        "does not speak gRPC",
    ),
    "an HTTP error": (
        lambda peer: [peer.headers(1, (":status", "502"), ends=True)],
        StatusCode.UNAVAILABLE,
        "HTTP status 502",
    ),
    "an end without a status": (
        lambda peer: [peer.headers(1, *OK), DataFrame(1, b"", flags=["END_STREAM"])],
        StatusCode.UNKNOWN,
        "without a status",
    ),
    "an end with the headers": (
        lambda peer: [peer.headers(1, *OK, ends=True)],
        StatusCode.UNKNOWN,
        "without a status",
    ),
    "trailers without a status": (
        lambda peer: [peer.headers(1, *OK), peer.headers(1, ("x", "y"), ends=True)],
        StatusCode.UNKNOWN,
        "without a status",
    ),
    "a message before the headers": (
        lambda peer: [message(1, b"x")],
        StatusCode.INTERNAL,
        "before its headers",
    ),
    "a message too long": (
        lambda peer: [peer.headers(1, *OK), DataFrame(1, b"\0\xff\0\0\0")],
        StatusCode.RESOURCE_EXHAUSTED,
        "4278190080",
    ),
    "a reset": (
        lambda peer: [peer.headers(1, *OK), RstStreamFrame(1, error_code=7)],
        StatusCode.UNAVAILABLE,
        "refused",
    ),
    "a push": (
        lambda peer: [PushPromiseFrame(1, 2, b"\x82", flags=["END_HEADERS"])],
        StatusCode.UNAVAILABLE,
        "broke a rule",
    ),
    "a goodbye that leaves the call out": (
        lambda peer: [GoAwayFrame(0, last_stream_id=0)],
        StatusCode.UNAVAILABLE,
        "goes away",
    ),
    "a goodbye with an error": (
        lambda peer: [GoAwayFrame(0, last_stream_id=1, error_code=0xB)],
        StatusCode.UNAVAILABLE,
        "ENHANCE_YOUR_CALM",
    ),
    "a window too wide": (
        lambda peer: [peer.headers(1, *OK), b"\0\0\4\x08\0\0\0\0\1\x7f\xff\xff\xff"],
        StatusCode.INTERNAL,
        "too wide",
    ),
    "HTTP/1": (
        lambda peer: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        StatusCode.UNAVAILABLE,
        "a frame of",
    ),
    "nothing, and hangs up": (lambda peer: [], StatusCode.UNAVAILABLE, ""),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_an_answer_that_is_none_fails_the_call_with_a_reason(case: str) -> None:
    answer, code, words = ANSWERS[case]

    async def serve(peer: Raw) -> None:
        await peer.next(HeadersFrame)
        peer.send(*answer(peer))
        if case != "nothing, and hangs up":
            await peer.rest()

    async with raw_server(serve) as port, calling(port, "/t/t") as call:
        error = await ending(call)
        assert (error.code, call.is_over) == (code, True)
        assert words in error.details
        assert call.connection.streams == {}


async def test_a_call_that_the_server_has_ended_is_ended_for_both() -> None:
    heard: list[int] = []

    async def serve(peer: Raw) -> None:
        await peer.next(HeadersFrame)
        peer.send(
            peer.headers(1, *OK), message(1, b"x"), peer.headers(1, ("grpc-status", "0"), ends=True)
        )
        heard.append(await peer.reset_code(1))
        await peer.rest()

    async with raw_server(serve) as port, calling(port, "/t/t") as call:
        assert (await call.read(), await call.read()) == (b"x", None)
        call.send(b"nobody hears this")
    assert heard == [ErrorCodes.NO_ERROR]


async def test_interim_answers_and_what_nobody_knows_are_passed_over() -> None:
    async def serve(peer: Raw) -> None:
        await peer.next(HeadersFrame)
        peer.send(
            b"\0\0\1\xee\0\0\0\0\0x",
            peer.headers(1, (":status", "103")),
            SettingsFrame(0, settings={0xFA: 1}),
            peer.headers(1, *OK),
            message(1, b"x"),
            peer.headers(1, ("grpc-status", "0"), ends=True),
        )
        await peer.rest()

    async with raw_server(serve) as port, calling(port, "/t/t") as call:
        assert (await call.read(), await call.read()) == (b"x", None)


async def test_a_server_that_takes_no_calls_is_told_as_unavailable() -> None:
    async def serve(peer: Raw) -> None:
        peer.send(SettingsFrame(0, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 1}))
        await peer.rest()

    async with raw_server(serve) as port, calling(port, "/t/t") as call:
        while call.connection._h2.remote_settings.max_concurrent_streams != 1:
            await asyncio.sleep(0)
        with pytest.raises(RpcError) as caught:
            call.connection.call("test", "/t/t", (), max_message_bytes=1)
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert not call.is_over


async def test_metadata_that_cannot_be_sent_is_not_quoted() -> None:
    async with serving() as up, up.calling("/t/echo") as call:
        secret = ((":authorization", "Bearer secret"),)
        with pytest.raises(RpcError) as caught:
            call.connection.call("test", "/t/echo", secret, max_message_bytes=1)
        assert "secret" not in str(caught.value)
        call.send(b"x")
        assert await call.read() == b"x"


async def test_a_call_on_a_connection_that_is_over_is_unavailable() -> None:
    async with serving() as up, up.calling("/t/echo") as call:
        call.connection.close("enough")
        with pytest.raises(RpcError) as caught:
            call.connection.call("test", "/t/echo", (), max_message_bytes=1)
        assert (caught.value.code, caught.value.details) == (StatusCode.UNAVAILABLE, "enough")


async def test_a_server_that_sends_more_than_its_credit_is_broken_off() -> None:
    heard: list[int] = []

    async def serve(peer: Raw) -> None:
        await peer.next(HeadersFrame)
        peer.send(peer.headers(1, *OK))
        for _ in range(40):
            peer.send(DataFrame(1, prefixed(bytes(60_000))))
        heard.append(await peer.reset_code(1))
        await peer.rest()

    async with raw_server(serve) as port, calling(port, "/t/t") as call:
        done = asyncio.get_running_loop().create_future()
        call.on_over = lambda: done.set_result(None)
        await done
        assert call.failure is not None
        assert call.failure.code is StatusCode.INTERNAL
    assert heard == [ErrorCodes.FLOW_CONTROL_ERROR]


# -- no server at all ----------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[socket.socket]:
    made = socket.create_server(("127.0.0.1", 0))
    with made:
        yield made


async def test_a_port_that_nobody_serves_is_unreachable() -> None:
    with listening() as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DialError) as caught:
        await dial("127.0.0.1", port, tls=None)
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".invalid"])
async def test_a_host_that_is_none_is_unreachable(host: str) -> None:
    with pytest.raises(DialError) as caught:
        await dial(host, 1, tls=None)
    assert caught.value.kind == "unreachable"


async def test_a_certificate_for_another_host_is_a_wrong_name(tls: Tls) -> None:
    async with serving(tls=tls) as up:
        with pytest.raises(DialError) as caught:
            await dial("127.0.0.1", up.port, tls=tls.client)
        assert caught.value.kind == "wrong_name"


async def test_a_certificate_of_an_unknown_authority_is_untrusted(tls: Tls) -> None:
    async with serving(tls=tls) as up:
        with pytest.raises(DialError) as caught:
            await dial("localhost", up.port, tls=ssl.create_default_context())
        assert caught.value.kind == "untrusted"


async def _hang_up(peer: Raw) -> None: ...


async def _say_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("serve", "kind"), [(_say_http, "not_tls"), (_say_nothing, "closed_early")]
)
async def test_what_speaks_no_tls_is_told_apart(
    tls: Tls,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    kind: str,
) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(DialError) as caught:
            await dial("127.0.0.1", port, tls=tls.client)
    assert caught.value.kind == kind
