"""The pool against its dumb reference, under every event there is, in any order.

`pytest --hypothesis-profile=long` runs this for a hundred thousand steps.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from iop_edge.config.effective import Health, QueuePolicy
from iop_edge.pool.catalog import Catalog, ResourceSpec
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Granted, Lease
from iop_edge.pool.pool import LeaseError
from iop_shared.ids import NodeId, RunId
from iop_shared.profiles import Operation
from tests.edge.pool.reference import MirroredPool
from tests.edge.pool.rig import MESSAGES, NORMALIZED, TUNNEL, catalog, demand, policy, spec

NODE_OF = {"a": "n1", "b": "n1", "c": "n2", "d": "n2"}
MODELS = ["k", "m", "w"]
OPERATIONS: list[Operation | None] = [None, "chat_completions", "messages", "count_tokens"]
HEALTH: list[Health] = ["healthy", "unknown", "degraded", "unavailable"]
TICKS = [0.0, 0.0, 0.1, 0.5, 2.0]


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    def one(name: str) -> ResourceSpec:
        return spec(
            name,
            node=NODE_OF[name],
            capacity=draw(st.integers(1, 3)),
            long_slots=draw(st.sampled_from([None, None, 0, 1, 2])),
            priority=draw(st.sampled_from([0, 0, 1])),
            is_enabled=draw(st.sampled_from([True, True, True, False])),
            health=draw(st.sampled_from(["healthy", *HEALTH])),
            abilities=draw(st.sampled_from([TUNNEL, TUNNEL, NORMALIZED, MESSAGES])),
        )

    names = draw(st.lists(st.sampled_from(list(NODE_OF)), min_size=1, unique=True))
    served = st.lists(st.sampled_from(names), unique=True)
    models = draw(st.dictionaries(st.sampled_from(MODELS), served, min_size=1))
    window = draw(st.sampled_from([None, None, 150]))
    threshold = draw(st.sampled_from([100, 100, 50]))
    needed = st.sampled_from([(), (), ("tool_calling",), ("count_tokens",)])
    gate_needs = {(m, p): draw(needed) for m, providers in models.items() for p in providers}
    return catalog(
        map(one, names), models, window=window, threshold=threshold, gate_needs=gate_needs
    )


policies = st.builds(policy, st.integers(1, 5), st.sampled_from([0, 1000, 3000]))

demands = st.builds(
    demand,
    st.sampled_from(MODELS),
    st.sampled_from(OPERATIONS),
    capabilities=st.sampled_from([(), (), ("streaming",), ("tool_calling",)]),
    input_tokens=st.sampled_from([1, 60, 120]),
    floor=st.sampled_from([1, 100]),
    output=st.sampled_from([None, 50, 51]),
)


class PoolAndReference(RuleBasedStateMachine):
    """Both are told the same at every event, and must say the same: `MirroredPool` sees to it."""

    @initialize(first=catalogs(), queue=policies)
    def begin(self, first: Catalog, queue: QueuePolicy) -> None:
        self.pool = MirroredPool(first, queue)
        self.reference = self.pool.reference
        self.now = 0.0
        self.runs = 0
        self.leases: list[Lease] = []
        self.released: list[Lease] = []
        self.demands: dict[RunId, Demand] = {}
        self.grants = 0

    def told(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                self.leases.append(effect.lease)
                self.grants += 1
                # Over its capacity after a shrink, perhaps; but then nothing is granted on it.
                load = self.pool.loads()[effect.lease.resource]
                assert load.in_flight <= load.capacity
                assert effect.lease.resource not in effect.lease.tried

    @rule(asked=demands, tick=st.sampled_from(TICKS))
    def admit(self, asked: Demand, tick: float) -> None:
        self.now += tick
        self.runs += 1
        run_id = RunId(f"r{self.runs}")
        self.demands[run_id] = asked
        self.told(self.pool.admit(run_id, asked, self.now))

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99), tick=st.sampled_from(TICKS))
    def release(self, which: int, tick: float) -> None:
        self.now += tick
        lease = self.leases.pop(which % len(self.leases))
        self.told(self.pool.release(lease, self.now))
        self.released.append(lease)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99))
    def fail_early_and_retry(self, which: int) -> None:
        lease = self.leases.pop(which % len(self.leases))
        self.told(self.pool.release(lease, self.now))
        self.released.append(lease)
        asked = self.demands[lease.run_id]
        self.told(self.pool.admit(lease.run_id, asked, self.now, retry_of=lease))

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99), waited=st.sampled_from(TICKS), avoids=st.booleans())
    def run_a_while_and_come_back(self, which: int, waited: float, avoids: bool) -> None:
        lease = self.leases.pop(which % len(self.leases))
        self.told(self.pool.release(lease, self.now))
        self.released.append(lease)
        asked = self.demands[lease.run_id]
        place = lease.place_after(min(waited, self.now), self.now, avoids_tried=avoids)
        self.told(self.pool.admit(lease.run_id, asked, self.now, place=place))

    @precondition(lambda self: self.reference.waiting)
    @rule(which=st.integers(0, 99), tick=st.sampled_from(TICKS))
    def cancel(self, which: int, tick: float) -> None:
        self.now += tick
        waiting = self.reference.waiting
        self.told(self.pool.cancel(waiting[which % len(waiting)].run_id, self.now))

    @rule(node=st.sampled_from(["n1", "n2"]), tick=st.sampled_from(TICKS))
    def connect(self, node: str, tick: float) -> None:
        self.now += tick
        self.told(self.pool.node_connected(NodeId(node), self.now))

    @rule(node=st.sampled_from(["n1", "n2"]))
    def lose(self, node: str) -> None:
        self.told(self.pool.node_lost(NodeId(node), self.now))

    @rule(name=st.sampled_from(list(NODE_OF)), health=st.sampled_from(HEALTH))
    def probe(self, name: str, health: Health) -> None:
        resource = spec(name, node=NODE_OF[name]).resource
        self.told(self.pool.probed_health(resource, health, self.now))

    @rule(new=catalogs(), queue=policies)
    def replace(self, new: Catalog, queue: QueuePolicy) -> None:
        self.told(self.pool.replace(new, queue, self.now))

    @rule(tick=st.sampled_from(TICKS))
    def time_passes(self, tick: float) -> None:
        self.now += tick
        self.told(self.pool.expire(self.now))

    @precondition(lambda self: self.released)
    @rule()
    def a_second_release_is_refused_and_changes_nothing(self) -> None:
        before = self.pool.loads()
        with pytest.raises(LeaseError):
            self.pool.release(self.released[-1], self.now)
        assert self.pool.loads() == before

    @invariant()
    def leases_are_grants_without_releases(self) -> None:
        assert self.pool.lease_count == self.grants - len(self.released)
        assert set(self.pool.leases) == set(self.leases)

    @invariant()
    def the_same_runs_wait_and_none_of_them_holds_a_lease(self) -> None:
        waiting = {run.run_id for run in self.reference.waiting}
        assert self.pool.queue_status(self.now).pending == len(waiting)
        assert not waiting & {lease.run_id for lease in self.leases}

    @invariant()
    def counters_count_leases_and_nothing_else(self) -> None:
        for resource, load in self.pool.loads().items():
            assert load.in_flight == self.reference.in_flight(resource)
            assert load.long_in_flight == self.reference.long_in_flight(resource)

    @invariant()
    def nobody_waits_for_a_slot_that_is_free(self) -> None:
        assert not any(map(self.reference._choose, self.reference.waiting))

    @invariant()
    def the_next_deadline_is_the_earliest(self) -> None:
        deadlines = [
            run.arrived_at + self.reference.policy.queue_timeout_ms / 1000
            for run in self.reference.waiting
            if self.reference.policy.queue_timeout_ms
        ]
        assert self.pool.next_deadline == min(deadlines, default=None)


@pytest.mark.req("POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-6", "POOL-7", "POOL-13", "GATE-3")
def test_the_pool_decides_exactly_as_the_reference():
    run_state_machine_as_test(PoolAndReference)


@pytest.mark.req("POOL-1", "POOL-2", "POOL-5")
@pytest.mark.parametrize("seed", range(3))
def test_it_does_so_with_many_resources_ranks_and_turns(seed: int):
    random = Random(seed)
    names = [f"p{n:02}" for n in range(40)]

    def drawn() -> Catalog:
        specs = [
            spec(
                name,
                node=f"n{n % 5}",
                capacity=random.choice([1, 2, 30]),
                long_slots=random.choice([None, 1, 3]),
                priority=random.randrange(6),
                health=random.choice(["healthy", "healthy", "degraded"]),
            )
            for n, name in enumerate(names)
        ]
        models = {model: random.sample(names, random.randint(1, 40)) for model in MODELS}
        return catalog(specs, models, threshold=100)

    pool = MirroredPool(drawn(), policy(max_queue=20, timeout_ms=0))
    for node in range(5):
        pool.node_connected(NodeId(f"n{node}"), 0.0)
    most = 0
    for step in range(800):
        leases = pool.leases
        most = max(most, len(leases))
        node_id = NodeId(f"n{random.randrange(5)}")
        event = random.random()
        if event < 0.55:
            tokens = random.choice([1, 1, 100])
            pool.admit(RunId(f"r{step}"), demand(random.choice(MODELS), input_tokens=tokens), 0.0)
        elif event < 0.95 and leases:
            pool.release(random.choice(leases), 0.0)
        elif event < 0.97:
            pool.node_lost(node_id, 0.0)
        elif event < 0.995:
            pool.node_connected(node_id, 0.0)
        else:
            pool.replace(drawn(), policy(max_queue=20, timeout_ms=0), 0.0)
    assert most > 30
