"""The request body on its way to an upstream, and the moment at which it may have been received.

aiohttp hands a connected, not yet written connection to a payload: that is the last moment before
the first byte, and the only one at which "nothing was sent" is still known for certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import StreamWriter
from aiohttp.payload import Payload

from iop_node.adapters.base import Body
from iop_node.adapters.clocks import CallClocks


class UnfitConnection(ConnectionResetError):
    """Nothing was written to the connection, because it has ended or may be about to."""


class Upload(Payload):
    """One body for one upstream request.

    Calls `started` once, on a connection that `is_fit`, right before the first byte; on any other
    it writes nothing and may be sent again. A body in pieces is written as the pieces come; while
    one is waited for, the upstream's clock stands still. `failure` is what the source of the
    pieces raised, which is no fault of the upstream.
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
        self.clocks = clocks
        self._started = started
        self._head: bytes | None = None
        self.is_fit: Callable[[StreamWriter], bool] = lambda writer: True
        self.is_started = False
        self.is_sent = False
        self.failure: BaseException | None = None
        self.transport: asyncio.WriteTransport | None = None
        self.protocol: BaseProtocol | None = None

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
        assert isinstance(writer, StreamWriter)
        self.transport, self.protocol = writer.transport, writer.protocol
        if not self.is_fit(writer):
            raise UnfitConnection
        self.is_started = True
        self._started()
        self.clocks.awaiting_first_byte()
        await writer.write(head)
        if not isinstance(body, bytes):
            left = None if self._size is None else self._size - len(head)
            while piece := await self._next(body):
                if left is not None:
                    left -= len(piece)
                    if left < 0:
                        break
                self.clocks.awaiting_first_byte()
                await writer.write(piece)
            if left:
                self.failure = ValueError("the body does not have the length that was declared")
                raise self.failure
        self.clocks.awaiting_first_byte()
        self.is_sent = True

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes:
        """The next piece that is not empty; empty at the end."""
        self.clocks.pause()
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
