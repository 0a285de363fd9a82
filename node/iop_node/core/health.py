"""How one upstream is, judged by its probes and by what became of the calls to it (NODE-10).

Pure. Two things are weighed apart, and the worse one counts:

 1. Probes. After `probe_failures` bad ones in a row the upstream is what the last one says; one
    good probe makes it healthy again.
 2. Calls that fail fast. After `FAST_FAILURES` in a row the upstream is cooled down: unavailable
    for a while that doubles each time, so that a dead server is not asked over and over. When the
    while is over, the next call decides: it clears everything, or cools down again at once.

A judgement only ever lowers what the config declares; that is the edge's to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from iop_node.core.backoff import Backoff

Health = Literal["healthy", "degraded", "unavailable"]

FAST_FAILURES = 5
FIRST_COOLDOWN_S = 1.0
LONGEST_COOLDOWN_S = 30.0

COOLING_DOWN = "cooling_down"


class Reading(NamedTuple):
    """`reason` is a stable code, empty when healthy."""

    health: Health
    reason: str = ""


HEALTHY = Reading("healthy")
_RANK: dict[Health, int] = {"healthy": 0, "degraded": 1, "unavailable": 2}


class UpstreamHealth:
    """The judgement on one upstream. `draw` returns evenly distributed numbers in [0, 1)."""

    def __init__(self, probe_failures: int, draw: Callable[[], float]) -> None:
        self._probe_failures = probe_failures
        self._bad_probes = 0
        self._probed = HEALTHY
        self._fast_failures = 0
        self._cooldowns = Backoff(draw, first_s=FIRST_COOLDOWN_S, cap_s=LONGEST_COOLDOWN_S)
        self._cools_until: float | None = None

    def probed(self, reading: Reading) -> None:
        """Take in the result of one probe."""
        if reading.health == "healthy":
            self._bad_probes = 0
            self._probed = HEALTHY
            return
        self._bad_probes += 1
        if self._bad_probes >= self._probe_failures:
            self._probed = reading

    @property
    def is_calm(self) -> bool:
        """Nothing has failed since a call was answered, so that another answer says nothing new."""
        return not self._fast_failures and self._cools_until is None

    def call_answered(self) -> None:
        """A call got an answer, whatever it was."""
        self._fast_failures = 0
        self._cools_until = None
        self._cooldowns.reset()

    def call_failed_fast(self, now: float) -> None:
        """A call was refused, reset or answered with garbage.

        Calls that were under way when the cooling began say nothing new.
        """
        if self._cools_until is not None and now < self._cools_until:
            return
        self._fast_failures += 1
        if self._fast_failures >= FAST_FAILURES:
            self._cools_until = now + self._cooldowns.next_delay_s()
            self._fast_failures = FAST_FAILURES - 1

    def reading(self, now: float) -> Reading:
        """The worse of the two."""
        if self._cools_until is not None and now < self._cools_until:
            cooling = Reading("unavailable", COOLING_DOWN)
            return max(self._probed, cooling, key=lambda one: _RANK[one.health])
        return self._probed

    def next_change(self, now: float) -> float | None:
        """When time alone will next change the reading, None for never."""
        return self._cools_until if self._cools_until and now < self._cools_until else None
