"""When to send a heartbeat, and when a silent peer is lost (NODE-6).

Anything received counts as a sign of life, anything sent saves a heartbeat. Clock values are
monotonic seconds and come in from outside.
"""

from __future__ import annotations

HEARTBEAT_INTERVAL_S = 4.0
SILENCE_LIMIT_S = 12.0
"""Three missed heartbeats; with the check's own granularity still within 15 s."""


class Liveness:
    """Ask `due` at `next_due`; tell it of everything sent and received."""

    __slots__ = ("_heard", "_interval", "_limit", "_said")

    def __init__(
        self,
        now: float,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        if not 0 < interval_s < silence_limit_s:
            raise ValueError(
                f"a heartbeat every {interval_s} s needs a longer silence limit, not "
                f"{silence_limit_s} s"
            )
        self._interval = interval_s
        self._limit = silence_limit_s
        self._heard = now
        self._said = now

    @property
    def last_heard(self) -> float:
        return self._heard

    def heard(self, now: float) -> None:
        self._heard = now

    def said(self, now: float) -> None:
        self._said = now

    def is_lost(self, now: float) -> bool:
        return now >= self._heard + self._limit

    def is_heartbeat_due(self, now: float) -> bool:
        return now >= self._said + self._interval

    def next_due(self) -> float:
        """The next instant at which either answer may change; at it, it has."""
        return min(self._said + self._interval, self._heard + self._limit)
