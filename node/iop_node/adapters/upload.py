"""A request body that comes in pieces, on its way to an upstream.

It decides when the next piece is asked for, how it is framed, and what a body is that has another
length than was declared. It never holds more than one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from iop_node.adapters.clocks import CallClocks
from iop_node.adapters.http1.answer import UpstreamAnswer
from iop_node.adapters.http1.connection import Connection

WHOLE_BYTES = 65_536
"""A body that is longer is sent in slices of this length, so that an upstream that takes nothing
is noticed."""


class Upload:
    """One body for one request. `first` is awaited once, before there is a connection: until the
    first piece is there, nothing has been started.

    While a piece is waited for, the upstream's clock stands still. What the source of the pieces
    raises is no fault of the upstream, and is raised where the answer is awaited.
    """

    def __init__(
        self, pieces: AsyncIterator[bytes], declared_bytes: int | None, clocks: CallClocks
    ) -> None:
        self._pieces = pieces
        self._left = declared_bytes
        self._clocks = clocks
        self._task: asyncio.Task[None] | None = None
        self.is_complete = False
        """Whether the piece that came last was the last."""

    async def first(self) -> bytes:
        """The first piece as it is to be written, with the end of the body where it has none."""
        self._clocks.pause()
        return await self._next()

    def start(self, connection: Connection, answer: UpstreamAnswer) -> None:
        """Write what follows the first piece, beside whoever awaits the answer."""
        self._task = asyncio.get_running_loop().create_task(self._write(connection, answer))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _write(self, connection: Connection, answer: UpstreamAnswer) -> None:
        try:
            while not self.is_complete:
                if not answer.status:
                    self._clocks.pause()
                framed = await self._next()
                if not connection.is_open:
                    return
                if not answer.status:
                    self._clocks.awaiting_first_byte()
                await connection.write(framed)
            connection.end_request()
        except Exception as error:
            answer.fail(error)

    async def _next(self) -> bytes:
        """The next piece that is not empty, framed; the end where there is none."""
        piece = await anext(self._pieces, None)
        while piece == b"":
            piece = await anext(self._pieces, None)
        if self._left is None:
            self.is_complete = piece is None
            return b"0\r\n\r\n" if piece is None else b"%x\r\n%b\r\n" % (len(piece), piece)
        self.is_complete = piece is None
        self._left -= 0 if piece is None else len(piece)
        if self._left < 0 or (piece is None and self._left):
            raise ValueError("the body does not have the length that was declared")
        return piece or b""


class Slices:
    """A long body in pieces."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._start = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        start = self._start
        if start >= len(self._body):
            raise StopAsyncIteration
        self._start += WHOLE_BYTES
        return self._body[start : start + WHOLE_BYTES]
