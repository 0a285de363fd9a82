"""One attempt as the edge sees it: one lease's execution on one node.

It is the meeting point of two sides that never wait for each other: the session puts frames in as
they arrive, the run takes them out as its caller reads. What lies between is bounded by the credit
window. It does not know which provider it is, nor what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from iop.runtime_pb2 import ResponseHead, RunEvent
from iop_shared.errors import Fault
from iop_shared.session.flow import ReceiveWindow, SendWindow

_SMALL_CHUNK_BYTES = 4_096


class AttemptLink(Protocol):
    """What an attempt needs of the session that carries it."""

    def send_body(self, attempt_id: int, content: bytes) -> None: ...
    def end_body(self, attempt_id: int) -> None: ...
    def send_credit(self, attempt_id: int, size: int) -> None: ...
    def cancel_attempt(self, attempt_id: int, reason: str) -> None: ...


class Attempt:
    """Read `head()` first. Where it gives a head, read `next_chunk()` until it gives None; where it
    gives none, `next_event()` likewise. Each raises the Fault that ended the attempt. One reader
    only."""

    __slots__ = (
        "_body_left",
        "_chunks",
        "_ended",
        "_events",
        "_fault",
        "_head",
        "_is_cancelled",
        "_link",
        "_receive_window",
        "_send_window",
        "_waiter",
        "attempt_id",
        "has_upstream_started",
        "tell_end",
    )

    def __init__(
        self,
        link: AttemptLink,
        attempt_id: int,
        *,
        receive_window: ReceiveWindow,
        send_window: SendWindow,
    ) -> None:
        self._link = link
        self.attempt_id = attempt_id
        self.has_upstream_started = False
        self._receive_window = receive_window
        self._send_window = send_window
        self._body_left = memoryview(b"")
        self._head: ResponseHead | None = None
        self._chunks: deque[bytes | bytearray] = deque()
        self._events: deque[tuple[RunEvent, int]] = deque()
        self._ended = False
        self._is_cancelled = False
        self._fault: Fault | None = None
        self.tell_end: Callable[[Attempt], None] | None = None
        """Called once with this attempt, as it ends."""
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self._ended else "open"
        return f"Attempt({self.attempt_id}, {state}, unread={self._receive_window.unread_bytes})"

    @property
    def status(self) -> int | None:
        """The HTTP status of the upstream's answer; None where no answer of that kind began."""
        return None if self._head is None else self._head.status

    @property
    def end(self) -> str | None:
        """How it ended, as a record says it; None while it runs."""
        if not self._ended:
            return None
        if self._is_cancelled:
            return "cancelled"
        return "completed" if self._fault is None else f"error:{self._fault.code.value}"

    # -- the run's side ------------------------------------------------------------------------

    async def head(self) -> ResponseHead | None:
        """The upstream's status and headers, or None where the events of a run come instead.

        Raises the Fault that came instead of either.
        """
        while self._head is None and not self._events:
            if self._ended:
                self._raise_if_faulty()
                return None
            await self._change()
        return self._head

    async def next_chunk(self) -> bytes | None:
        """All body bytes that have arrived, at least one; None once the answer is complete.

        Taking them returns credit to the node. Raises the Fault that cut the answer, after
        everything that came before it has been taken.
        """
        while not self._chunks:
            if self._ended:
                self._raise_if_faulty()
                return None
            await self._change()
        chunks = self._chunks
        first = chunks[0]
        content = first if len(chunks) == 1 and type(first) is bytes else b"".join(chunks)
        chunks.clear()
        self._consumed(len(content))
        return content

    async def next_event(self) -> RunEvent | None:
        """The next event of a normalized run; None once it is complete. As `next_chunk`."""
        while not self._events:
            if self._ended:
                self._raise_if_faulty()
                return None
            await self._change()
        event, cost = self._events.popleft()
        self._consumed(cost)
        return event

    async def has_arrived(self, deadline: float | None) -> bool:
        """Wait for what `next_chunk` or `next_event` would give at once, the end included; at most
        until then (the loop's clock, None for ever). False where nothing came in time."""
        loop = asyncio.get_running_loop()
        while not (self._chunks or self._events or self._ended):
            if deadline is None:
                await self._change()
                continue
            if loop.time() >= deadline:
                return False
            # Set anew each time: a loop whose clock has a resolution may call a little early.
            timer = loop.call_at(deadline, self._wake)
            try:
                await self._change()
            finally:
                timer.cancel()
        return True

    def cancel(self, reason: str) -> None:
        """Give the attempt up: the node is told, and closes its upstream (NODE-7). Idempotent."""
        if not self._ended:
            self._is_cancelled = True
            self._link.cancel_attempt(self.attempt_id, reason)

    # -- the session's side --------------------------------------------------------------------

    def begin_body(self, body: bytes) -> None:
        """Send a body too long for the opening frame, as far as credit allows."""
        self._body_left = memoryview(body)
        self._continue_body()

    def on_started(self) -> None:
        self.has_upstream_started = True

    def on_credit(self, size: int) -> None:
        self._send_window.grant(size)
        self._continue_body()

    def on_head(self, head: ResponseHead) -> None:
        self.has_upstream_started = True
        if self._head is None:
            self._head = head
            self._wake()

    def on_chunk(self, content: bytes) -> None:
        """Raises FlowViolation where the node sends more than it has credit for."""
        self._receive_window.received(len(content))
        if not content:
            return
        chunks = self._chunks
        if chunks and len(chunks[-1]) < _SMALL_CHUNK_BYTES:
            # Pieces that nobody takes grow together: by itself, each would cost more than its
            # credit (NODE-8).
            last = chunks[-1]
            if not isinstance(last, bytearray):
                last = chunks[-1] = bytearray(last)
            last += content
        else:
            chunks.append(content)
            self._wake()

    def on_event(self, event: RunEvent, cost: int) -> None:
        """`cost` is in bytes of credit. Raises FlowViolation as `on_chunk`."""
        self.has_upstream_started = True
        self._receive_window.received(cost)
        self._events.append((event, cost))
        self._wake()

    def on_end(self, fault: Fault | None) -> None:
        """The attempt is over, by an answer that is complete (None) or by a fault. Once."""
        if self._ended:
            return
        self._ended = True
        self._fault = fault
        self._body_left = memoryview(b"")
        self._receive_window.close()
        if self.tell_end is not None:
            self.tell_end(self)
        self._wake()

    # ------------------------------------------------------------------------------------------

    def _continue_body(self) -> None:
        left = self._body_left
        while left:
            allowed = self._send_window.spend(len(left))
            if not allowed:
                self._body_left = left
                return
            self._link.send_body(self.attempt_id, bytes(left[:allowed]))
            left = left[allowed:]
            if not left:
                self._link.end_body(self.attempt_id)
        self._body_left = left

    def _consumed(self, size: int) -> None:
        if not self._ended:
            credit = self._receive_window.consumed(size)
            if credit:
                self._link.send_credit(self.attempt_id, credit)

    def _raise_if_faulty(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _change(self) -> asyncio.Future[None]:
        """To be awaited: something has arrived, or the attempt has ended."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
