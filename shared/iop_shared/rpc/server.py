"""Listening for gRPC, and giving each call to the handler of its method.

It decides what is no call, what a peer may not do, and how a call ends that its handler has left.
It knows no method: they are handed in.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived

from iop_shared import logs
from iop_shared.rpc.codes import (
    CONTENT_TYPE,
    RpcError,
    StatusCode,
    plain,
    status_trailers,
    timeout_s,
)
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.stream import Stream

HANDSHAKE_TIMEOUT_S = 10.0
"""For TLS, and then for the first words of HTTP/2."""

MAX_CONNECTIONS = 10_000

MAX_RESETS = 200
"""Calls that a peer may break off one after the other, none of which it lets end."""

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

_log = logs.get("grpc")


class ServerCall(Stream):
    """A call of a peer. Its headers are the metadata."""

    def __init__(self, connection: ServerConnection, stream_id: int, method: Method) -> None:
        super().__init__(connection, stream_id, method.max_message_bytes)
        self._finish = connection.finish

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
        self._server = server
        self._resets = 0
        self._first_words = server.loop.call_later(HANDSHAKE_TIMEOUT_S, self._is_silent)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self.close("too many connections")
            return
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def _is_silent(self) -> None:
        if not self.has_heard:
            self.close("nothing came")

    def _lost(self) -> None:
        self._first_words.cancel()
        self._server.connections.discard(self)

    def _peer_ended(self, stream: Stream) -> None:
        stream.end_received()

    def _peer_reset(self) -> None:
        self._resets += 1
        if self._resets > MAX_RESETS:
            self._broken("too many calls broken off", ErrorCodes.ENHANCE_YOUR_CALM)

    def _happened(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event)

    def _begin(self, request: RequestReceived) -> None:
        stream_id = request.stream_id
        headers = plain(request.headers)
        if not _is_grpc(headers):
            self._h2_does(
                lambda: self._h2.send_headers(stream_id, [(":status", "415")], end_stream=True)
            )
            self._h2_does(lambda: self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR))
            return
        method = self._server.methods.get(headers.get(":path", ""))
        if method is None:
            error = RpcError(StatusCode.UNIMPLEMENTED, "no such method here")
            self._h2_does(
                lambda: self._h2.send_headers(
                    stream_id, [*_FIRST_HEADERS, *status_trailers(error)], end_stream=True
                )
            )
            self._h2_does(lambda: self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR))
            return
        call = ServerCall(self, stream_id, method)
        call.headers = headers
        self.streams[stream_id] = call
        self._h2_does(lambda: self._h2.send_headers(stream_id, list(_FIRST_HEADERS)))
        self._server.begin(call, method.handler, timeout_s(headers.get("grpc-timeout")))

    def finish(self, call: ServerCall, error: RpcError | None) -> None:
        """End a call with its status, once all that was said in it has been sent."""

        def say() -> None:
            self._resets = 0
            self._forget(call)
            self._h2_does(
                lambda: self._h2.send_headers(
                    call.stream_id, status_trailers(error), end_stream=True
                )
            )
            if not call.is_ended:
                # Whatever the peer still says, nobody listens.
                self._h2_does(lambda: self._h2.reset_stream(call.stream_id, ErrorCodes.NO_ERROR))
            call.closed(error)

        if not call.is_over:
            call.when_sent(say)


_FIRST_HEADERS = ((":status", "200"), ("content-type", CONTENT_TYPE))


class RpcServer:
    """Serves methods, by their path, on sockets that are bound and listen already."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = methods
        self.loop = asyncio.get_running_loop()
        self.connections: set[ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
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
        """Listen no more and end every call at once. Returns when no handler is left."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in list(self.connections):
            connection.close("the server has stopped")

    def begin(self, call: ServerCall, handler: Handler, timeout: float | None) -> None:
        task = self.loop.create_task(self._serve(call, handler, timeout))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.on_over = task.cancel

    async def _serve(self, call: ServerCall, handler: Handler, timeout: float | None) -> None:
        error: RpcError | None = None
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                await handler(call)
        except RpcError as refusal:
            error = refusal
        except asyncio.CancelledError:
            error = RpcError(StatusCode.UNAVAILABLE, "the server is stopping")
        except Exception as failure:
            if deadline.expired():
                error = RpcError(StatusCode.DEADLINE_EXCEEDED, "the caller's deadline has passed")
            else:
                _log.error("handler_failed", error=type(failure).__name__)
                error = RpcError(StatusCode.INTERNAL, "the server failed on this call")
        call.on_over = None
        call.finish(error)


def _is_grpc(headers: Mapping[str, str]) -> bool:
    return headers.get(":method") == "POST" and headers.get("content-type", "").startswith(
        CONTENT_TYPE
    )
