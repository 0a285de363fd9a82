"""The request body on its way to an upstream, and the moment at which it may have been received.

aiohttp hands a connected, not yet written connection to a payload: that is the last moment before
the first byte, and the only one at which "nothing was sent" is still known for certain.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from iop_node.adapters.base import Body
from iop_node.adapters.clocks import CallClocks


class StaleConnection(ConnectionResetError):
    """A pooled connection had ended before anything was written to it."""


class Upload(Payload):
    """One body for one upstream request.

    Calls `started` once, on a live connection, right before the first byte. A body in pieces is
    written as the pieces come; while one is waited for, the upstream's clock stands still.
    `failure` is what the source of the pieces raised, which is no fault of the upstream.
    """

    def __init__(
        self,
        body: Body,
        content_length: int | None,
        clocks: CallClocks,
        started: Callable[[], None],
    ) -> None:
        super().__init__(None)
        self._body = body
        self._size = len(body) if isinstance(body, bytes) else content_length
        self._clocks = clocks
        self._started = started
        self._head: bytes | None = None
        self.is_probing_connection = True
        self.is_started = False
        self.is_sent = False
        self.failure: BaseException | None = None
        self.transport: asyncio.WriteTransport | None = None

    @property
    def consumed(self) -> bool:
        # Keeps aiohttp from sending it a second time by itself.
        return self.is_started

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a body on its way to an upstream is not shown")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        body = self._body
        if self._head is None:
            self._head = body if isinstance(body, bytes) else await self._next(body)
        head = self._head
        self.transport = writer.transport
        if not _is_live(self.transport, probe=self.is_probing_connection):
            raise StaleConnection
        self.is_started = True
        self._started()
        self._clocks.awaiting_first_byte()
        await writer.write(head)
        if not isinstance(body, bytes):
            left = None if self._size is None else self._size - len(head)
            while piece := await self._next(body):
                if left is not None:
                    left -= len(piece)
                    if left < 0:
                        break
                self._clocks.awaiting_first_byte()
                await writer.write(piece)
            if left:
                self.failure = ValueError("the body does not have the length that was declared")
                raise self.failure
        self._clocks.awaiting_first_byte()
        self.is_sent = True

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes:
        """The next piece that is not empty; empty at the end."""
        self._clocks.pause()
        try:
            while True:
                piece = await anext(pieces, None)
                if piece is None:
                    return b""
                if piece:
                    return piece
        except BaseException as error:
            self.failure = error
            raise


def _is_live(transport: asyncio.WriteTransport | None, *, probe: bool) -> bool:
    """Whether a request may be written to this connection.

    An idle HTTP/1.1 connection on which something can be read has ended, or is about to: the
    loop has only not come round to it yet. With TLS that proves nothing (session tickets).
    """
    if transport is None or transport.is_closing():
        return False
    if not probe or transport.get_extra_info("sslcontext") is not None:
        return True
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return not poll.poll(0)
