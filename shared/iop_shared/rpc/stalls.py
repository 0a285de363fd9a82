"""Peers that take nothing of what waits for them: they are noticed, and given up.

It looks twice, a while apart: what has not moved in between is stalled. Nothing runs while nothing
waits. What is done about it is the connection's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STALL_TIMEOUT_S = 60.0
"""A peer is given up that has taken nothing for this long, and before twice this."""


class StallWatch:
    """Calls `look` every STALL_TIMEOUT_S while it says that there is still something to watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], bool]) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Something waits from now on. Nothing happens while it is watching already."""
        if self._timer is None:
            self._timer = self._loop.call_later(STALL_TIMEOUT_S, self._due)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        if self._look():
            self.begin()
