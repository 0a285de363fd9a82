"""Which registry a run goes to, and when a replaced one stops.

The router is the shell around `core.generations`: it turns its effects into stopped adapters,
ended runs and events. It never builds a registry and never knows a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from msgspec import Struct

from iop_node.adapters.base import Adapter, Responder, RunCall, TunnelCall
from iop_node.adapters.interrupt import Interrupt
from iop_node.core.generations import (
    Abandoned,
    DeadlineReached,
    Drained,
    Draining,
    Effect,
    Generations,
    RegistryLease,
)
from iop_node.runtime.health_watch import HealthWatch, ProviderReading
from iop_node.runtime.registry import AdapterRegistry
from iop_node.runtime.slots import ProviderSlots
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.ids import ProviderId

_log = logs.get("node.router")


class Attempt(Struct, frozen=True, kw_only=True):
    """One execution on one provider, as the session's envelope names it.

    `provider_id` is the resource whose slot is held at the edge, empty for a legacy route, which
    takes none. `generation` is the edge's, at dispatch; `run_id` and `number` (1 for the first of
    a run) are as well.
    """

    work: TunnelCall | RunCall
    provider_id: ProviderId = ProviderId("")
    generation: int = 0
    run_id: str = ""
    number: int = 0


class RegistryInstalled(NamedTuple):
    generation: int


class RegistryDrainDeadline(NamedTuple):
    """A draining registry ran out of time; `ended_runs` runs are being ended."""

    generation: int
    ended_runs: int


class RegistryStopped(NamedTuple):
    """The last lease is back, and the adapters that nobody else holds are closed (NODE-4)."""

    generation: int
    stopped_adapters: tuple[str, ...]


class HealthChanged(NamedTuple):
    """An upstream became worse or better than it was (NODE-10)."""


RouterEvent = RegistryInstalled | RegistryDrainDeadline | RegistryStopped | HealthChanged


class RouterReport(Struct, frozen=True, kw_only=True):
    """For status. `active_runs` counts those on draining registries too; `health` names the
    providers whose upstream is worse than healthy."""

    generation: int
    active_runs: int
    draining: tuple[Draining, ...]
    health: tuple[ProviderReading, ...] = ()


class Router:
    """Routes runs to the current registry. Used as `async with`.

    On leaving, every registry is stopped and every adapter closed; runs that are still under way
    end with drain_deadline. `observe` is called synchronously with every event, in order; what it
    raises is logged and harms nothing.
    """

    def __init__(
        self,
        observe: Callable[[RouterEvent], None] = lambda event: None,
        *,
        capacity_grace_s: float = 1.0,
    ) -> None:
        self._observe = observe
        self._generations: Generations[AdapterRegistry] = Generations()
        self._runs: dict[RegistryLease[AdapterRegistry], RunLease] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._health = HealthWatch(lambda: self._tell(HealthChanged()))
        self.slots = ProviderSlots(self._capacity_of, self._generation_of_current, capacity_grace_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._health.stop()
        self._enact(self._generations.retire(self._now(), 0.0))
        self._enact(self._generations.due(self._now()))
        await self._idle.wait()
        while self._stops:
            await asyncio.wait(set(self._stops))
        if self._timer is not None:
            self._timer.cancel()

    # --- replacing a registry --------------------------------------------------------------

    @property
    def current(self) -> AdapterRegistry | None:
        return self._generations.current

    @property
    def alive(self) -> tuple[AdapterRegistry, ...]:
        """Every registry whose adapters run, or will: those to share with."""
        return self._generations.tokens

    def prepare(self, registry: AdapterRegistry) -> None:
        """Hold what the registry shares while its fresh adapters start."""
        self._generations.prepare(registry.generation, registry, registry.held)

    def abandon(self, registry: AdapterRegistry) -> None:
        """Drop a prepared registry whose fresh adapters did not start."""
        self._enact(self._generations.abandon(registry), unstarted=registry)

    def swap(self, registry: AdapterRegistry) -> None:
        """Make a prepared and started registry the one that every later run takes, in one step.

        The old one drains: it is stopped after its last lease, and runs that outlast the new
        registry's `drain_s` end with Fault(drain_deadline).
        """
        effects = self._generations.install(registry, self._now(), registry.drain_s)
        self._tell(RegistryInstalled(registry.generation))
        self._health.watch(registry)
        self._enact(effects)
        self._arm()
        self.slots.recheck()

    # --- running ---------------------------------------------------------------------------

    def lease(self) -> RunLease:
        """The current registry, for as long as one run needs it. Used as `with`."""
        return RunLease(self)

    async def execute(self, attempt: Attempt, out: Responder) -> None:
        """Run one attempt to its end; returns when the upstream's answer is complete.

        Raises Fault as `Adapter.tunnel` and `Adapter.run`, drain_deadline, and no_provider where
        the provider is full, the adapter unknown or no registry there yet (nothing was sent then).
        """
        work = attempt.work
        slots = self.slots
        if not slots.take_at_once(attempt.provider_id, attempt.generation):
            await slots.take(attempt.provider_id, attempt.generation)
        try:
            with self.lease() as registry:
                await self._call(registry.adapter(work.adapter), work, out)
        finally:
            slots.give_back(attempt.provider_id)

    async def _call(self, adapter: Adapter, work: TunnelCall | RunCall, out: Responder) -> None:
        try:
            if isinstance(work, TunnelCall):
                await adapter.tunnel(work, out)
            else:
                await adapter.run(work, out)
        except Fault as fault:
            self._health.call_ended(adapter, fault.code)
            raise
        self._health.call_ended(adapter, None)

    async def wait_idle(self) -> None:
        """Returns when no run is under way. The node's own drain waits for it."""
        await self._idle.wait()

    def report(self) -> RouterReport:
        current = self._generations.current
        return RouterReport(
            generation=0 if current is None else current.generation,
            active_runs=self._generations.leases,
            draining=self._generations.draining(self._now()),
            health=self._health.readings(),
        )

    # --- leases ----------------------------------------------------------------------------

    def begin(self, run: RunLease) -> RegistryLease[AdapterRegistry]:
        """Called by a lease. Raises Fault(no_provider) before the first registry."""
        try:
            lease = self._generations.take()
        except LookupError:
            raise Fault(Code.NO_PROVIDER, "the node has no configuration yet") from None
        self._idle.clear()
        self._runs[lease] = run
        return lease

    def end(self, lease: RegistryLease[AdapterRegistry]) -> None:
        """Called by a lease."""
        del self._runs[lease]
        self._enact(self._generations.give_back(lease))
        if not self._runs:
            self._idle.set()

    # --- inside ----------------------------------------------------------------------------

    def _capacity_of(self, provider_id: ProviderId) -> int | None:
        current = self._generations.current
        provider = None if current is None else current.providers.get(provider_id)
        # A capacity of 0 is one that the payload does not name: the edge's own bound is 1.
        return None if provider is None or not provider.capacity else provider.capacity

    def _generation_of_current(self) -> int:
        current = self._generations.current
        return 0 if current is None else current.generation

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _enact(self, effects: list[Effect], unstarted: AdapterRegistry | None = None) -> None:
        for effect in effects:
            match effect:
                case Drained(generation, _, released):
                    self._stop_soon(generation, released)
                case Abandoned(_, _, released):
                    # What was fresh never started; what is left was carried over, and its last
                    # other holder stopped meanwhile.
                    fresh = set() if unstarted is None else unstarted.fresh
                    carried = tuple(adapter for adapter in released if adapter.key not in fresh)
                    if carried:
                        self._stop_soon(None, carried)
                case DeadlineReached(generation, leases):
                    self._tell(RegistryDrainDeadline(generation, len(leases)))
                    for lease in leases:
                        self._runs[lease].make()

    def _stop_soon(self, generation: int | None, adapters: tuple[Adapter, ...]) -> None:
        task = asyncio.get_running_loop().create_task(self._stop(generation, adapters))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _stop(self, generation: int | None, adapters: tuple[Adapter, ...]) -> None:
        stopped: list[str] = []
        for adapter in adapters:
            try:
                await adapter.stop()
            except Exception:
                _log.exception("adapter_stop_failed", adapter=adapter.key)
            stopped.append(adapter.key)
        if generation is not None:
            self._tell(RegistryStopped(generation, tuple(stopped)))

    def _arm(self) -> None:
        """Keep one timer, at the moment when the machine next has something to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._generations.next_due()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # The loop may call a timer early by its clock's resolution.
        now = max(self._now(), self._generations.next_due() or 0.0)
        self._enact(self._generations.due(now))
        self._arm()

    def _tell(self, event: RouterEvent) -> None:
        try:
            self._observe(event)
        except Exception:
            _log.exception("router_observer_failed")


class RunLease(Interrupt):
    """One run's hold on the registry that serves when the block is entered.

    Entering raises Fault(no_provider) before the first registry. A block that outlasts the
    deadline of its registry is cancelled, and leaving it raises Fault(drain_deadline).
    """

    __slots__ = ("_lease", "_router")

    def __init__(self, router: Router) -> None:
        self._router = router

    def __enter__(self) -> AdapterRegistry:
        self._lease = self._router.begin(self)
        self.arm()
        return self._lease.token

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._router.end(self._lease)
        if self.accounts_for(error):
            raise Fault(
                Code.DRAIN_DEADLINE,
                "the run outlasted the time that a replaced configuration may drain",
            ) from None
