"""How many log lines one peer may cause: a burst, and then one now and then.

Pure but for where it lives: clock values come in. What is not written is counted, so that the next
line which is can say how much is missing.
"""

from __future__ import annotations

BURST_LINES = 64
INTERVAL_S = 5.0
"""A burst that was used up fills again by one line in so many seconds."""


class LineQuota:
    """One peer's. Ask `allows` before every line."""

    __slots__ = ("_left", "_since", "suppressed")

    def __init__(self) -> None:
        self._left = float(BURST_LINES)
        self._since: float | None = None
        self.suppressed = 0

    def allows(self, now: float) -> bool:
        """Whether a line may be written now; one that may not is counted. `now` is monotonic, in
        seconds."""
        passed = 0.0 if self._since is None else now - self._since
        self._since = now
        self._left = min(float(BURST_LINES), self._left + passed / INTERVAL_S)
        if self._left < 1:
            self.suppressed += 1
            return False
        self._left -= 1
        return True

    def take_suppressed(self) -> int:
        """How many lines were not written since this was last asked."""
        count, self.suppressed = self.suppressed, 0
        return count
