"""The live side of one resource: what is taken, and where that puts it among the candidates.

These counters belong to the resource and outlive every snapshot (POOL-3). They count leases and
nothing else: no reset, no clamp. The catalog's side, `spec`, is replaced by a refresh.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from iop_edge.config.effective import Health
from iop_edge.pool.catalog import ResourceSpec
from iop_edge.pool.explain import Standing, State
from iop_edge.pool.line import Line, Rank
from iop_shared.ids import Resource

_SEVERITY: dict[Health, int] = {"healthy": 0, "unknown": 1, "degraded": 2, "unavailable": 3}


def worse(one: Health, other: Health) -> Health:
    """The worse of two: a probe can only lower what is declared (NODE-10)."""
    return max(one, other, key=_SEVERITY.__getitem__)


class ResourceStatus(Struct, frozen=True, kw_only=True):
    """One resource as the status surfaces show it.

    A disabled one shows `disabled` twice and capacity 0 (POOL-8), and still what is in flight.
    `long_context_capacity` is as configured, the smaller of it and `capacity`. `long_in_flight`
    counts running requests of class long, also where they take ordinary slots only.
    """

    resource: Resource
    status: Literal["available", "busy", "unavailable", "disabled"]
    health: Literal["healthy", "degraded", "unavailable", "unknown", "disabled"]
    capacity: int
    in_flight: int
    long_context_capacity: int | None
    long_in_flight: int
    priority: int


class LiveResource:
    """Counters, standing and rank of one resource, and its places in the lines.

    `position` is its place in the rotation of the current catalog. A resource that a refresh
    removed under running leases is retired: in no line, and forgotten with its last lease.
    """

    __slots__ = (
        "in_flight", "lines", "long_in_flight", "long_rank", "position", "probed", "rank", "spec",
        "standing", "tier",
    )  # fmt: skip

    def __init__(self, spec: ResourceSpec) -> None:
        self.spec = spec
        self.position = -1
        self.in_flight = 0
        self.long_in_flight = 0
        self.probed: Health = "healthy"
        self.standing: Standing = "not_connected"
        self.tier = 0
        self.rank: Rank | None = None
        """Its rank among those with a free ordinary slot; None where it has none."""
        self.long_rank: Rank | None = None
        """The same for a long request, which needs both slots."""
        self.lines: dict[Line, int] = {}
        """The lines it is in, with its local place in each."""

    def place(self, spec: ResourceSpec, position: int, *, is_connected: bool) -> None:
        """Begin anew in a catalog, in no line yet. Counters and probed health stay."""
        self.spec = spec
        self.position = position
        self.lines = {}
        self.standing, self.tier = self._judge(is_connected)
        self._rerank()

    def retire(self) -> None:
        """Leave the catalog with leases still out. Only their count is kept."""
        self.position = -1
        self.lines = {}
        self.probed = "healthy"

    @property
    def is_retired(self) -> bool:
        return self.position < 0

    def enter(self, line: Line, local: int) -> tuple[Standing, Rank | None]:
        """Take a place in a line that is being made; return what to fill in there."""
        self.lines[line] = local
        return self.standing, self.long_rank if line.is_long else self.rank

    def stand(self, *, is_connected: bool) -> dict[Line, int]:
        """Judge anew whether it is a candidate; return its lines if that changed a thing."""
        before = self.standing
        tier = self.tier
        self.standing, self.tier = self._judge(is_connected)
        if (before, tier) == (self.standing, self.tier):
            return {}
        for line, local in self.lines.items():
            line.stand(local, before, self.standing)
        self.relist()
        return self.lines

    def relist(self) -> None:
        """Take the place in every line that the counters and the standing now give."""
        before, long_before = self.rank, self.long_rank
        self._rerank()
        for line, local in self.lines.items():
            if line.is_long:
                line.move(local, long_before, self.long_rank)
            else:
                line.move(local, before, self.rank)

    def _judge(self, is_connected: bool) -> tuple[Standing, int]:
        if not self.spec.is_enabled:
            return "disabled", 0
        if not is_connected:
            return "not_connected", 0
        health = worse(self.spec.health, self.probed)
        if health == "unavailable":
            return "unavailable", 0
        return "available", 1 if health == "degraded" else 0

    def _rerank(self) -> None:
        spec = self.spec
        in_flight = self.in_flight
        if self.standing != "available" or in_flight >= spec.capacity:
            self.rank = self.long_rank = None
            return
        self.rank = self.long_rank = (self.tier, in_flight, spec.priority)
        if spec.long_slots is not None and self.long_in_flight >= spec.long_slots:
            self.long_rank = None

    @property
    def state(self) -> State:
        return self.in_flight, self.long_in_flight, self.standing, self.tier

    @property
    def status(self) -> ResourceStatus:
        spec = self.spec
        if self.standing == "available":
            status: Literal["available", "busy", "unavailable", "disabled"] = (
                "busy" if self.in_flight >= spec.capacity else "available"
            )
        else:
            status = "disabled" if self.standing == "disabled" else "unavailable"
        return ResourceStatus(
            resource=spec.resource,
            status=status,
            health="disabled" if status == "disabled" else worse(spec.health, self.probed),
            capacity=0 if status == "disabled" else spec.capacity,
            in_flight=self.in_flight,
            long_context_capacity=spec.long_slots,
            long_in_flight=self.long_in_flight,
            priority=spec.priority,
        )
