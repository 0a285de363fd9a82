"""A server of ours on loopback, and a peer that says what it is told to, byte by byte."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import trustme
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from iop_shared.rpc.client import ClientConnection, dial
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.frames import PREFACE
from iop_shared.rpc.messages import prefixed
from iop_shared.rpc.server import Method, RpcServer, ServerCall, ServerConnection
from iop_shared.rpc.stream import Stream

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)

FrameKind = TypeVar("FrameKind", bound=Frame)


class Tls(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext
    authority_pem: bytes
    issued: trustme.LeafCert


class Handlers:
    """Methods for whatever a test wants to see. What they have is to be seen too."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[ServerCall] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        """How the handlers of `hold` were left."""
        self.arrived = 0

    def methods(self) -> Mapping[str, Method]:
        return {
            "/t/echo": Method(self.echo, MAX_MESSAGE_BYTES),
            "/t/count": Method(self.count, MAX_MESSAGE_BYTES),
            "/t/hold": Method(self.hold, MAX_MESSAGE_BYTES),
            "/t/hold-short": Method(self.hold, 4096),
            "/t/many": Method(self.many, 4096),
            "/t/refuse": Method(self.refuse, 4096),
            "/t/break": Method(self.break_down, 4096),
        }

    async def echo(self, call: ServerCall) -> None:
        """Every message back, until there is no more."""
        while (message := await call.read()) is not None:
            await call.write(message)

    async def count(self, call: ServerCall) -> None:
        while (message := await call.read()) is not None:
            self.arrived += len(message)
        call.send(str(self.arrived).encode())

    async def hold(self, call: ServerCall) -> None:
        """Reads nothing and says nothing."""
        self.calls.put_nowait(call)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.put_nowait("cancelled")
            raise

    async def many(self, call: ServerCall) -> None:
        """As many messages of as many bytes as the request says."""
        request = await call.read()
        assert request is not None
        count, size = map(int, request.split())
        self.calls.put_nowait(call)
        for number in range(count):
            await call.write(number.to_bytes(4, "big") + bytes(size))

    async def refuse(self, call: ServerCall) -> None:
        text = b64decode(call.headers["x-text-bin"] + "==").decode()
        raise RpcError(StatusCode.FAILED_PRECONDITION, text, [("x-why", "because")])

    async def break_down(self, call: ServerCall) -> None:
        raise ValueError("Bearer secret")


@dataclass
class Served:
    server: RpcServer
    handlers: Handlers
    port: int
    tls: Tls | None

    async def connect(self) -> ClientConnection:
        return await dial("localhost", self.port, tls=self.tls.client if self.tls else None)

    @asynccontextmanager
    async def calling(
        self, path: str, *metadata: tuple[str, str], max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> AsyncIterator[Stream]:
        connection = await self.connect()
        try:
            yield connection.call("test", path, metadata, max_message_bytes=max_message_bytes)
        finally:
            connection.close("the test is over")
            await connection.lost

    @asynccontextmanager
    async def attacked(
        self, settings: Mapping[int, int] | None = None, *, receive_buffer_bytes: int | None = None
    ) -> AsyncIterator[Raw]:
        """A peer that has said what HTTP/2 begins with."""
        async with raw(self.port, receive_buffer_bytes) as peer:
            await peer.greet(settings)
            yield peer

    def connection(self) -> ServerConnection:
        """The only one that there is."""
        [connection] = self.server.connections
        return connection

    async def still_serves(self) -> None:
        """A well-behaved peer is answered."""
        async with self.calling("/t/echo") as call:
            call.send(b"hello")
            call.connection.end(call)
            assert await call.read() == b"hello"
            assert await call.read() is None


@asynccontextmanager
async def serving(
    *, tls: Tls | None = None, send_buffer_bytes: int | None = None
) -> AsyncIterator[Served]:
    handlers = Handlers()
    server = RpcServer(handlers.methods())
    listening = socket.create_server(("127.0.0.1", 0))
    if send_buffer_bytes is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    await server.start([listening], backlog=100, tls=tls.server if tls else None)
    try:
        yield Served(server, handlers, listening.getsockname()[1], tls)
    finally:
        await server.stop()
        assert server.connections == set()


class Raw:
    """One end of a connection, that keeps to nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.headers_out = Encoder()
        self._headers_in = Decoder()
        self._pings = 0
        self._unread: list[Frame] = []

    # -- what it says --------------------------------------------------------------------------

    async def greet(self, settings: Mapping[int, int] | None = None) -> None:
        """As a client."""
        self.send(PREFACE, SettingsFrame(0, settings=dict(settings or {})))
        await self.barrier()

    def send(self, *what: Frame | bytes) -> None:
        for each in what:
            self.writer.write(each if isinstance(each, bytes) else each.serialize())

    def request(
        self, stream_id: int, path: str, *metadata: tuple[str, str], ends: bool = False
    ) -> HeadersFrame:
        return self.headers(stream_id, *REQUEST, (":path", path), *metadata, ends=ends)

    def headers(
        self, stream_id: int, *headers: tuple[str, str], ends: bool = False
    ) -> HeadersFrame:
        ordered = sorted(headers, key=lambda header: header[0][0] != ":")
        frame = HeadersFrame(stream_id, self.headers_out.encode(ordered))
        frame.flags.add("END_HEADERS")
        if ends:
            frame.flags.add("END_STREAM")
        return frame

    def stop_reading(self) -> None:
        """From now on what comes stays in the socket."""
        self.writer.transport.pause_reading()

    async def drain(self) -> None:
        with suppress(ConnectionError):
            await self.writer.drain()

    # -- what it hears -------------------------------------------------------------------------

    async def preface(self) -> bytes:
        return await self._reader.readexactly(len(PREFACE))

    async def frame(self) -> Frame | None:
        """The next one; None at the end of the connection."""
        if self._unread:
            return self._unread.pop(0)
        try:
            head = await self._reader.readexactly(9)
            frame, length = Frame.parse_frame_header(memoryview(head))
            frame.parse_body(memoryview(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if isinstance(frame, HeadersFrame):
            frame.decoded = dict(self._headers_in.decode(frame.data))
        return frame

    async def next(self, kind: type[FrameKind], stream_id: int | None = None) -> FrameKind:
        """The next of a kind; what comes before it is skipped."""
        while (frame := await self.frame()) is not None:
            if isinstance(frame, kind) and stream_id in (None, frame.stream_id):
                return frame
        raise EOFError(f"the connection ended before a {kind.__name__}")

    async def barrier(self) -> list[Frame]:
        """Until the other end has taken in all that was sent: what it said in the meantime."""
        self._pings += 1
        word = self._pings.to_bytes(8, "big")
        self.send(PingFrame(0, word))
        said: list[Frame] = []
        while (frame := await self.frame()) is not None:
            if isinstance(frame, PingFrame) and frame.opaque_data == word:
                return said
            said.append(frame)
        raise EOFError(f"the connection ended: {said}")

    async def rest(self) -> list[Frame]:
        """All until the end of the connection, for which it waits."""
        said = []
        while (frame := await self.frame()) is not None:
            said.append(frame)
        return said

    async def sent_away(self, end: Connection) -> str:
        """Why the other end has closed the connection, for which it waits. Its goodbye may be
        lost, where more was on its way to it."""
        await self.rest()
        assert end.closed_reason is not None
        return end.closed_reason

    async def goodbye(self) -> int:
        """With which code the other end goes; it waits for the end of the connection."""
        [code] = [frame.error_code for frame in await self.rest() if isinstance(frame, GoAwayFrame)]
        return code

    async def status(self, stream_id: int) -> tuple[StatusCode, str]:
        """How a call ended, in trailers."""
        while True:
            frame = await self.next(HeadersFrame, stream_id)
            if "END_STREAM" in frame.flags:
                told = frame.decoded
                return StatusCode(int(told["grpc-status"])), told.get("grpc-message", "")

    async def reset_code(self, stream_id: int) -> int:
        return (await self.next(RstStreamFrame, stream_id)).error_code


@asynccontextmanager
async def raw(port: int, receive_buffer_bytes: int | None = None) -> AsyncIterator[Raw]:
    own = socket.socket()
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer_bytes is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=own)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def raw_server(
    serve: Callable[[Raw], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server whose every connection `serve` has."""
    tasks: set[asyncio.Task[None]] = set()

    async def have(peer: Raw) -> None:
        with suppress(EOFError):
            assert await peer.preface() == PREFACE
            peer.send(SettingsFrame(0))
            await serve(peer)
        peer.writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(have(Raw(reader, writer))))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*tasks)


def data(
    stream_id: int, content: bytes, *, ends: bool = False, padding: int | None = None
) -> Frame:
    frame = DataFrame(stream_id, content, pad_length=padding or 0)
    if ends:
        frame.flags.add("END_STREAM")
    if padding is not None:
        frame.flags.add("PADDED")
    return frame


def message(stream_id: int, content: bytes, *, ends: bool = False) -> Frame:
    return data(stream_id, prefixed(content), ends=ends)


def window(stream_id: int, increment: int) -> WindowUpdateFrame:
    return WindowUpdateFrame(stream_id, increment)
