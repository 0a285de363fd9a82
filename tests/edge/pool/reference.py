"""The pool once more, as dumbly as it can be written: lists, scans, and the rules word by word.

It keeps no order, no index and no counter. Every question is answered by looking at everything,
so that it can be compared with the requirements by reading, and the pool with it by running.
"""

from __future__ import annotations

from typing import NamedTuple

from iop_edge.config.effective import Health, QueuePolicy
from iop_edge.pool.catalog import Catalog, Path
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Expired, Granted, Lease, Place, Queued
from iop_edge.pool.pool import Pool
from iop_shared.ids import ModelId, NodeId, Resource, RunId, Target

Outcome = tuple[object, ...]
_SEVERITY: list[Health] = ["healthy", "unknown", "degraded", "unavailable"]


class Run(NamedTuple):
    run_id: RunId
    demand: Demand
    arrival: int
    arrived_at: float
    tried: frozenset[Resource]


class Held(NamedTuple):
    run: Run
    resource: Resource
    is_long: bool


def outcome(effect: Effect) -> Outcome:
    """What the reference says, said of a real effect."""
    if isinstance(effect, Granted):
        lease = effect.lease
        return ("granted", effect.run_id, lease.resource, lease.target, lease.path, lease.is_long)
    if isinstance(effect, Queued):
        return ("queued", effect.run_id)
    if isinstance(effect, Expired):
        return ("expired", effect.run_id)
    return ("refused", effect.run_id, effect.code.value)


class ReferencePool:
    def __init__(self, catalog: Catalog, policy: QueuePolicy) -> None:
        self.catalog = catalog
        self.policy = policy
        self.connected: set[NodeId] = set()
        self.probed: dict[Resource, Health] = {}
        self.held: list[Held] = []
        self.waiting: list[Run] = []
        self.last: dict[ModelId, Resource] = {}
        self.arrivals = 0

    # --- events

    def admit(
        self, run_id: RunId, demand: Demand, now: float, retry_of: Run | None = None
    ) -> list[Outcome]:
        told = self._expire(now)
        if retry_of is None:
            run = Run(run_id, demand, self.arrivals, now, frozenset())
            self.arrivals += 1
            never = self._never(run)
            if never:
                return [*told, ("refused", run_id, never)]
        else:
            run = retry_of
        refused = self._refused(run)
        if refused:
            return [*told, refused]
        if self._choose(run):
            return [*told, self._grant(run)]
        if self.policy.queue_timeout_ms and self._deadline(run) <= now:
            return [*told, ("expired", run_id)]
        if len(self.waiting) >= self.policy.max_queue:
            return [*told, ("refused", run_id, "queue_full")]
        self.waiting.append(run)
        return [*told, ("queued", run_id)]

    def release(self, run_id: RunId, now: float) -> list[Outcome]:
        told = self._expire(now)
        [held] = [held for held in self.held if held.run.run_id == run_id]
        self.held.remove(held)
        return told + self._pump()

    def cancel(self, run_id: RunId, now: float) -> list[Outcome]:
        told = self._expire(now)
        self.waiting = [run for run in self.waiting if run.run_id != run_id]
        return told + self._pump()

    def expire(self, now: float) -> list[Outcome]:
        return self._expire(now) + self._pump()

    def node_connected(self, node_id: NodeId, now: float) -> list[Outcome]:
        told = self._expire(now)
        self.connected |= {node_id}
        return told + self._pump()

    def node_lost(self, node_id: NodeId, now: float) -> list[Outcome]:
        told = self._expire(now)
        self.connected -= {node_id}
        self.probed = {r: health for r, health in self.probed.items() if r.node_id != node_id}
        return told + self._pump()

    def probed_health(self, resource: Resource, health: Health, now: float) -> list[Outcome]:
        told = self._expire(now)
        if resource in self.catalog.resources:
            self.probed[resource] = health
        return told + self._pump()

    def replace(self, catalog: Catalog, policy: QueuePolicy, now: float) -> list[Outcome]:
        told = self._expire(now)
        self.policy = policy
        told += self._expire(now)
        self.probed = {r: health for r, health in self.probed.items() if r in catalog.resources}
        self.last = {model: r for model, r in self.last.items() if model in catalog.models}
        self.catalog = catalog
        return told + self._pump()

    # --- rules

    def _deadline(self, run: Run) -> float:
        return run.arrived_at + self.policy.queue_timeout_ms / 1000

    def _expire(self, now: float) -> list[Outcome]:
        if not self.policy.queue_timeout_ms:
            return []
        late = sorted(
            (r for r in self.waiting if self._deadline(r) <= now),
            key=lambda r: (r.arrived_at, r.arrival),
        )
        self.waiting = [run for run in self.waiting if run not in late]
        return [("expired", run.run_id) for run in late]

    def _pump(self) -> list[Outcome]:
        told: list[Outcome] = []
        for run in sorted(self.waiting, key=lambda run: run.arrival):
            refused = self._refused(run)
            if refused:
                self.waiting.remove(run)
                told.append(refused)
        while True:
            served = [run for run in self.waiting if self._choose(run)]
            if not served:
                return told
            oldest = min(served, key=lambda run: run.arrival)
            self.waiting.remove(oldest)
            told.append(self._grant(oldest))

    def _never(self, run: Run) -> str | None:
        demand = run.demand
        model = self.catalog.models.get(demand.model)
        if model is None:
            return "model_not_found"
        window = model.context_window_tokens
        if window is not None and demand.input_tokens_floor + (demand.output_tokens or 0) > window:
            return "context_length_exceeded"
        able = [c.resource for c in model.candidates if self._can_serve(c.resource, demand)]
        if model.candidates and not able:
            return "unsupported_by_model"
        if able and all(not self._takes_class(resource, demand) for resource in able):
            return "context_length_exceeded"
        return None

    def _refused(self, run: Run) -> Outcome | None:
        if run.demand.model not in self.catalog.models:
            return ("refused", run.run_id, "model_not_found")
        if not any(self._is_candidate(resource, run) for resource in self.catalog.resources):
            return ("refused", run.run_id, "no_provider")
        return None

    def _path(self, resource: Resource, demand: Demand) -> Path | None:
        abilities = self.catalog.resources[resource].abilities
        return abilities.path_for(demand.operation, demand.capabilities)

    def _can_serve(self, resource: Resource, demand: Demand) -> bool:
        """The request itself, and with what the gate needs for it there."""
        [candidate] = [
            candidate
            for candidate in self.catalog.models[demand.model].candidates
            if candidate.resource == resource
        ]
        is_gated = demand.operation in ("chat_completions", "responses", "messages")
        has = self.catalog.resources[resource].abilities.capabilities
        return self._path(resource, demand) is not None and (
            not is_gated or all(needed in has for needed in candidate.gate_needs)
        )

    def _is_long(self, demand: Demand) -> bool:
        return demand.input_tokens >= self.catalog.long_context_threshold_tokens

    def _takes_class(self, resource: Resource, demand: Demand) -> bool:
        return not self._is_long(demand) or self.catalog.resources[resource].long_slots != 0

    def _health(self, resource: Resource) -> Health:
        declared = self.catalog.resources[resource].health
        probed = self.probed.get(resource, "healthy")
        return max(declared, probed, key=_SEVERITY.index)

    def _is_candidate(self, resource: Resource, run: Run) -> bool:
        """But for its load."""
        model = self.catalog.models[run.demand.model]
        return (
            resource in [candidate.resource for candidate in model.candidates]
            and self._can_serve(resource, run.demand)
            and self._takes_class(resource, run.demand)
            and self.catalog.resources[resource].is_enabled
            and resource.node_id in self.connected
            and self._health(resource) != "unavailable"
            and resource not in run.tried
        )

    def in_flight(self, resource: Resource) -> int:
        return len([held for held in self.held if held.resource == resource])

    def long_in_flight(self, resource: Resource) -> int:
        return len([held for held in self.held if held.resource == resource and held.is_long])

    def _has_free_slot(self, resource: Resource, demand: Demand) -> bool:
        spec = self.catalog.resources[resource]
        if self.in_flight(resource) >= spec.capacity:
            return False
        if not self._is_long(demand) or spec.long_slots is None:
            return True
        return self.long_in_flight(resource) < spec.long_slots

    def _choose(self, run: Run) -> Resource | None:
        if run.demand.model not in self.catalog.models:
            return None
        free = [
            resource
            for resource in sorted(self.catalog.resources)
            if self._is_candidate(resource, run) and self._has_free_slot(resource, run.demand)
        ]
        if not free:
            return None

        def rank(resource: Resource) -> tuple[bool, int, int]:
            is_degraded = self._health(resource) == "degraded"
            priority = self.catalog.resources[resource].priority
            return is_degraded, self.in_flight(resource), priority

        best = [r for r in free if rank(r) == min(map(rank, free))]
        last = self.last.get(run.demand.model)
        following = [r for r in best if last is None or r > last]
        return (following or best)[0]

    def _grant(self, run: Run) -> Outcome:
        resource = self._choose(run)
        assert resource is not None
        is_long = self._is_long(run.demand)
        self.held.append(Held(run, resource, is_long))
        self.last[run.demand.model] = resource
        [target] = [
            candidate.target
            for candidate in self.catalog.models[run.demand.model].candidates
            if candidate.resource == resource
        ]
        path = self._path(resource, run.demand)
        return ("granted", run.run_id, resource, Target(target), path, is_long)


class MirroredPool(Pool):
    """A pool that asks the reference at every event, and fails where the two differ, or where an
    explanation does not account for every provider of the model."""

    def __init__(self, catalog: Catalog, policy: QueuePolicy) -> None:
        super().__init__(catalog, policy)
        self.reference = ReferencePool(catalog, policy)

    def admit(
        self,
        run_id: RunId,
        demand: Demand,
        now: float,
        *,
        retry_of: Lease | None = None,
        place: Place | None = None,
    ) -> list[Effect]:
        effects = super().admit(run_id, demand, now, retry_of=retry_of, place=place)
        retried = None
        if retry_of is not None:
            tried = retry_of.tried | {retry_of.resource}
            retried = Run(run_id, demand, retry_of.arrival, retry_of.arrived_at, tried)
        elif place is not None:
            retried = Run(run_id, demand, place.arrival, place.arrived_at, place.avoids)
        return self._same(effects, self.reference.admit(run_id, demand, now, retried))

    def release(self, lease: Lease, now: float) -> list[Effect]:
        effects = super().release(lease, now)
        return self._same(effects, self.reference.release(lease.run_id, now))

    def cancel(self, run_id: RunId, now: float) -> list[Effect]:
        return self._same(super().cancel(run_id, now), self.reference.cancel(run_id, now))

    def expire(self, now: float) -> list[Effect]:
        return self._same(super().expire(now), self.reference.expire(now))

    def node_connected(self, node_id: NodeId, now: float) -> list[Effect]:
        effects = super().node_connected(node_id, now)
        return self._same(effects, self.reference.node_connected(node_id, now))

    def node_lost(self, node_id: NodeId, now: float) -> list[Effect]:
        effects = super().node_lost(node_id, now)
        return self._same(effects, self.reference.node_lost(node_id, now))

    def probed_health(self, resource: Resource, health: Health, now: float) -> list[Effect]:
        effects = super().probed_health(resource, health, now)
        return self._same(effects, self.reference.probed_health(resource, health, now))

    def replace(self, catalog: Catalog, policy: QueuePolicy, now: float) -> list[Effect]:
        before = self.reference.catalog
        effects = super().replace(catalog, policy, now)
        return self._same(effects, self.reference.replace(catalog, policy, now), before)

    def _same(
        self, effects: list[Effect], expected: list[Outcome], before: Catalog | None = None
    ) -> list[Effect]:
        """`before` is the catalog by which those were judged that an event let expire first."""
        assert [outcome(effect) for effect in effects] == expected
        for effect in effects:
            is_early = before is not None and isinstance(effect, Expired)
            catalog = before if before is not None and is_early else self.reference.catalog
            model = catalog.models.get(effect.decision.model)
            explanation = effect.decision.explain()
            shown = [seen.provider_id for seen in explanation.others]
            if explanation.chosen is not None:
                shown.append(explanation.chosen.provider_id)
            providers = [] if model is None else [c.resource.provider_id for c in model.candidates]
            assert len(set(shown)) == len(shown)
            assert set(shown) <= set(providers)
            assert len(shown) + sum(explanation.rest.values()) == len(providers)
            if isinstance(effect, Granted):
                assert explanation.chosen is not None
                assert explanation.chosen.provider_id == effect.lease.resource.provider_id
        return effects
