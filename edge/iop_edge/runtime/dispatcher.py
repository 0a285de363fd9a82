"""The pool on an event loop: futures for those who wait, one timer for their deadlines.

It decides nothing. It hands events to the pool with the time, and carries out the effects: it
wakes who was granted a slot or turned away. It knows no session, no node link and no caller's
socket, and never awaits any of them. Everything here runs on one loop, and between the pool's
decision and its effects nothing else runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_edge.config.effective import Health, QueuePolicy
from iop_edge.pool.catalog import Catalog
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Expired, Granted, Lease, Place, Queued, Refused
from iop_edge.pool.explain import Decision
from iop_edge.pool.pool import Pool, QueueStatus
from iop_edge.pool.resource import ResourceStatus
from iop_shared.errors import Code, Fault
from iop_shared.ids import NodeId, Resource, RunId


class PoolFault(Fault):
    """A refusal by the pool, with the decision behind it."""

    def __init__(
        self, code: Code, message: str, retry_after_s: float | None, decision: Decision
    ) -> None:
        param = "model" if code is Code.MODEL_NOT_FOUND else None
        super().__init__(code, message, param=param, retry_after_s=retry_after_s)
        self.decision = decision


class Dispatcher:
    """Owns the one pool of this edge.

    `clock` gives seconds that never go back; by default it is the loop's own. To be used from the
    loop's thread only.
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: QueuePolicy,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._pool = Pool(catalog, policy)
        self._waiting: dict[RunId, asyncio.Future[Granted]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    # --- runs -----------------------------------------------------------------------------

    async def acquire(
        self,
        run_id: RunId,
        demand: Demand,
        *,
        retry_of: Lease | None = None,
        place: Place | None = None,
        on_queued: Callable[[Decision], None] | None = None,
    ) -> Granted:
        """A slot for the run, at once or when its turn comes. Whoever gets it must release it;
        `decision.explain()` of what comes back says why it is this one.

        `retry_of` is the released lease of an attempt that failed before its upstream request was
        sent (POOL-13); `place` says where a run stands whose attempt did run (`place_of`).
        `on_queued` is told why the run has to wait, before it does; why it was
        granted or refused is in what comes back (POOL-12). Raises PoolFault with model_not_found,
        unsupported_by_model, context_length_exceeded, no_provider, queue_full or queue_timeout. A
        caller that is cancelled while it waits has left the queue, and holds no slot, when the
        cancellation comes out of here. Await it directly: a wrapper that drops a result would
        drop the slot.
        """
        effects = self._pool.admit(run_id, demand, self._clock(), retry_of=retry_of, place=place)
        own = effects.pop()
        if effects:
            self._carry_out(effects)
        if isinstance(own, Granted):
            return own
        if not isinstance(own, Queued):
            raise _fault(own)
        future: asyncio.Future[Granted] = self._loop.create_future()
        self._waiting[run_id] = future
        self._arm()
        try:
            if on_queued is not None:
                on_queued(own.decision)
            return await future
        except BaseException:
            self._abandon(run_id, future)
            raise

    def place_of(self, lease: Lease, waited_s: float, *, avoids_tried: bool) -> Place:
        """Where a run stands that comes back after its attempt has run, having waited so long in
        all. `avoids_tried`: it gets none of the resources that it has had."""
        return lease.place_after(waited_s, self._clock(), avoids_tried=avoids_tried)

    def release(self, lease: Lease) -> None:
        """Give the slot back. Raises LeaseError for a lease that is not out: each is released
        exactly once (POOL-6)."""
        self._carry_out(self._pool.release(lease, self._clock()))

    # --- the world ------------------------------------------------------------------------

    def node_connected(self, node_id: NodeId) -> None:
        """The node's session is accepted, and a payload of this session acknowledged (POOL-1)."""
        self._carry_out(self._pool.node_connected(node_id, self._clock()))

    def node_lost(self, node_id: NodeId) -> None:
        """The node's session has ended. Leases on it are released by those who hold them."""
        self._carry_out(self._pool.node_lost(node_id, self._clock()))

    def probed_health(self, resource: Resource, health: Health) -> None:
        """What a probe of this session says of a resource (NODE-10)."""
        self._carry_out(self._pool.probed_health(resource, health, self._clock()))

    def replace(self, catalog: Catalog, policy: QueuePolicy) -> None:
        """Go over to another generation's catalog and queue policy (POOL-7)."""
        self._carry_out(self._pool.replace(catalog, policy, self._clock()))

    def cut_waiting(self, fault: Fault) -> None:
        """End every wait in the queue with this fault: the drain's deadline has passed."""
        for run_id in list(self._waiting):
            self._carry_out(self._pool.cancel(run_id, self._clock()))
            future = self._waiting.pop(run_id, None)
            if future is not None and not future.done():
                future.set_exception(fault)

    def close(self) -> None:
        """Stop the timer. For the end of the process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what can be seen -----------------------------------------------------------------

    def loads(self) -> dict[Resource, ResourceStatus]:
        """Status and slots of every provider, in the order of (node id, provider id)."""
        return self._pool.loads()

    def queue_status(self) -> QueueStatus:
        return self._pool.queue_status(self._clock())

    @property
    def lease_count(self) -> int:
        return self._pool.lease_count

    # --- effects --------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        """Wake everyone whom these effects concern. A slot granted to a caller that was cancelled
        in the meantime goes back at once, and what follows from that is carried out too."""
        for effect in effects:
            future = self._waiting.pop(effect.run_id)
            if isinstance(effect, Granted):
                if future.cancelled():
                    effects += self._pool.release(effect.lease, self._clock())
                else:
                    future.set_result(effect)
            elif isinstance(effect, Refused | Expired) and not future.cancelled():
                future.set_exception(_fault(effect))
        self._arm()

    def _abandon(self, run_id: RunId, future: asyncio.Future[Granted]) -> None:
        """Its waiter has been told, or will not listen any more: keep nothing for it."""
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.release(future.result().lease)
            return
        if self._waiting.get(run_id) is not future:
            # Granted or refused just before it was cancelled: that slot has gone back already.
            return
        future.cancel()
        self._carry_out(self._pool.cancel(run_id, self._clock()))
        self._waiting.pop(run_id, None)

    def _arm(self) -> None:
        """Keep one timer, never later than the next deadline. It may come early: then it only
        looks, and is set again."""
        deadline = self._pool.next_deadline
        if deadline is None:
            return
        when = self._loop.time() + (deadline - self._clock())
        if self._timer is not None:
            if self._timer_due <= when:
                return
            self._timer.cancel()
        # Not every loop gives a timer that can be asked for its time: uvloop's call_at returns a
        # plain handle for what is due already.
        self._timer_due = when
        self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._carry_out(self._pool.expire(self._clock()))


def _fault(effect: Refused | Expired) -> PoolFault:
    code = Code.QUEUE_TIMEOUT if isinstance(effect, Expired) else effect.code
    return PoolFault(code, effect.message, effect.retry_after_s, effect.decision)
