"""One HTTP/1.1 connection with every bound that the public internet asks for.

uvicorn's httptools protocol parses requests and writes responses; this subclass adds what it
leaves open: the size of the head (431) and of the body (413), the time in which a request has to
arrive (408), the number of connections, callers who take no byte of their response, and callers
who leave. It never looks into a body and knows no path but for the shape of an error.

Time is bounded by one lazy deadline a connection; a request that arrives in one piece costs no
timer. The file is long because one connection is one state, and each bound looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from iop_edge.config.effective import IngressLimits
from iop_edge.serve.http.deadline import Deadline
from iop_edge.serve.http.errors import FaultRenderer, id_headers, request_id_of
from iop_edge.serve.http.unchunked import unchunked
from iop_shared.errors import Code, Fault

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KEEP_ALIVE_S = 75.0
"""How long a connection may idle between two requests; longer than clients keep theirs."""

LINGER_S = 2.0
"""How long a refused caller may go on sending while it reads the refusal."""

MIN_BODY_BYTES_PER_S = 65_536
"""A body that arrives at least this fast is never cut for its size alone."""


MAX_PIPELINED = 4
"""So many requests that wait for the one before them are taken in; then reading stops."""


class ConnectionOwner(Protocol):
    """What a connection asks of its listener."""

    limits: IngressLimits
    render: FaultRenderer
    cancels_when_caller_leaves: bool
    is_stopping: bool

    def connection_ended(self) -> None: ...

    def handler_failed(self, error: BaseException) -> None: ...


class _HeadRefusedError(Exception):
    """Ends a parse from inside a callback; the fault stands on the connection."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection within `IngressLimits`. One request at a time; pipelined ones wait."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._owner = owner
        self._limits = owner.limits
        self._receive_timeout_s = owner.limits.receive_timeout_ms / 1000
        self._write_timeout_s = owner.limits.write_timeout_ms / 1000
        self._task: asyncio.Task[None] | None = None

        self.scope = cast(Any, {})
        self.headers = []
        self.url = b""
        self._is_receiving = False
        self._has_head = False
        self._is_refused = False
        self._refusal: Fault | None = None
        self._raw_head_bytes = 0
        self._chunk_bytes = 0
        self._has_progressed = False
        self._body_bytes = 0
        self._body_bytes_at_check = 0

        self._deadline = Deadline(loop, self._on_deadline)
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    # --- connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        if len(self.connections) >= self._limits.max_connections:
            self.transport = transport
            self._refuse_connection()
            return
        super().connection_made(transport)
        self._deadline.within(self._receive_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().connection_lost(exc)
        self._cancel_handler()
        self._owner.connection_ended()

    def drain(self) -> None:
        """Let the request in progress end, take no further one, and close."""
        cycle = self._latest_cycle()
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif not self._is_receiving:
            self._close()

    def abort(self) -> None:
        """Close at once; a request in progress is cancelled."""
        self.transport.abort()

    def _latest_cycle(self) -> RequestResponseCycle | None:
        return self.cycle  # None before the first request, whatever its annotation says

    def _close(self) -> None:
        self.transport.close()
        self._deadline.within(self._write_timeout_s)

    # --- receiving --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_body = self._is_receiving and self._has_head
        self._chunk_bytes = len(data)
        self._has_progressed = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            malformed = Fault(Code.INVALID_VALUE, "the request is not valid HTTP/1.1")
            self._refuse(self._refusal or malformed)
            return
        if not self._is_receiving:
            return
        is_beside_body = was_in_body and not self._has_progressed
        if is_beside_body or not (self._has_head or was_in_body):
            # A header that has not ended yet was not reported yet, so its bytes are counted raw.
            # So is what stands in a body without being of it: extensions of chunks, trailers.
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > self._limits.max_header_bytes:
                self._refuse(self._head_too_large())
                return
        if not self._deadline.is_set:
            self._deadline.within(self._receive_timeout_s)

    def _read_without_upgrade(self, rest: bytes) -> None:
        """No other protocol is spoken here, but the request itself is served.

        The parser takes what follows such a head for that other protocol, the body included, so
        the head is read again without the wish.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(Fault(Code.INVALID_VALUE, "this is no proxy"))
            return
        version = self.parser.get_http_version().encode("ascii")
        lines = [method, b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name != b"upgrade":
                lines += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join((*lines, b"\r\n", rest)))

    def eof_received(self) -> None:
        """A caller that ends its side is gone: the transport closes, the handler is cancelled."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_progressed = True
        self._is_receiving = True
        self._has_head = False
        self._raw_head_bytes = 0
        self._body_bytes = self._body_bytes_at_check = 0
        self._deadline.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer must not overrule the head, by which a proxy or the edge itself has judged.
        if not self._has_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        limits = self._limits
        if self._raw_head_bytes + self._chunk_bytes > limits.max_header_bytes:
            # What came may be more than the head, so it is counted exactly.
            head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if head > limits.max_header_bytes:
                self._end_parse(self._head_too_large())
        for name, value in self.headers:
            if name == b"content-length" and int(value) > limits.max_body_bytes:
                self._end_parse(self._body_too_large(int(value)))
        super().on_headers_complete()
        self._has_head = True
        self._raw_head_bytes = 0
        if self._owner.is_stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        self._raw_head_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.max_body_bytes:
            self._end_parse(self._body_too_large(self._body_bytes))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_receiving = False
        self._deadline.clear()
        super().on_message_complete()
        if len(self.pipeline) <= MAX_PIPELINED:
            # A caller who leaves is noticed only while it is read from.
            self.flow.resume_reading()
        if self.cycle.response_complete:
            self._rest()

    def _end_parse(self, fault: Fault) -> None:
        self._refusal = fault
        raise _HeadRefusedError

    def _head_too_large(self) -> Fault:
        limit = self._limits.max_header_bytes
        return Fault(Code.HEADERS_TOO_LARGE, f"the request head is over {limit} bytes")

    def _body_too_large(self, actual: int) -> Fault:
        limit = self._limits.max_body_bytes
        return Fault(
            Code.REQUEST_TOO_LARGE, f"the body has {actual} bytes or more; the limit is {limit}"
        )

    # --- handling ---------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self.loop.create_task(self._handle(cycle, app))
        self._task = task
        self.tasks.add(task)
        # Not at the end of the handler: one that is cancelled before it began never ends.
        task.add_done_callback(self._on_handled)

    async def _handle(self, cycle: RequestResponseCycle, app: Any) -> None:
        try:
            send = cycle.send if cycle.scope["http_version"] == "1.1" else unchunked(cycle)
            await app(cycle.scope, cycle.receive, send)
        except asyncio.CancelledError:
            cycle.disconnected = True
            if not self._is_refused:  # else the refusal is still to be read
                self.transport.abort()
        except Exception as error:
            self._owner.handler_failed(error)
        if not cycle.response_complete and not cycle.disconnected:
            self._end_unanswered(cycle)
        cycle.on_response = lambda: None

    def _on_handled(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._task is task:
            self._task = None
        self._owner.connection_ended()

    def _end_unanswered(self, cycle: RequestResponseCycle) -> None:
        if cycle.response_started:
            # A body that ends here must not look whole.
            self.transport.abort()
        else:
            cycle.disconnected = True
            self._refuse(Fault(Code.INTERNAL, "the request could not be handled"))

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._deadline.within(self._write_timeout_s)
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif not self._is_receiving:
            self._rest()

    def _rest(self) -> None:
        """One request is over and the next has not begun."""
        if self._owner.is_stopping:
            self._close()
        else:
            self._deadline.within(KEEP_ALIVE_S)

    def _cancel_handler(self) -> None:
        task = self._task
        if task is None or not self._owner.cancels_when_caller_leaves:
            return
        # After the last byte the handler only puts its things away.
        if not self.cycle.response_complete or self.pipeline:
            task.cancel()

    # --- refusing ---------------------------------------------------------------------------

    def _refuse(self, fault: Fault) -> None:
        """Answer a request that is none, and close once the caller had time to read it."""
        self._is_refused = True
        cycle = self._latest_cycle()
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._cancel_handler()
            if cycle.response_started:
                self.transport.abort()
                return
        elif self._has_head and self._is_receiving:
            # It was answered before all of it had come, and is not answered twice.
            self._close()
            return
        # A head that was not read to its end may still have said where it goes.
        path = self.scope.get("path") or self.url.decode("latin-1")
        self.transport.write(self._rendered(fault, path, dict(self.headers)))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline.within(LINGER_S)

    def _refuse_connection(self) -> None:
        self._is_refused = True
        limit = self._limits.max_connections
        fault = Fault(Code.QUEUE_FULL, f"{limit} connections are open, which is the limit")
        self.transport.write(self._rendered(fault, "", {}))
        self._close()

    def _rendered(self, fault: Fault, path: str, headers: dict[bytes, bytes]) -> bytes:
        request_id = request_id_of(headers)
        rendered = self._owner.render(fault, path, headers, request_id)
        lines = [STATUS_LINE[rendered.status]]
        for name, value in (
            *rendered.headers,
            (b"content-length", b"%d" % len(rendered.body)),
            *id_headers(request_id, path),
            (b"connection", b"close"),
        ):
            lines += (name, b": ", value, b"\r\n")
        return b"".join((*lines, b"\r\n", rendered.body))

    # --- time -------------------------------------------------------------------------------

    def _on_deadline(self) -> None:
        if self._is_refused or self.transport.is_closing():
            self.transport.abort()
        elif not self._is_receiving:
            self._close()
        elif self.flow.read_paused or self._arrives_fast_enough():
            self._body_bytes_at_check = self._body_bytes
            self._deadline.within(self._receive_timeout_s)
        else:
            limit = self._limits.receive_timeout_ms
            self._refuse(
                Fault(Code.REQUEST_TIMEOUT, f"the request did not arrive within {limit} ms")
            )

    def _arrives_fast_enough(self) -> bool:
        arrived = self._body_bytes - self._body_bytes_at_check
        return self._has_head and arrived >= MIN_BODY_BYTES_PER_S * self._receive_timeout_s

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._write_timeout_s, self._on_write_stall)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_write_stall(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._unsent_bytes:
            self.transport.abort()
            return
        self._unsent_bytes = unsent
        self._write_timer = self.loop.call_later(self._write_timeout_s, self._on_write_stall)
