"""The answer to one request while it arrives: between the connection and whoever reads it.

It outlives its hold on the connection: one that has come whole is read at leisure while the
connection carries the next request. What is held is bounded by not reading from the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from iop_node.adapters.clocks import CallClocks
from iop_node.adapters.http1.reader import Fields
from iop_shared.errors import Fault

MAX_HELD_BYTES = 65_536
"""Body bytes held for a reader that does not read; past it the connection is not read either. What
arrives at once still comes on top."""


class Source(Protocol):
    """The connection, for as long as the answer needs it."""

    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


class UpstreamAnswer:
    """Filled by a ResponseReader, emptied by one reader."""

    __slots__ = (
        "_clocks",
        "_error",
        "_has_begun",
        "_pieces",
        "_waiter",
        "fields",
        "held_bytes",
        "is_whole",
        "source",
        "status",
    )

    def __init__(self, source: Source, clocks: CallClocks) -> None:
        self.status = 0
        """0 until the head has come."""
        self.fields: Fields = []
        self.held_bytes = 0
        self.is_whole = False
        """All of it has come."""
        self.source: Source | None = source
        """None once the body has come whole, even before it is read."""
        self._clocks = clocks
        self._pieces: list[bytes] = []
        self._has_begun = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    # --- filling ------------------------------------------------------------------------------

    def begin(self, status: int, fields: Fields) -> None:
        self.status = status
        self.fields = fields

    def take(self, content: bytes) -> None:
        self._pieces.append(content)
        self.held_bytes += len(content)

    def complete(self) -> None:
        self.is_whole = True

    def fail(self, error: BaseException) -> None:
        """What came so far is still read; then the first error is raised."""
        if self._error is None and not self.is_whole:
            self._error = error
            self.wake()

    def wake(self) -> None:
        """Something has changed."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    # --- reading ------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """All of it has come, and was read."""
        return self.is_whole and not self._pieces

    async def head(self) -> None:
        """Wait for the head. Raises Fault(upstream_closed, upstream_invalid), and what the source
        of the request's body raised."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._change()

    async def read(self) -> bytes:
        """The next bytes of the body as they come; empty once it is complete.

        The first byte has its own clock, which runs from the end of the request: many servers
        send their head at once and think afterwards. Between two calls no phase runs, so that a
        caller who is slow to read costs the upstream nothing. Raises Fault(upstream_closed) for a
        body that is cut, and Fault(upstream_invalid) for one that breaks its framing.
        """
        while not self._pieces:
            if self.is_whole:
                return b""
            if self._error is not None:
                raise self._error
            if self._has_begun:
                self._clocks.awaiting_next_byte()
            await self._change()
        pieces = self._pieces
        content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.held_bytes = 0
        self._has_begun = True
        self._clocks.pause()
        if self.source is not None:
            self.source.resume_reading()
        return content

    async def linger(self, limit_s: float) -> None:
        """Wait a little for the end of a body whose content is known to be complete, so that its
        connection can be used again. Never raises for what the upstream does."""
        self._clocks.stop()
        with suppress(TimeoutError, Fault):
            async with asyncio.timeout(limit_s):
                while await self.read():
                    pass

    def _change(self) -> asyncio.Future[None]:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter
