"""A deadline that is moved often and looked at seldom.

Setting a timer and cancelling it costs more than all else that a phase of a connection does. So
phases move a number, and one timer looks at it when it fires: a deadline that was put off costs
nothing until then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls `on_missed` once when the time that was set last has passed."""

    __slots__ = ("_at", "_loop", "_on_missed", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_missed: Callable[[], None]) -> None:
        self._loop = loop
        self._on_missed = on_missed
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    @property
    def is_set(self) -> bool:
        return self._at != math.inf

    def within(self, seconds: float) -> None:
        """Set it to so many seconds from now, whatever it was before."""
        self._at = self._loop.time() + seconds
        if self._timer is None or self._timer_at > self._at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def clear(self) -> None:
        """Nothing is due any more."""
        self._at = math.inf

    def close(self) -> None:
        """Clear it for good, with its timer."""
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer_at = self._at
        self._timer = self._loop.call_at(self._at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self.is_set:
            return
        if self._loop.time() < self._at:
            self._arm()
        else:
            self.clear()
            self._on_missed()
