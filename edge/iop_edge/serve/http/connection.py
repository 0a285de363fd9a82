"""One HTTP/1.1 connection of a caller, with every bound that the public internet asks for.

httptools parses; this reads and writes around it. It bounds the size of the head (431) and of the
body (413), the time in which a request has to arrive (408), the number of connections, and the
time for which a caller may take no byte of its response. It refuses what two readers could read
differently (400), and notices at once when a caller leaves. It never looks into a body and knows
no path but for the shape of an error.

One task a connection serves its requests, in their order. Time is bounded by one lazy deadline; a
request that arrives in one piece costs no timer. The file is long because one connection is one
state, and each bound looks at it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, Protocol

import httptools

from iop_edge.config.effective import IngressLimits
from iop_edge.serve.http.deadline import Deadline
from iop_edge.serve.http.errors import FaultRenderer
from iop_edge.serve.http.head import ByteHeaders
from iop_edge.serve.http.head_rules import (
    body_too_large,
    head_size,
    head_too_large,
    judge_head,
    target_of,
    waits_for_continue,
    without_upgrade,
)
from iop_edge.serve.http.refusal import refusal_bytes
from iop_edge.serve.http.request import Handler, Request
from iop_edge.serve.http.untaken import untaken_bytes
from iop_shared.cork import Cork, CorkedTransport
from iop_shared.errors import Code, Fault

KEEP_ALIVE_S = 75.0
"""How long a connection may idle between two requests; longer than clients keep theirs."""

LINGER_S = 2.0
"""How long a refused caller may go on sending while it reads the refusal."""

MIN_BODY_BYTES_PER_S = 65_536
"""A body that arrives at least this fast is never cut for its size alone."""

MAX_UNASKED_BYTES = 65_536
"""So much of a body is taken in before its handler asks for it; then reading stops."""

MAX_PIPELINED = 4
"""So many requests that wait for the one before them are taken in; then reading stops."""

MAX_PIPELINED_AT_ONCE = 100
"""No connection holds more requests, even of those that came in one piece: this one is its last."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) [!-~]+ HTTP/1\.[01]\r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ConnectionOwner(Protocol):
    """What a connection asks of its listener."""

    limits: IngressLimits
    render: FaultRenderer
    handler: Handler
    cancels_when_caller_leaves: bool
    is_stopping: bool
    cork: Cork
    connections: set[Connection]
    """Those that are open, or whose handler has not ended."""

    def connection_ended(self) -> None:
        """One has been taken out of `connections`."""
        ...

    def handler_failed(self, error: Exception) -> None: ...


class _RefusedError(Exception):
    """Ends a parse from inside a callback; the fault stands on the connection."""


class Connection(asyncio.Protocol):
    """A connection within `IngressLimits`. One request at a time; pipelined ones wait."""

    __slots__ = (
        "_body_bytes", "_body_bytes_at_check", "_chunk_bytes", "_deadline", "_has_completed",
        "_has_last", "_has_progressed", "_has_surplus", "_incoming", "_is_head_uncounted",
        "_is_lost", "_is_receiving", "_is_refused", "_limits", "_loop", "_next", "_owner",
        "_pairs", "_parser", "_raw_head_bytes", "_receive_timeout_s", "_refusal", "_requests",
        "_task", "_transport", "_unknown_method", "_untaken_bytes", "_url", "_wants_continue",
        "_writable", "_write_timeout_s", "_write_timer", "is_read_paused", "is_write_paused",
        "write",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._limits = owner.limits
        self._receive_timeout_s = owner.limits.receive_timeout_ms / 1000
        self._write_timeout_s = owner.limits.write_timeout_ms / 1000
        self._parser = httptools.HttpRequestParser(self)
        self._deadline = Deadline(loop, self._on_deadline)
        self._transport: CorkedTransport
        self.write: Callable[[bytes], None]

        # What is being read: a head, then the body of `_incoming`.
        self._unknown_method = b""
        self._url = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._is_receiving = False
        self._incoming: Request | None = None
        self._raw_head_bytes = 0
        self._is_head_uncounted = False
        """It began behind another request in one piece, so part of it is in no number."""
        self._chunk_bytes = 0
        self._has_progressed = False
        self._has_completed = False
        self._body_bytes = 0
        self._body_bytes_at_check = 0
        self._wants_continue = False
        self._has_last = False
        """No further request is taken: the last one is the last, as the caller said or is told."""
        self._has_surplus = False
        """The caller has sent more than that all the same."""

        # What is being answered: the first of these, by the task.
        self._requests: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None

        self._refusal: Fault | None = None
        self._is_refused = False
        self._is_lost = False
        self.is_read_paused = False
        self.is_write_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = (0, 0)

    # --- connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's
        self._transport = CorkedTransport(transport, self._owner.cork)
        self.write = self._transport.write
        if self._owner.is_stopping:
            # It was accepted before, and may have shaken hands since.
            transport.abort()
            return
        if len(self._owner.connections) >= self._limits.max_connections:
            self._refuse_connection()
            return
        self._owner.connections.add(self)
        self._deadline.within(self._receive_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._transport.drop()
        self._deadline.close()
        self.resume_writing()
        for request in self._requests:
            request.leave()
        self._cancel_handler()
        self._wake()
        # It holds methods of this object, which would otherwise wait for the collector.
        del self._parser
        if self._task is None:
            self._ended()

    def eof_received(self) -> None:
        """A caller that ends its side is gone: the transport closes, the handler is cancelled.
        What was written by then is the caller's."""
        self._transport.flush()
        self._deadline.within(self._write_timeout_s)

    def drain(self) -> None:
        """Let the requests that have begun end, take no further one, and close."""
        if not self._requests and not self._is_receiving:
            self._close()

    def abort(self) -> None:
        """Close at once; a request in progress is cancelled."""
        self._transport.abort()

    def _close(self) -> None:
        self._transport.close()
        self._deadline.within(self._write_timeout_s)

    def _linger(self) -> None:
        """Close once the caller had time to read: what it still sends would otherwise take the
        answer away from it."""
        self._is_refused = True
        self._resume_reading()
        if self._transport.can_write_eof():
            with suppress(OSError):  # the caller is gone; it will be told as any loss is
                self._transport.write_eof()
        has_more = self._transport.get_write_buffer_size() > 0
        self._deadline.within(self._write_timeout_s if has_more else LINGER_S)

    def _ended(self) -> None:
        self._owner.connections.discard(self)
        self._owner.connection_ended()

    # --- receiving --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self._has_last:
            self._has_surplus = True
            return
        was_in_body = self._incoming is not None
        was_receiving = self._is_receiving
        self._chunk_bytes = len(data)
        self._has_progressed = self._has_completed = False
        try:
            try:
                self._feed(data)
            except httptools.HttpParserInvalidMethodError:
                if was_receiving or self._has_completed:
                    raise  # it is not what this piece begins with
                self._feed_unknown_method(data)
        except (httptools.HttpParserError, _RefusedError):
            self._parse_failed()
            return
        if not self._is_receiving:
            return
        if self._incoming is not None:
            # What stands in a body without being of it is bounded like a head: extensions of
            # chunks, trailers.
            is_of_head = was_in_body and not self._has_progressed
        else:
            # A header that has not ended yet was not reported yet, so its bytes are counted raw.
            is_of_head = not self._has_completed
            self._is_head_uncounted |= self._has_completed
        if is_of_head:
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > self._limits.max_header_bytes:
                self._refuse(head_too_large(self._limits.max_header_bytes))
                return
        if not self._deadline.is_set:
            self._deadline.within(self._receive_timeout_s)

    def _parse_failed(self) -> None:
        if self._has_last:
            self._has_surplus = True
        else:
            malformed = Fault(Code.INVALID_VALUE, "the request is not valid HTTP/1.1")
            self._refuse(self._refusal or malformed)

    def _feed(self, data: bytes) -> None:
        """Parse. No other protocol is spoken here, but a request that wishes for one is served.

        The parser takes what follows such a head for that other protocol, the body included, so
        the head is read again without the wish.
        """
        rest: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
            method, version = self._parser.get_method(), self._parser.get_http_version()
            try:
                head = without_upgrade(method, self._url, version, self._pairs)
            except Fault as fault:
                self._end_parse(fault)
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(head)

    def _feed_unknown_method(self, data: bytes) -> None:
        """Parse a request whose method the parser does not know: whoever knows the path says what
        is allowed there."""
        line = _REQUEST_LINE.match(data)
        if line is None:
            raise _RefusedError
        self._unknown_method = line[1]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"OPTIONS" + data[line.end(1) :])

    # --- called by the parser ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._has_last:
            raise _RefusedError
        self._url = b""
        self._pairs = []
        self._has_progressed = True
        self._is_receiving = True
        self._incoming = None
        self._raw_head_bytes = 0
        self._is_head_uncounted = False
        self._body_bytes = self._body_bytes_at_check = 0
        self._deadline.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer must not overrule the head, by which a proxy or the edge itself has judged.
        if self._incoming is None:
            self._pairs.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return
        raw_bytes = self._raw_head_bytes + self._chunk_bytes
        limit = self._limits.max_header_bytes
        # What came may be more than the head, so it is then counted exactly.
        if (raw_bytes > limit or self._is_head_uncounted) and (
            head_size(self._url, self._pairs) > limit
        ):
            self._end_parse(head_too_large(limit))
        method, self._unknown_method = self._unknown_method or parser.get_method(), b""
        version = parser.get_http_version()
        try:
            path, query = target_of(self._url, self._pairs)
        except Fault as fault:
            self._end_parse(fault)
        request = Request(
            self,
            method=method.decode("ascii"),
            path=path,
            query=query,
            pairs=self._pairs,
            keeps_open=version == "1.1"
            and parser.should_keep_alive()
            and len(self._requests) + 1 < MAX_PIPELINED_AT_ONCE,
            is_http_1_0=version == "1.0",
        )
        try:
            judge_head(
                request.headers,
                self._pairs,
                version,
                max_body_bytes=self._limits.max_body_bytes,
            )
        except Fault as fault:
            self._end_parse(fault)
        self._wants_continue = waits_for_continue(request.headers, version)
        self._raw_head_bytes = 0
        self._incoming = request
        self._requests.append(request)
        if len(self._requests) > MAX_PIPELINED + 1:
            self._pause_reading()
        elif self._task is None:
            self._task = self._loop.create_task(self._serve())
            # Not at the end of the task: one that is cancelled before it began never ends.
            self._task.add_done_callback(self._on_served)
        else:
            self._wake()

    def on_body(self, body: bytes) -> None:
        request = self._incoming
        assert request is not None
        self._has_progressed = True
        self._raw_head_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.max_body_bytes:
            self._end_parse(body_too_large(self._body_bytes, self._limits.max_body_bytes))
        request.arrived(body)
        if self._body_bytes > MAX_UNASKED_BYTES and not (request.is_awaited or request.is_answered):
            self._pause_reading()

    def on_message_complete(self) -> None:
        request = self._incoming
        if request is None:
            return  # an upgrade: this head is read again
        self._is_receiving = False
        self._has_completed = True
        self._incoming = None
        self._has_last = not request.keeps_open
        self._deadline.clear()
        request.complete()
        if len(self._requests) <= MAX_PIPELINED + 1:
            # A caller who leaves is noticed only while it is read from.
            self._resume_reading()
        if not self._requests:
            self._rest()

    def _end_parse(self, fault: Fault) -> NoReturn:
        self._refusal = fault
        raise _RefusedError

    # --- handling ---------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Handle one request after the other, for as long as the connection lasts."""
        while not self._is_lost:
            if not self._requests:
                self._next = self._loop.create_future()
                await self._next
                continue
            if not await self._handle(self._requests[0]) or self._is_lost:
                return
            self._requests.popleft()
            self._resume_reading()
            if self._requests:
                continue
            if self._is_refused:
                self._write_refusal(self._url, self._pairs)
                return
            if not self._is_receiving:
                self._rest()

    async def _handle(self, request: Request) -> bool:
        """Whether the connection may go on after it."""
        try:
            await self._owner.handler(request)
        except asyncio.CancelledError:
            request.leave()
            if not self._is_refused:  # else the refusal is still to be read
                self._transport.abort()
            return False
        except Exception as error:
            self._owner.handler_failed(error)
        if request.is_answered:
            return request.keeps_open
        if not request.is_gone:
            self._end_unanswered(request)
        return False

    def _end_unanswered(self, request: Request) -> None:
        request.leave()
        if request.has_started:
            # A body that ends here must not look whole.
            self._transport.abort()
        else:
            self._refusal = Fault(Code.INTERNAL, "the request could not be handled")
            self._write_refusal(request.path.encode(), request.pairs)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._is_lost:
            self._ended()
        if not task.cancelled():
            task.result()

    def _wake(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def _cancel_handler(self) -> None:
        """The caller of the request in progress is gone. After the last byte of the answer its
        handler only puts its things away, and is let."""
        if (
            self._task is not None
            and self._requests
            and not self._requests[0].is_answered
            and self._owner.cancels_when_caller_leaves
        ):
            self._task.cancel()

    def _rest(self) -> None:
        """One request is over and the next has not begun."""
        if self._owner.is_stopping:
            self._close()
        else:
            self._deadline.within(KEEP_ALIVE_S)

    # --- asked for by requests ----------------------------------------------------------------

    def want_body(self) -> None:
        if self._wants_continue and not self._transport.is_closing():
            self._wants_continue = False
            self._transport.write(_CONTINUE)
        self._resume_reading()

    def keeps_open_after(self, request: Request) -> bool:
        is_last = self._owner.is_stopping and len(self._requests) == 1
        return request.keeps_open and not is_last

    async def writable(self) -> None:
        if self.is_write_paused:
            self._writable = self._loop.create_future()
            await self._writable

    def answered(self, request: Request) -> None:
        if not request.keeps_open:
            if request.is_whole and not self._has_surplus:
                self._close()
            else:
                self._linger()
        else:
            self._resume_reading()

    # --- refusing ---------------------------------------------------------------------------

    def _refuse(self, fault: Fault) -> None:
        """Answer a request that is none, after those before it, and close once the caller had
        time to read it."""
        self._is_refused = True
        self._refusal = fault
        self._deadline.clear()
        request = self._incoming
        if request is not None and request.is_answered:
            # It was answered before all of it had come, and is not answered twice.
            self._close()
            return
        if request is not None and request is not self._requests[0]:
            self._requests.remove(request)
            request = None
        if request is None:
            if not self._requests:
                self._write_refusal(self._url, self._pairs)
            return
        request.leave()
        self._cancel_handler()
        if request.has_started:
            self._transport.abort()
        else:
            self._write_refusal(self._url, self._pairs)

    def _write_refusal(self, url: bytes, pairs: ByteHeaders) -> None:
        """`url` and `pairs` are what is known of the request: a head that was not read to its end
        may still have said where it goes."""
        assert self._refusal is not None
        path, headers = url.decode("latin-1"), dict(pairs)
        self._transport.write(refusal_bytes(self._owner.render, self._refusal, path, headers))
        self._linger()

    def _refuse_connection(self) -> None:
        self._is_refused = True
        limit = self._limits.max_connections
        fault = Fault(Code.QUEUE_FULL, f"{limit} connections are open, which is the limit")
        self._transport.write(refusal_bytes(self._owner.render, fault, "", {}))
        self._close()

    # --- time and flow ------------------------------------------------------------------------

    def _on_deadline(self) -> None:
        if self.is_write_paused and (self._is_refused or not self._is_receiving):
            # How long an answer may take is another clock's to judge.
            self._deadline.within(self._write_timeout_s)
        elif self._is_refused or self._transport.is_closing():
            self._transport.abort()
        elif not self._is_receiving:
            self._close()
        elif self.is_read_paused or self._arrives_fast_enough():
            self._body_bytes_at_check = self._body_bytes
            self._deadline.within(self._receive_timeout_s)
        else:
            limit = self._limits.receive_timeout_ms
            self._refuse(
                Fault(Code.REQUEST_TIMEOUT, f"the request did not arrive within {limit} ms")
            )

    def _arrives_fast_enough(self) -> bool:
        arrived = self._body_bytes - self._body_bytes_at_check
        is_in_body = self._incoming is not None
        return is_in_body and arrived >= MIN_BODY_BYTES_PER_S * self._receive_timeout_s

    def _pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.is_read_paused:
            self.is_read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._untaken_bytes = untaken_bytes(self._transport)
        self._write_timer = self._loop.call_later(self._write_timeout_s, self._on_write_stall)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _on_write_stall(self) -> None:
        untaken = untaken_bytes(self._transport)
        if untaken == self._untaken_bytes:
            self._transport.abort()
            return
        self._untaken_bytes = untaken
        self._write_timer = self._loop.call_later(self._write_timeout_s, self._on_write_stall)
