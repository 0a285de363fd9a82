"""One connection to an upstream: carries one exchange at a time, and says when it is free.

It moves bytes between the transport, the reader of responses and the answer that is being filled.
It never knows which exchange it should carry, nor how long anything may take.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol, cast

from iop_node.adapters.clocks import CallClocks
from iop_node.adapters.http1.answer import MAX_HELD_BYTES, UpstreamAnswer
from iop_node.adapters.http1.dial import Abortable
from iop_node.adapters.http1.endpoint import Origin
from iop_node.adapters.http1.reader import ResponseReader, closed
from iop_shared.errors import Fault


class Owner(Protocol):
    def freed(self, connection: Connection, *, after_chunked: bool) -> None:
        """Its exchange is over, and it can carry another."""
        ...

    def lost(self, connection: Connection) -> None: ...


class Connection(Abortable):
    """Made by its owner, opened by the loop."""

    def __init__(self, origin: Origin, owner: Owner) -> None:
        self.origin = origin
        self.usable_from = 0.0
        self.usable_until = 0.0
        """The owner's own marks, in the loop's time."""
        self._owner = owner
        self._reader = ResponseReader()
        self._answer: UpstreamAnswer | None = None
        self._is_sent = False
        self._is_reading_paused = False
        self._poll = select.poll()
        self._writable: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        state = "idle" if self._answer is None else "busy"
        return f"Connection({'closing' if self._transport.is_closing() else state})"

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def is_fit(self) -> bool:
        """Whether a request may be written to a connection that was idle: it is open, and nothing
        can be read from it, which could only be its end that the loop has not yet come round to."""
        return not self._transport.is_closing() and not self._poll.poll(0)

    # --- sending ------------------------------------------------------------------------------

    def send(
        self, content: bytes, clocks: CallClocks, *, is_to_head: bool, is_all: bool
    ) -> UpstreamAnswer:
        """Write the head of a request and its first bytes; what is filled from now on is returned.

        `is_all`: nothing follows. Else `write` what does, and then `end_request`.
        """
        assert self._answer is None, "a connection carries one exchange at a time"
        answer = self._answer = UpstreamAnswer(self, clocks)
        self._is_sent = is_all
        self._reader.expect(answer, is_to_head=is_to_head)
        self._transport.write(content)
        return answer

    async def write(self, content: bytes) -> None:
        """Write more of the request, and wait until there is room for what comes next."""
        self._transport.write(content)
        if self._writable is not None:
            await self._writable

    def end_request(self) -> None:
        self._is_sent = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, with what was not yet sent. Closing would wait until an upstream that
        reads nothing has read everything."""
        self._transport.abort()

    # --- called by the transport --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, content: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Nobody has asked, so this would be taken for the answer to the next request.
            self._transport.abort()
            return
        try:
            self._reader.feed(content)
        except Fault as fault:
            self._answer = answer.source = None
            self._transport.abort()
            answer.fail(fault)
            return
        if answer.is_whole:
            self._end_exchange(answer)
        elif answer.held_bytes > MAX_HELD_BYTES and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()
        answer.wake()

    def eof_received(self) -> None:
        """An upstream that ends its side is gone: the transport closes."""

    def connection_lost(self, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.source = None
            try:
                if error is not None:
                    raise closed()
                self._reader.end()
            except Fault as fault:
                answer.fail(fault)
            answer.wake()
        self._reader.close()
        self.resume_writing()
        self._owner.lost(self)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # ------------------------------------------------------------------------------------------

    def _end_exchange(self, answer: UpstreamAnswer) -> None:
        self._answer = answer.source = None
        if self._is_sent and self._reader.is_reusable:
            self.resume_reading()
            self._owner.freed(self, after_chunked=self._reader.is_chunked)
        else:
            self._transport.abort()
