"""How long to wait before the next try: exponential, capped, jittered.

Pure. Randomness is passed in, and whoever waits has the clock.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that grow until they reach a cap (NODE-6).

    The ceiling of the n-th delay is `first_s * factor ** (n - 1)`, at most `cap_s`. The delay is
    drawn evenly between a tenth of its ceiling and the ceiling, so that many nodes which lost the
    same edge at the same moment do not come back at the same moment, and none comes back at once.
    `draw` returns evenly distributed numbers in [0, 1).
    """

    def __init__(
        self,
        draw: Callable[[], float],
        *,
        first_s: float = 0.5,
        cap_s: float = 30.0,
        factor: float = 2.0,
    ) -> None:
        if not 0 < first_s <= cap_s:
            raise ValueError(f"first_s must lie in (0, cap_s], not {first_s} with cap {cap_s}")
        if factor < 1:
            raise ValueError(f"factor must be at least 1, not {factor}")
        self._draw = draw
        self._first_s = first_s
        self._cap_s = cap_s
        self._factor = factor
        self._ceiling_s = first_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """How many delays were handed out since the last success."""
        return self._failures

    def next_delay_s(self) -> float:
        """Note a failure and return how long to wait, in seconds, at most `cap_s`."""
        ceiling_s = self._ceiling_s
        self._failures += 1
        self._ceiling_s = min(self._cap_s, ceiling_s * self._factor)
        return ceiling_s * (0.1 + 0.9 * self._draw())

    def reset(self) -> None:
        """Note a success: the next delay is drawn from the first ceiling again."""
        self._failures = 0
        self._ceiling_s = self._first_s
