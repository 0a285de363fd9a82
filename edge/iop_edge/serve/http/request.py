"""One request, and the means to answer it.

It frames the answer: its head, its length or its chunks, and its end. It knows no socket: bytes go
to the `Caller`, in as few writes as possible. A write is a system call, and that is what a
response costs most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from iop_edge.serve.http.errors import JSON, id_headers, request_id_of
from iop_edge.serve.http.head import ByteHeaders, response_head

MAX_WRITE_BYTES = 262_144
"""A longer end of an answer is sent in pieces, each once the caller has taken most of the last: no
copy of it waits, and a connection is closed with little that is still to be taken."""

_BODILESS = frozenset({204, 304})
_CHUNKED = ((b"transfer-encoding", b"chunked"),)


class CallerGoneError(Exception):
    """The caller left while its request was read. The router ends quietly on it."""


class Caller(Protocol):
    """What a request asks of its connection."""

    @property
    def is_write_paused(self) -> bool:
        """The caller takes less than it is sent: wait for `writable` before the next write."""
        ...

    async def writable(self) -> None: ...

    @property
    def write(self) -> Callable[[bytes], None]: ...

    def keeps_open_after(self, request: Request) -> bool:
        """Asked once, when the head of the answer is made."""
        ...

    def want_body(self) -> None:
        """The handler waits for the body that has not arrived yet."""
        ...

    def answered(self, request: Request) -> None:
        """The last byte of the answer has been written."""
        ...


class Request:
    """One request. Header names are lower case bytes; of a header that is repeated, `headers` has
    the last and `pairs` has all."""

    __slots__ = (
        "_arrival", "_caller", "_head", "_is_bodiless", "_is_chunked", "_is_http_1_0", "_left",
        "_parts", "has_started", "headers", "is_accounted", "is_answered", "is_gone", "is_whole",
        "keeps_open", "method", "pairs", "path", "query", "request_id", "tail",
    )  # fmt: skip

    def __init__(
        self,
        caller: Caller,
        *,
        method: str,
        path: str,
        query: str = "",
        pairs: ByteHeaders = (),
        keeps_open: bool = True,
        is_http_1_0: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.pairs = pairs
        self.headers: dict[bytes, bytes] = dict(pairs)
        self.request_id = request_id_of(self.headers)
        self.tail = ""
        """What follows the prefix of a route that takes one."""
        self.keeps_open = keeps_open
        """The caller may send another request on this connection."""
        self.has_started = False
        """The response has begun, so its status can no longer change."""
        self.is_answered = False
        """The response is complete, as far as it depends on the handler."""
        self.is_whole = False
        """All of the body has arrived."""
        self.is_accounted = False
        """What comes of it stands on the record of a run."""
        self.is_gone = False
        """Nobody is there any more who would read an answer; none is written."""
        self._caller = caller
        self._is_http_1_0 = is_http_1_0
        self._parts: list[bytes] = []
        self._arrival: asyncio.Future[None] | None = None
        self._head = b""
        self._is_bodiless = method == "HEAD"
        self._is_chunked = False
        self._left: int | None = None

    def __repr__(self) -> str:
        return f"Request({self.method} {self.path}, {self.request_id})"

    # --- the body of the request --------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body, once; the listener has bounded its size and its time of arrival.

        Raises CallerGoneError where the rest of it will not come.
        """
        if not self.is_whole and not self.is_gone:
            self._arrival = asyncio.get_running_loop().create_future()
            self._caller.want_body()
            await self._arrival
        if self.is_gone:
            raise CallerGoneError
        parts = self._parts
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_awaited(self) -> bool:
        """A handler waits for the body."""
        return self._arrival is not None

    def arrived(self, part: bytes) -> None:
        """A part of the body, in its order. What comes after the answer is let go."""
        if not self.is_answered:
            self._parts.append(part)

    def complete(self) -> None:
        """The whole body has arrived."""
        self.is_whole = True
        self._wake()

    def leave(self) -> None:
        """The caller is gone, or will be answered by somebody else."""
        self.is_gone = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # --- the response -------------------------------------------------------------------------

    async def respond(
        self, status: int, body: bytes, headers: ByteHeaders = ((b"content-type", JSON),)
    ) -> None:
        """Send a whole response; length and request id are added."""
        length = (b"content-length", b"%d" % len(body))
        head = self._begin(status, (*headers, length))
        await self._end(head if self._is_bodiless else head + body)

    async def start(self, status: int, headers: ByteHeaders) -> None:
        """Begin a response of which `write` and `finish` send the body; the request id is added.

        The head goes out together with the first part of the body.
        """
        length = next((value for name, value in headers if name == b"content-length"), None)
        if length is not None:
            self._left = int(length)
        elif not self._is_http_1_0 and status not in _BODILESS and not self._is_bodiless:
            # Without chunks, the body ends with the connection.
            self._is_chunked = True
            headers = (*headers, *_CHUNKED)
        self._is_bodiless |= status in _BODILESS
        self._head = self._begin(status, headers)

    async def write(self, chunk: bytes) -> None:
        """Send a part of the body; waits while the caller does not read."""
        data = self._framed(chunk)
        if self._caller.is_write_paused:
            await self._caller.writable()
        if data and not self.is_gone:
            self._caller.write(data)

    async def finish(self, chunk: bytes = b"") -> None:
        """Send the last part of the body."""
        data = self._framed(chunk)
        if self._left and not self._is_bodiless:
            raise RuntimeError(f"the body ends {self._left} bytes before its declared length")
        await self._end(data + b"0\r\n\r\n" if self._is_chunked else data)

    def _begin(self, status: int, headers: ByteHeaders) -> bytes:
        """The head of the response, which begins with it."""
        if self.has_started:
            raise RuntimeError("the response has begun already")
        self.keeps_open = self._caller.keeps_open_after(self)
        named = (*headers, *id_headers(self.request_id, self.path))
        head = response_head(status, named, keeps_open=self.keeps_open)
        self.has_started = True
        return head

    def _framed(self, chunk: bytes) -> bytes:
        """A part of the body as it goes over the wire, after the head where that still waits."""
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""
        elif self._is_bodiless:
            chunk = b""
        elif self._left is not None:
            self._left -= len(chunk)
            if self._left < 0:
                raise RuntimeError("the body is longer than its declared length")
        if self._head:
            chunk, self._head = self._head + chunk, b""
        return chunk

    async def _end(self, data: bytes) -> None:
        if len(data) > MAX_WRITE_BYTES:
            data = await self._write_pieces(data)
        if self._caller.is_write_paused:
            await self._caller.writable()
        self.is_answered = True
        if not self.is_gone:
            self._caller.write(data)
            self._caller.answered(self)

    async def _write_pieces(self, data: bytes) -> bytes:
        """Send all but the last piece, which is returned."""
        last = (len(data) - 1) // MAX_WRITE_BYTES * MAX_WRITE_BYTES
        for start in range(0, last, MAX_WRITE_BYTES):
            if self._caller.is_write_paused:
                await self._caller.writable()
            if self.is_gone:
                break
            self._caller.write(data[start : start + MAX_WRITE_BYTES])
        return data[last:]


Handler = Callable[[Request], Awaitable[None]]
