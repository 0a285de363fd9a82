"""A day in the life of pool and dispatcher, out of one seed, in virtual time.

Callers arrive, wait, run, fail early and come back, end, or hang up at any moment; nodes come and
go, probes change their minds, refreshes change everything that is live. The pool is mirrored by
the reference at every event. `simulate(seed)` returns the log of what happened; the same seed
gives the same log.
"""

from __future__ import annotations

import asyncio
from random import Random

from iop_edge.config.effective import Health, QueuePolicy
from iop_edge.pool.catalog import Catalog
from iop_edge.pool.effects import Lease
from iop_edge.runtime.dispatcher import Dispatcher, PoolFault
from iop_shared.errors import Code
from iop_shared.ids import NodeId, RunId
from iop_shared.profiles import Operation
from tests.edge.pool.reference import MirroredPool
from tests.edge.pool.rig import MESSAGES, NORMALIZED, TUNNEL, catalog, demand, policy, spec
from tests.simulation.virtual import run_virtually

NODES = ("n1", "n2", "n3")
PROVIDERS = {f"p{n}": NODES[n % len(NODES)] for n in range(6)}
MODELS = ("k", "m", "w")
OPERATIONS: tuple[Operation | None, ...] = (None, "chat_completions", "messages", "count_tokens")
HEALTH: tuple[Health, ...] = ("healthy", "unknown", "degraded", "unavailable")
LONGEST_TIMEOUT_S = 8.0
CALLERS = 40
EXPECTED_CODES = {
    Code.QUEUE_FULL,
    Code.QUEUE_TIMEOUT,
    Code.NO_PROVIDER,
    Code.MODEL_NOT_FOUND,
    Code.UNSUPPORTED_BY_MODEL,
    Code.CONTEXT_LENGTH_EXCEEDED,
}


class Simulation:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._log: list[str] = []
        self._held: dict[RunId, Lease] = {}

    async def run(self) -> list[str]:
        first, queue = self._catalog(), self._policy()
        self._dispatcher = Dispatcher(first, queue)
        self._dispatcher._pool = self._pool = MirroredPool(first, queue)
        for node in NODES:
            self._dispatcher.node_connected(NodeId(node))
        world = asyncio.create_task(self._world())
        callers = [asyncio.create_task(self._caller(RunId(f"r{n:02}"))) for n in range(CALLERS)]
        for caller in callers:
            if self._random.random() < 0.25:
                asyncio.get_running_loop().call_later(self._random.uniform(0, 40), caller.cancel)
        ends = await asyncio.gather(*callers, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        world.cancel()
        await asyncio.wait([world])
        if not world.cancelled():
            world.result()
        self._check()
        assert not self._held
        assert self._dispatcher.lease_count == 0
        assert self._dispatcher.queue_status().pending == 0
        self._dispatcher.close()
        return self._log

    async def _caller(self, run_id: RunId) -> None:
        choose = self._random.choice
        await asyncio.sleep(self._random.uniform(0, 20))
        asked = demand(
            choose(MODELS),
            choose(OPERATIONS),
            input_tokens=choose((1, 60, 120)),
            floor=choose((1, 100)),
            output=choose((None, 50, 51)),
        )
        arrived = self._now
        failed: Lease | None = None
        while True:
            try:
                grant = await self._dispatcher.acquire(run_id, asked, retry_of=failed)
            except PoolFault as fault:
                self._turned_away(run_id, fault.code, self._now - arrived, is_retry=bool(failed))
                return
            except asyncio.CancelledError:
                self._tell(f"{run_id} hung up in the queue")
                raise
            assert run_id not in self._held
            self._held[run_id] = grant.lease
            self._tell(f"{run_id} on {grant.lease.resource.provider_id}")
            fails_early = self._random.random() < 0.2
            try:
                await asyncio.sleep(0 if fails_early else self._random.expovariate(0.3))
            except asyncio.CancelledError:
                self._tell(f"{run_id} hung up while running")
                raise
            finally:
                del self._held[run_id]
                self._dispatcher.release(grant.lease)
            if not fails_early:
                self._tell(f"{run_id} ended")
                return
            failed = grant.lease

    def _turned_away(self, run_id: RunId, code: Code, waited_s: float, *, is_retry: bool) -> None:
        assert code in EXPECTED_CODES
        # The loop's clock adds up its jumps, and so may be late by what adding rounds away.
        assert is_retry or waited_s <= LONGEST_TIMEOUT_S + 1e-9
        self._tell(f"{run_id} {code}")

    async def _world(self) -> None:
        choose = self._random.choice
        while True:
            await asyncio.sleep(self._random.expovariate(1.0))
            match choose(("lose", "join", "join", "probe", "refresh", "resize")):
                case "lose":
                    self._dispatcher.node_lost(NodeId(choose(NODES)))
                case "join":
                    self._dispatcher.node_connected(NodeId(choose(NODES)))
                case "probe":
                    name = choose(list(PROVIDERS))
                    resource = spec(name, node=PROVIDERS[name]).resource
                    self._dispatcher.probed_health(resource, choose(HEALTH))
                case "refresh":
                    self._dispatcher.replace(self._catalog(), self._policy())
                case "resize":
                    self._dispatcher.replace(self._pool.reference.catalog, self._policy())
            self._check()

    def _check(self) -> None:
        """What must hold whenever everybody has been told everything."""
        assert set(self._pool.leases) >= set(self._held.values())
        for resource, load in self._dispatcher.loads().items():
            leases = [lease for lease in self._pool.leases if lease.resource == resource]
            assert load.in_flight == len(leases)
            assert load.long_in_flight == sum(lease.is_long for lease in leases)
        reference = self._pool.reference
        assert self._dispatcher.queue_status().pending == len(reference.waiting)
        assert not any(map(reference._choose, reference.waiting))

    def _catalog(self) -> Catalog:
        chance, choose = self._random.random, self._random.choice
        names = [name for name in PROVIDERS if chance() < 0.9] or ["p0"]
        specs = [
            spec(
                name,
                node=PROVIDERS[name],
                capacity=self._random.randint(1, 3),
                long_slots=choose((None, 0, 1, 2)),
                priority=choose((0, 0, 1)),
                is_enabled=chance() < 0.85,
                health=choose(("healthy", *HEALTH)),
                abilities=choose((TUNNEL, TUNNEL, NORMALIZED, MESSAGES)),
            )
            for name in names
        ]
        models = {
            model: [name for name in names if chance() < 0.6] for model in MODELS if chance() < 0.95
        }
        return catalog(specs, models, window=choose((None, None, 150)), threshold=choose((50, 100)))

    def _policy(self) -> QueuePolicy:
        timeout_ms = self._random.choice((500, 2000, int(LONGEST_TIMEOUT_S * 1000)))
        return policy(self._random.randint(1, 8), timeout_ms)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _tell(self, what: str) -> None:
        self._log.append(f"{self._now:.6f} {what}")


def simulate(seed: int) -> list[str]:
    """One run. An error carries the seed that repeats it."""
    try:
        return run_virtually(Simulation(seed).run())
    except BaseException as error:
        error.add_note(f"seed {seed}: tests.simulation.dispatch.simulate({seed}) repeats it")
        raise
