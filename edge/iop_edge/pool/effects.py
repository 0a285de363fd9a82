"""What the pool answers: a lease, a place in the queue, or a refusal. Values, no behaviour.

The pool returns effects and performs none; who waits for which one is the dispatcher's business.
"""

from __future__ import annotations

from msgspec import Struct

from iop_edge.pool.catalog import Attribution, Path
from iop_edge.pool.explain import Decision
from iop_shared.errors import Code
from iop_shared.ids import AdapterKey, ModelId, Resource, RunId, Target


class Place(Struct, frozen=True):
    """Where a run that comes back stands in the queue.

    `arrival` is its place in the order of service. Its deadline counts from `arrived_at`, a clock
    value in seconds. It gets none of the resources that it `avoids`.
    """

    arrival: int
    arrived_at: float
    avoids: frozenset[Resource]


class Lease(Struct, frozen=True, eq=False):
    """One slot of one resource, held by one attempt of one run. Released exactly once (POOL-6).

    Its identity counts, not its contents. `attribution` is for the edge alone (POOL-10).
    `arrival`, `arrived_at` and `tried` are the run's place in the order of arrival, its clock
    value at arrival, and the resources of its earlier attempts: hand the lease of an attempt that
    failed before its upstream request was sent to the next admission, and the run keeps its place
    and its deadline and avoids what it has tried (POOL-13).
    """

    run_id: RunId
    model: ModelId
    resource: Resource
    adapter: AdapterKey
    target: Target
    path: Path
    is_long: bool
    attribution: Attribution
    arrival: int
    arrived_at: float
    tried: frozenset[Resource]

    @property
    def place(self) -> Place:
        """The old place and the old deadline, and nothing that has been tried (POOL-13)."""
        return Place(self.arrival, self.arrived_at, self.tried | {self.resource})

    def place_after(self, waited_s: float, now: float, *, avoids_tried: bool) -> Place:
        """The old place of a run whose attempt has run: of its time in the queue, `waited_s` is
        spent and the rest is left (GATE)."""
        avoids = self.tried | {self.resource} if avoids_tried else frozenset[Resource]()
        return Place(self.arrival, now - waited_s, avoids)


class Granted(Struct, frozen=True, eq=False):
    """The run has a slot, from now. `waited_s` is this admission's wait in the queue."""

    run_id: RunId
    lease: Lease
    waited_s: float
    decision: Decision


class Queued(Struct, frozen=True, eq=False):
    """The run waits; it will be granted, refused, expired, or cancelled."""

    run_id: RunId
    decision: Decision


class Refused(Struct, frozen=True, eq=False):
    """The run gets no slot. It is not in the queue and holds no lease."""

    run_id: RunId
    code: Code
    message: str
    retry_after_s: float | None
    decision: Decision


class Expired(Struct, frozen=True, eq=False):
    """The run has waited out the queue (`queue_timeout`), and is no longer in it."""

    run_id: RunId
    waited_s: float
    message: str
    retry_after_s: float
    decision: Decision


Effect = Granted | Queued | Refused | Expired
