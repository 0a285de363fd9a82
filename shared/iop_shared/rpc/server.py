"""Listening for gRPC, and giving each call to the handler of its method.

It decides what is no call, how many there may be, and how a call ends that its handler has left.
It knows no method: they are handed in.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived

from iop_shared import logs
from iop_shared.rpc.codes import (
    CONTENT_TYPE,
    RpcError,
    StatusCode,
    is_grpc,
    plain,
    status_trailers,
    timeout_s,
)
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.rules import MAX_STREAMS
from iop_shared.rpc.stream import Stream

HANDSHAKE_TIMEOUT_S = 10.0
"""For TLS, and then for the first words of HTTP/2."""

MAX_CONNECTIONS = 10_000

MAX_HANDLERS = 2 * MAX_STREAMS
"""On a connection: those of calls that were broken off may take a while to leave."""

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_FIRST_HEADERS = ((":status", "200"), ("content-type", CONTENT_TYPE))

_log = logs.get("grpc")


class ServerCall(Stream):
    """A call of a peer. Its headers are the metadata."""

    def __init__(
        self,
        connection: ServerConnection,
        stream_id: int,
        method: Method,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(connection, stream_id, method.max_message_bytes)
        self.headers = headers
        self.is_heard = True
        self._finish = connection.finish
        self._handling = connection.handling

    @property
    def peer(self) -> str:
        """Its address without the port, or `unix`."""
        name = self.connection.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else "unix"

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the transport has verified of the peer's certificate (`getpeercert`)."""
        found: Mapping[str, Any] | None = self.connection.transport.get_extra_info("peercert")
        return found

    def handled_by(self, task: asyncio.Task[None]) -> None:
        """The task is cancelled when the call is over."""
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        self.on_over = task.cancel

    def finish(self, error: RpcError | None) -> None:
        """End the call with its status, once all that was said in it has been sent."""
        self._finish(self, error)

    def fail(self, error: RpcError) -> None:
        """End the call with this at once; its handler is cancelled."""
        self._unsent.clear()
        self._finish(self, error)


Handler = Callable[[ServerCall], Awaitable[None]]


class Method(NamedTuple):
    """A handler returns when the call has ended well, and raises RpcError when it has not. It is
    cancelled when the peer breaks the call off."""

    handler: Handler
    max_message_bytes: int


class ServerConnection(Connection):
    def __init__(self, server: RpcServer) -> None:
        super().__init__(server.loop, is_client=False)
        self.handling: set[asyncio.Task[None]] = set()
        """The handlers of its calls; of those too that were broken off, until they have left."""
        self._server = server
        self._first_words: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connections = self._server.connections
        connections.add(self)
        if self._server.is_stopping or len(connections) > MAX_CONNECTIONS:
            self.abort("the server takes no more connections")
            return
        self._first_words = self.loop.call_later(HANDSHAKE_TIMEOUT_S, self._require_words)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            # Not every loop does so by itself, for sockets that it was handed.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._first_words is not None:
            self._first_words.cancel()
        self._server.connections.discard(self)

    def _require_words(self) -> None:
        if not self.has_heard:
            self.close("nothing came")

    def _peer_ended(self, stream: Stream) -> None:
        stream.end_received()

    def _happened(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event.stream_id, plain(event.headers))

    def _begin(self, stream_id: int, headers: Mapping[str, str]) -> None:
        if len(self.streams) >= MAX_STREAMS or len(self.handling) >= MAX_HANDLERS:
            self._bear()
            self._h2_does(lambda: self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM))
            return
        if headers[":method"] != "POST" or not is_grpc(headers.get("content-type", "")):
            self._say_last(stream_id, [(":status", "415")])
            return
        method = self._server.methods.get(headers[":path"])
        if method is None:
            refusal = RpcError(StatusCode.UNIMPLEMENTED, "no such method here")
        elif self._server.is_stopping:
            refusal = _stopping()
        else:
            call = ServerCall(self, stream_id, method, headers)
            self.streams[stream_id] = call
            self._h2_does(lambda: self._h2.send_headers(stream_id, _FIRST_HEADERS))
            self._open_window(call)
            self._server.begin(call, method.handler, timeout_s(headers.get("grpc-timeout")))
            return
        self._say_last(stream_id, [*_FIRST_HEADERS, *status_trailers(refusal)])

    def finish(self, call: ServerCall, error: RpcError | None) -> None:
        """End a call with its status, once all that was said in it has been sent."""

        def say() -> None:
            self._say_last(call.stream_id, status_trailers(error))
            self._forget(call)
            call.closed(error)

        call.when_sent(say)

    def _say_last(self, stream_id: int, headers: Sequence[tuple[str, str]]) -> None:
        was_said = self._h2_does(lambda: self._h2.send_headers(stream_id, headers, end_stream=True))
        # Whatever the peer still says, nobody listens. Nothing happens where it has ended too.
        code = ErrorCodes.NO_ERROR if was_said else ErrorCodes.INTERNAL_ERROR
        self._h2_does(lambda: self._h2.reset_stream(stream_id, code))


class RpcServer:
    """Serves methods, by their path, on sockets that are bound and listen already."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = methods
        self.loop = asyncio.get_running_loop()
        self.connections: set[ServerConnection] = set()
        """Those whose transports are there."""
        self.is_stopping = False
        self._handling: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def start(
        self, sockets: Sequence[socket.socket], *, backlog: int, tls: ssl.SSLContext | None
    ) -> None:
        for each in sockets:
            server = await self.loop.create_server(
                lambda: ServerConnection(self),
                sock=each,
                backlog=backlog,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
            )
            self._servers.append(server)

    async def stop(self) -> None:
        """Listen no more and end every call at once. Returns when no handler is left, and no
        connection; those of peers that do not read are cut after PARTING_TIMEOUT_S."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        for task in self._handling:
            task.cancel()
        while self._handling:
            await asyncio.wait(self._handling)
        for connection in list(self.connections):
            connection.close("the server has stopped")
        if self.connections:
            await asyncio.wait([connection.lost for connection in self.connections])

    def begin(self, call: ServerCall, handler: Handler, timeout: float | None) -> None:
        """Let a handler have a call, for `timeout` seconds where it is given."""
        task = self.loop.create_task(self._serve(call, handler, timeout))
        self._handling.add(task)
        call.handled_by(task)
        task.add_done_callback(partial(self._left, call))

    def _left(self, call: ServerCall, task: asyncio.Task[None]) -> None:
        self._handling.discard(task)
        if task.cancelled():
            # Before it began, so that nobody has ended the call.
            call.finish(_stopping())

    async def _serve(self, call: ServerCall, handler: Handler, timeout: float | None) -> None:
        error: RpcError | None = None
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                await handler(call)
        except RpcError as refusal:
            error = refusal
        except asyncio.CancelledError:
            error = _stopping()
        except Exception as failure:
            if deadline.expired():
                error = RpcError(StatusCode.DEADLINE_EXCEEDED, "the caller's deadline has passed")
            else:
                _log.error("handler_failed", error=type(failure).__name__)
                error = RpcError(StatusCode.INTERNAL, "the server failed on this call")
        call.on_over = None
        call.finish(error)


def _stopping() -> RpcError:
    return RpcError(StatusCode.UNAVAILABLE, "the server is stopping")
