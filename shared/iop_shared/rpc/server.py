"""Listening for gRPC, and giving each call to the handler of its method.

It decides what is no call, how many there may be, and how a call ends that its handler has left.
It knows no method: they are handed in.
"""

from __future__ import annotations

import asyncio
import resource
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
from iop_shared.rpc.rules import MAX_HEADERS_BYTES, MAX_STREAMS
from iop_shared.rpc.stream import Stream

HANDSHAKE_TIMEOUT_S = 10.0
"""For TLS, and then until the first call."""

IDLE_TIMEOUT_S = 300.0
"""How long a connection may stay after its last call, for the next one."""

MAX_CONNECTIONS = 10_000
"""And at most half of the descriptors that the process may have."""

MAX_HANDLERS = 2 * MAX_STREAMS
"""On a connection: those of calls that were broken off may take a while to leave."""

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_FIRST_HEADERS = (
    (":status", "200"),
    ("content-type", CONTENT_TYPE),
    ("grpc-accept-encoding", "identity"),
)

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
        self._idle_until = self.loop.time() + HANDSHAKE_TIMEOUT_S
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server.admits(self):
            self.abort("the server takes no more connections")
            return
        self._idle_timer = self.loop.call_at(self._idle_until, self._require_calls)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            # Not every loop does so by itself, for sockets that it was handed.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._server.left(self)

    def _require_calls(self) -> None:
        now = self.loop.time()
        # The loop may call a timer early by its clock's resolution.
        if not self.streams and now + 0.001 >= self._idle_until:
            self.close("nothing was asked for")
        else:
            due = now + IDLE_TIMEOUT_S if self.streams else self._idle_until
            self._idle_timer = self.loop.call_at(due, self._require_calls)

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        if not self.streams and self.closed_reason is None:
            self._idle_until = self.loop.time() + IDLE_TIMEOUT_S
            self._server.idle[self] = None

    def _peer_ended(self, stream: Stream) -> None:
        stream.end_received()

    def _happened(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event.stream_id, plain(event.headers))

    def _begin(self, stream_id: int, headers: Mapping[str, str]) -> None:
        if len(self.streams) >= MAX_STREAMS or len(self.handling) >= MAX_HANDLERS:
            self.bear()
            self._h2_does(lambda: self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM))
            return
        if headers[":method"] != "POST" or not is_grpc(headers.get("content-type", "")):
            self._say_last(stream_id, [(":status", "415")])
            return
        method = self._server.methods.get(headers[":path"])
        # What each costs in HTTP/2's own count (RFC 9113, 6.5.2).
        size = sum(len(name) + len(value) + 32 for name, value in headers.items())
        if size > MAX_HEADERS_BYTES:
            refusal = RpcError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"metadata of {size} bytes; the limit is {MAX_HEADERS_BYTES}",
            )
        elif method is None:
            refusal = RpcError(StatusCode.UNIMPLEMENTED, "no such method here")
        elif self._server.is_stopping:
            refusal = _stopping()
        else:
            call = ServerCall(self, stream_id, method, headers)
            self.streams[stream_id] = call
            self._server.idle.pop(self, None)
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
        self.idle: dict[ServerConnection, None] = {}
        """Those without a call, the one that has none for longest first."""
        self._max_connections = MAX_CONNECTIONS
        self._crowded = 0
        self._broken = 0
        self.is_stopping = False
        self._handling: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def start(
        self, sockets: Sequence[socket.socket], *, backlog: int, tls: ssl.SSLContext | None
    ) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            self._max_connections = min(MAX_CONNECTIONS, descriptors // 2)
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

    def admits(self, connection: ServerConnection) -> bool:
        """Count a connection. Where there are too many, the one that has been without a call for
        longest makes room; where every one has calls, the new one is not admitted."""
        self.connections.add(connection)
        if self.is_stopping:
            return False
        if len(self.connections) > self._max_connections:
            self._crowded += 1
            if _is_worth_a_line(self._crowded):
                limit = self._max_connections
                _log.warning("grpc_connections_full", limit=limit, times=self._crowded)
            if not self.idle:
                return False
            longest = next(iter(self.idle))
            del self.idle[longest]
            longest.abort("others need the room")
        self.idle[connection] = None
        return True

    def left(self, connection: ServerConnection) -> None:
        """Nothing of a connection is there any more."""
        self.connections.discard(connection)
        self.idle.pop(connection, None)
        if connection.has_broken_a_rule:
            self._broken += 1
            if _is_worth_a_line(self._broken):
                reason = connection.closed_reason
                _log.warning("grpc_connection_broken", reason=reason, times=self._broken)

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


def _is_worth_a_line(times: int) -> bool:
    """The 1st, 2nd, 4th, 8th …: whoever floods must not fill the log."""
    return times & (times - 1) == 0


def _stopping() -> RpcError:
    return RpcError(StatusCode.UNAVAILABLE, "the server is stopping")
