"""The pool: who gets which slot, and when. The only place where a slot is taken or given back.

A plain machine: events with a clock value (seconds, never going back) come in, a list of effects
goes out, and nothing else happens. It knows no loop, no socket and no caller.

How a decision is made:

1. *Expire.* Whoever's deadline (arrival + queue timeout) has come leaves the queue, so nobody is
   granted out of it at or after the deadline, however late a timer fires. While a run has a slot
   its clock stands still.
2. *Judge* the demand: model, ability, context window, long class, a provider that is there. What
   cannot be served is refused at once and never queued.
3. *Pick* among the free (POOL-1, POOL-2): not degraded before degraded, then the fewest in flight,
   then the lower priority number, then the model's turn: the first in the order of resource ids
   after the one that the model was last granted.
4. *Queue* where nothing is free and the queue has room.
5. *Pump* after whatever may have freed a slot: the oldest waiter that a free slot can serve gets
   one, until none can be served. A waiter for whom no provider is left is refused.

Long and ordinary (POOL-5). A long request needs an ordinary and a long slot of one resource. The
order between the classes is that of arrival, with one exception: a slot that the older request
cannot use at that moment is not held back for it. So a waiting long request blocks no ordinary
one, and none starves it: a long slot always comes free together with an ordinary one of the same
resource, and every slot it can use goes to it before any younger request.

The file is longer than most because every mutation of the pool's state stands in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import ceil

from msgspec import Struct

from iop_edge.config.effective import Health, QueuePolicy
from iop_edge.pool.catalog import Catalog, ResourceSpec
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Expired, Granted, Lease, Place, Queued, Refused
from iop_edge.pool.explain import Decision, State
from iop_edge.pool.group import Group, Kind, Slate
from iop_edge.pool.line import Line, Waiter, by_arrival, by_deadline
from iop_edge.pool.queue import Ordered
from iop_edge.pool.refusal import Why, never, no_provider
from iop_edge.pool.resource import LiveResource, ResourceStatus
from iop_shared.errors import Code
from iop_shared.ids import ModelId, NodeId, Resource, RunId

RETRY_LEAST_S = 1.0
RETRY_MOST_S = 60.0
NO_PROVIDER_RETRY_S = 5.0
"""A node that lost its connection is back within seconds."""

_NONE_TRIED: frozenset[Resource] = frozenset()


class QueueStatus(Struct, frozen=True, kw_only=True):
    """The queue as the status surfaces show it. `oldest_ms` is the longest wait of those in it,
    None while nobody waits."""

    pending: int
    max_queue: int
    oldest_ms: float | None


class LeaseError(RuntimeError):
    """A lease was released that is not out, or a run asked for two slots: a programming error."""


class Pool:
    """See the module. An event returns its effects in the order they fell: expired, refused,
    granted, each oldest first; what became of the event's own run comes last."""

    def __init__(self, catalog: Catalog, policy: QueuePolicy) -> None:
        self._connected: set[NodeId] = set()
        self._leases: dict[RunId, Lease] = {}
        self._waiting: dict[RunId, Waiter] = {}
        self._queue: Ordered[Waiter] = Ordered(by_deadline)
        self._resources: dict[Resource, LiveResource] = {}
        self._rotation: list[LiveResource] = []
        self._states: list[State] = []
        self._on_node: dict[NodeId, list[LiveResource]] = {}
        self._groups: dict[ModelId, Group] = {}
        self._lines: dict[tuple[bool, tuple[int, ...]], Line] = {}
        self._arrivals = 0
        self._set_policy(policy)
        self._install(catalog)

    def __repr__(self) -> str:
        return f"Pool({len(self._leases)} leased, {len(self._waiting)} waiting)"

    # --- runs -----------------------------------------------------------------------------

    def admit(
        self,
        run_id: RunId,
        demand: Demand,
        now: float,
        *,
        retry_of: Lease | None = None,
        place: Place | None = None,
    ) -> list[Effect]:
        """Ask for a slot. The last effect says what became of it: granted, queued, refused, or
        (only for a run that comes back) expired.

        `retry_of` is the lease, released, of an attempt that ended before its upstream request was
        sent: the run then keeps its arrival and its deadline, is not held against the context
        window again (REF-11), and gets none of the resources that it has tried (POOL-13). `place`
        says the same of a run whose attempt did run. Raises LeaseError where the run waits or
        holds a lease already.
        """
        if run_id in self._leases or run_id in self._waiting:
            raise LeaseError(f"run {run_id} has a slot or waits for one already")
        effects = self._expire(now)
        if retry_of is not None:
            place = retry_of.place
        if place is None:
            waiter = Waiter(run_id, demand, self._arrivals, now, now, _NONE_TRIED)
            self._arrivals += 1
        else:
            waiter = Waiter(run_id, demand, place.arrival, place.arrived_at, now, place.avoids)
        slate = self._slate(demand)
        why = self._why_not(waiter, slate, is_new=place is None)
        if why is not None:
            effects.append(self._refused(waiter, slate, now, why))
            return effects
        assert slate is not None
        local = waiter.line.pick(slate.group.turn, waiter.avoid)
        if local is not None:
            effects.append(self._grant(waiter, slate, local, now))
        elif self._timeout_s and waiter.arrived_at + self._timeout_s <= now:
            effects.append(self._expired(waiter, slate, now))
        elif len(self._waiting) >= self._policy.max_queue:
            message = f"{len(self._waiting)} requests wait already, and the queue takes no more"
            effects.append(self._refused(waiter, slate, now, (Code.QUEUE_FULL, message)))
        else:
            self._wait(waiter)
            effects.append(Queued(run_id, self._decision(waiter, slate, "queued", now)))
        return effects

    def release(self, lease: Lease, now: float) -> list[Effect]:
        """Give a slot back. Raises LeaseError, and changes nothing, unless the lease is out."""
        if self._leases.get(lease.run_id) is not lease:
            raise LeaseError(f"the lease of run {lease.run_id} is not out")
        effects = self._expire(now)
        del self._leases[lease.run_id]
        resource = self._resources[lease.resource]
        self._count(resource, -1, lease.is_long)
        if resource.is_retired and not resource.in_flight:
            del self._resources[lease.resource]
        self._pump(resource.lines, now, effects)
        return effects

    def cancel(self, run_id: RunId, now: float) -> list[Effect]:
        """The caller has gone. Takes the run out of the queue at once. A run that is not in it is
        left alone: if it holds a lease, that is for its holder to release."""
        effects = self._expire(now)
        waiter = self._waiting.get(run_id)
        if waiter is not None:
            self._leave(waiter)
        return effects

    # --- time -----------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """When `expire` is due next; None while nobody waits, or nobody can wait too long."""
        oldest = self._queue.first()
        return oldest.arrived_at + self._timeout_s if oldest and self._timeout_s else None

    def expire(self, now: float) -> list[Effect]:
        """Only the time has gone on."""
        return self._expire(now)

    # --- the world ------------------------------------------------------------------------

    def node_connected(self, node_id: NodeId, now: float) -> list[Effect]:
        """A session is accepted and a payload of this session acknowledged (POOL-1)."""
        self._connected.add(node_id)
        return self._restand(self._on_node.get(node_id, ()), now)

    def node_lost(self, node_id: NodeId, now: float) -> list[Effect]:
        """Its session has ended. Frees no slot: whoever holds a lease releases it (POOL-6). What
        probes have said is forgotten with the session that said it."""
        self._connected.discard(node_id)
        resources = self._on_node.get(node_id, ())
        for resource in resources:
            resource.probed = "healthy"
        return self._restand(resources, now)

    def probed_health(self, resource: Resource, health: Health, now: float) -> list[Effect]:
        """What a probe says. Effective health is the worse of this and the declared (NODE-10). A
        resource that the catalog does not hold is ignored: it is a late word on an older one."""
        live = self._resources.get(resource)
        if live is None or live.is_retired:
            return self._expire(now)
        live.probed = health
        return self._restand((live,), now)

    def replace(self, catalog: Catalog, policy: QueuePolicy, now: float) -> list[Effect]:
        """Go over to another catalog and policy (POOL-7). Leases and counters stay. Everyone who
        waits is judged anew, in order, and keeps place and arrival."""
        effects = self._expire(now)
        self._set_policy(policy)
        effects += self._expire(now)
        self._install(catalog)
        waiters = sorted(self._waiting.values(), key=by_arrival)
        self._waiting, self._queue = {}, Ordered(by_deadline)
        for waiter in waiters:
            slate = self._slate(waiter.demand)
            why = self._why_not(waiter, slate, is_new=False)
            if why is None:
                self._wait(waiter)
            else:
                effects.append(self._refused(waiter, slate, now, why))
        self._pump(self._lines.values(), now, effects)
        return effects

    # --- what can be seen -----------------------------------------------------------------

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    @property
    def lease_count(self) -> int:
        return len(self._leases)

    def loads(self) -> dict[Resource, ResourceStatus]:
        """Every resource of the catalog, in the order of ids."""
        return {resource.spec.resource: resource.status for resource in self._rotation}

    def queue_status(self, now: float) -> QueueStatus:
        waits_s = (now - waiter.asked_at for waiter in self._waiting.values())
        longest_s = max(waits_s, default=None)
        return QueueStatus(
            pending=len(self._waiting),
            max_queue=self._policy.max_queue,
            oldest_ms=None if longest_s is None else longest_s * 1000,
        )

    # --- judging --------------------------------------------------------------------------

    def _slate(self, demand: Demand) -> Slate | None:
        """None where there is no such model."""
        group = self._groups.get(demand.model)
        if group is None:
            return None
        kind = (demand.operation, demand.capabilities, demand.input_tokens >= self._threshold)
        return group.slates.get(kind) or self._open(group, kind)

    def _open(self, group: Group, kind: Kind) -> Slate:
        """Make a slate, and its line where no other slate has made it."""
        able, roster = group.divide(kind, self._rotation)
        line = None
        if able:
            key = (roster.is_long, tuple(able))
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = Line(able, roster.is_long)
                members = [self._rotation[position] for position in able]
                line.fill([member.enter(line, local) for local, member in enumerate(members)])
        slate = group.slates[kind] = Slate(group, line, roster, able)
        return slate

    def _why_not(self, waiter: Waiter, slate: Slate | None, *, is_new: bool) -> Why | None:
        """Why the run can be served neither now nor by waiting. None where it can: then it knows
        its line, and does not stand in it yet."""
        demand = waiter.demand
        if slate is None:
            return Code.MODEL_NOT_FOUND, f"there is no model {demand.model!r} here"
        if is_new:
            why = never(demand, slate, self._threshold)
            if why is not None:
                return why
        line = slate.line
        if line is not None:
            if waiter.tried:
                known = [self._resources.get(resource) for resource in waiter.tried]
                waiter.avoid = line.mask({live.position for live in known if live is not None})
            waiter.line = line
            if line.usable & ~waiter.avoid:
                return None
        return no_provider(demand, slate)

    # --- taking and giving ----------------------------------------------------------------

    def _grant(self, waiter: Waiter, slate: Slate, local: int, now: float) -> Granted:
        line = waiter.line
        position = line.positions[local]
        resource = self._rotation[position]
        spec = resource.spec
        group = slate.group
        candidate = group.by_position[position]
        demand = waiter.demand
        path = spec.abilities.path_for(demand.operation, demand.capabilities)
        assert path is not None
        assert spec.adapter is not None
        decision = self._decision(waiter, slate, "granted", now, resource)
        lease = Lease(
            waiter.run_id,
            demand.model,
            spec.resource,
            spec.adapter,
            candidate.target,
            path,
            line.is_long,
            candidate.attribution,
            waiter.arrival,
            waiter.arrived_at,
            waiter.tried,
        )
        self._leases[waiter.run_id] = lease
        group.last, group.turn = spec.resource, position
        self._count(resource, 1, line.is_long)
        return Granted(waiter.run_id, lease, decision.waited_s, decision)

    def _count(self, resource: LiveResource, change: int, is_long: bool) -> None:
        """The one place where a counter moves."""
        resource.in_flight += change
        if is_long:
            resource.long_in_flight += change
        if not resource.is_retired:
            resource.relist()
            self._states[resource.position] = resource.state

    def _pump(self, lines: Iterable[Line], now: float, effects: list[Effect]) -> None:
        """Serve the waiters of these lines, oldest first, while a free slot can serve one."""
        heap = [
            (oldest.arrival, avoid, line)
            for line in lines
            for avoid, lane in line.lanes.items()
            if (oldest := lane.first()) is not None
        ]
        heapify(heap)
        while heap:
            _, avoid, line = heap[0]
            waiter = line.lanes[avoid].first()
            assert waiter is not None
            slate = self._slate(waiter.demand)
            assert slate is not None
            local = line.pick(slate.group.turn, avoid)
            if local is None:
                heappop(heap)
                continue
            self._leave(waiter)
            effects.append(self._grant(waiter, slate, local, now))
            lane = line.lanes.get(avoid)
            successor = None if lane is None else lane.first()
            if successor is None:
                heappop(heap)
            else:
                heapreplace(heap, (successor.arrival, avoid, line))

    def _wait(self, waiter: Waiter) -> None:
        self._waiting[waiter.run_id] = waiter
        self._queue.join(waiter)
        waiter.line.join(waiter)

    def _leave(self, waiter: Waiter) -> None:
        del self._waiting[waiter.run_id]
        self._queue.leave(waiter)
        waiter.line.leave(waiter)

    def _restand(self, resources: Sequence[LiveResource], now: float) -> list[Effect]:
        """Judge anew which of these are candidates, and what follows for those who wait."""
        effects = self._expire(now)
        touched: dict[Line, int] = {}
        for resource in resources:
            lines = resource.stand(is_connected=resource.spec.resource.node_id in self._connected)
            touched.update(lines)
            self._states[resource.position] = resource.state
        stranded = [
            waiter
            for line in touched
            for avoid, lane in line.lanes.items()
            if not line.usable & ~avoid
            for waiter in lane
        ]
        for waiter in sorted(stranded, key=lambda waiter: waiter.arrival):
            slate = self._slate(waiter.demand)
            assert slate is not None
            why = no_provider(waiter.demand, slate)
            self._leave(waiter)
            effects.append(self._refused(waiter, slate, now, why))
        self._pump(touched, now, effects)
        return effects

    # --- a new catalog --------------------------------------------------------------------

    def _set_policy(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._timeout_s = policy.queue_timeout_ms / 1000

    def _install(self, catalog: Catalog) -> None:
        """Take a catalog in. Counters, probed health and turns go over to it; lines are made
        when they are first needed."""
        before, self._resources = self._resources, {}
        last = {model: group.last for model, group in self._groups.items()}
        self._threshold = catalog.long_context_threshold_tokens
        self._rotation, self._on_node, self._lines = [], {}, {}
        for position, (key, spec) in enumerate(catalog.resources.items()):
            resource = self._resources[key] = (
                before.pop(key) if key in before else LiveResource(spec)
            )
            resource.place(spec, position, is_connected=key.node_id in self._connected)
            self._rotation.append(resource)
            self._on_node.setdefault(key.node_id, []).append(resource)
        for key, resource in before.items():
            if resource.in_flight:
                resource.retire()
                self._resources[key] = resource
        self._states = [resource.state for resource in self._rotation]
        ids = list(catalog.resources)
        self._groups = {}
        for model, group in catalog.models.items():
            resource_id = last.get(model)
            turn = -1 if resource_id is None else bisect_right(ids, resource_id) - 1
            self._groups[model] = Group(group, self._resources, resource_id, turn)

    # --- effects --------------------------------------------------------------------------

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and self._timeout_s:
            waiter = self._queue.first()
            if waiter is None or waiter.arrived_at + self._timeout_s > now:
                break
            self._leave(waiter)
            effects.append(self._expired(waiter, self._slate(waiter.demand), now))
        return effects

    def _expired(self, waiter: Waiter, slate: Slate | None, now: float) -> Expired:
        decision = self._decision(waiter, slate, Code.QUEUE_TIMEOUT, now)
        message = f"no slot came free within {self._policy.queue_timeout_ms} ms"
        retry_after_s = self._retry_after(now)
        return Expired(waiter.run_id, decision.waited_s, message, retry_after_s, decision)

    def _refused(self, waiter: Waiter, slate: Slate | None, now: float, why: Why) -> Refused:
        code, message = why
        decision = self._decision(waiter, slate, code, now)
        retry_after_s = None
        if code is Code.NO_PROVIDER:
            retry_after_s = NO_PROVIDER_RETRY_S
        elif code is Code.QUEUE_FULL:
            retry_after_s = self._retry_after(now)
        return Refused(waiter.run_id, code, message, retry_after_s, decision)

    def _retry_after(self, now: float) -> float:
        """Seconds after which to ask a full queue again: as long as its oldest has waited so far,
        for that is what a place in it costs just now."""
        oldest = self._queue.first()
        waited_s = 0.0 if oldest is None else now - oldest.asked_at
        return min(max(float(ceil(waited_s)), RETRY_LEAST_S), RETRY_MOST_S)

    def _decision(
        self,
        waiter: Waiter,
        slate: Slate | None,
        outcome: str,
        now: float,
        chosen: LiveResource | None = None,
    ) -> Decision:
        waited_s = now - waiter.asked_at
        if slate is None:
            return Decision(waiter.run_id, waiter.demand.model, outcome, waited_s)
        line = slate.line
        states = self._states
        if line is None:
            return Decision(waiter.run_id, waiter.demand.model, outcome, waited_s, slate.roster)
        return Decision(
            waiter.run_id,
            waiter.demand.model,
            outcome,
            waited_s,
            slate.roster,
            slate.shown_states(states),
            line.free_count,
            line.absent,
            None if chosen is None else (chosen.spec, states[chosen.position]),
            self._tried(waiter) if waiter.avoid else (),
        )

    def _tried(self, waiter: Waiter) -> tuple[tuple[ResourceSpec, State], ...]:
        tried = [self._rotation[position] for position in waiter.line.places(waiter.avoid)]
        return tuple((resource.spec, resource.state) for resource in tried)
