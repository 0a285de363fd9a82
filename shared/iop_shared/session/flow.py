"""Credit windows: how many bytes of one attempt may be under way in one direction.

Like HTTP/2's, but per attempt only: what bounds the whole is the budget. A sender spends credit
when it queues bytes and waits when there is none; a receiver gives credit back when its reader has
*consumed* bytes, at half a window, so that a reader who does not read stops exactly one sender
(NODE-8). Nothing here knows what the bytes are.
"""

from __future__ import annotations

INITIAL_WINDOW_BYTES = 64 * 1024
"""What each direction of an attempt begins with; told to the node in the welcome."""

MAX_WINDOW_BYTES = 256 * 1024
"""What a window grows to for a reader that keeps up."""


CREDIT_LIMIT_BYTES = 16 * 1024 * 1024
"""More credit than this is a mistake of the peer's, whatever window a later version grows to."""

MIN_EVENT_COST_BYTES = 64
"""What a waiting event takes at the least, however short: a run of empty ones is bounded too."""

MAX_EVENT_COST_BYTES = 16 * 1024

MAX_EVENT_BYTES = 2 * MAX_EVENT_COST_BYTES
"""How long an event may be. The cost is bounded below what a window begins with, so without this
a few long events would hold any amount of memory for a window's worth of credit."""


class FlowViolation(Exception):
    """The peer broke the credit rules: a protocol error, the session cannot go on."""

    def __init__(self, what: str, actual: int, allowed: int) -> None:
        super().__init__(f"{actual} bytes {what}, at most {allowed} are allowed")
        self.actual = actual
        self.allowed = allowed


def event_cost(frame_bytes: int) -> int:
    """What a frame that cannot be cut costs in credit: its size, within bounds that memory is
    worth and that every window can pay. Both ends reckon it alike. Raises FlowViolation over
    MAX_EVENT_BYTES."""
    if frame_bytes > MAX_EVENT_BYTES:
        raise FlowViolation("in one event", frame_bytes, MAX_EVENT_BYTES)
    return max(MIN_EVENT_COST_BYTES, min(frame_bytes, MAX_EVENT_COST_BYTES))


class WindowBudget:
    """Bytes that all grown windows of a process may take beyond their initial size.

    Without it, a thousand fast readers that stop at once could pin a thousand full windows.
    """

    def __init__(self, limit_bytes: int = 256 * 1024 * 1024) -> None:
        self._left = limit_bytes

    @property
    def left_bytes(self) -> int:
        return self._left

    def reserve(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class SendWindow:
    """The sender's side: credit still unspent. Never negative."""

    __slots__ = ("available",)

    def __init__(self, initial: int = INITIAL_WINDOW_BYTES) -> None:
        self.available = initial

    def spend(self, wanted: int) -> int:
        """Spend up to `wanted` bytes; return how many may be queued now, 0 for none."""
        allowed = min(wanted, self.available)
        self.available -= allowed
        return allowed

    def spend_whole(self, wanted: int) -> bool:
        """Spend exactly `wanted` bytes, or nothing."""
        if wanted > self.available:
            return False
        self.available -= wanted
        return True

    def grant(self, size: int) -> None:
        """The reader has taken bytes. Raises FlowViolation beyond CREDIT_LIMIT_BYTES."""
        if self.available + size > CREDIT_LIMIT_BYTES:
            raise FlowViolation("of credit", self.available + size, CREDIT_LIMIT_BYTES)
        self.available += size


class ReceiveWindow:
    """The receiver's side: what the peer may still send, and what to give back when.

    Credit is returned once half a window has been consumed. A window doubles, up to
    `MAX_WINDOW_BYTES` and within the budget, each time a return finds everything received also
    consumed: the reader is faster than the window, so the window is what holds it up.
    """

    __slots__ = ("_budget", "_consumed", "_credit", "_initial", "_size", "_unread")

    def __init__(self, budget: WindowBudget, initial: int = INITIAL_WINDOW_BYTES) -> None:
        self._budget = budget
        self._initial = initial
        self._size = initial
        self._credit = initial
        self._unread = 0
        self._consumed = 0

    @property
    def size(self) -> int:
        return self._size

    @property
    def unread_bytes(self) -> int:
        """Received and not yet consumed: the memory this attempt holds."""
        return self._unread

    def received(self, size: int) -> None:
        """Bytes arrived. Raises FlowViolation beyond what was granted."""
        if size > self._credit:
            raise FlowViolation("received", size, self._credit)
        self._credit -= size
        self._unread += size

    def consumed(self, size: int) -> int:
        """The reader took bytes. Returns the credit to send now, 0 while it can wait."""
        self._unread -= size
        self._consumed += size
        if self._consumed * 2 < self._size:
            return 0
        returned = self._consumed
        if self._unread == 0:
            returned += self._grow()
        self._consumed = 0
        self._credit += returned
        return returned

    def close(self) -> None:
        """The attempt is over: what the window had grown by goes back to the budget."""
        self._budget.give_back(self._size - self._initial)
        self._size = self._initial

    def _grow(self) -> int:
        growth = min(self._size, MAX_WINDOW_BYTES - self._size)
        if growth <= 0 or not self._budget.reserve(growth):
            return 0
        self._size += growth
        return growth
