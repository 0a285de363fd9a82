"""How much a peer may send that costs work and carries nothing.

Pings, settings, priorities, empty frames and calls that are broken off are all allowed, and none
of them is worth anything in numbers. A connection bears so many at once, and so many a second. The
time is told by whoever asks.
"""

from __future__ import annotations

BURST = 1000
PER_SECOND = 200


class Patience:
    """One connection's. `now_s` is of a clock that never goes back."""

    __slots__ = ("_borne_at_s", "_burden")

    def __init__(self) -> None:
        self._burden = 0.0
        self._borne_at_s = 0.0

    def bears(self, now_s: float) -> bool:
        """One more has come: whether that is still to be borne."""
        eased = (now_s - self._borne_at_s) * PER_SECOND
        self._burden = max(0.0, self._burden - eased) + 1
        self._borne_at_s = now_s
        return self._burden <= BURST
