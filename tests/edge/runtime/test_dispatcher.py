"""The pool on a loop: who is woken, what a cancelled caller leaves behind, and the one timer."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from iop_edge.pool.catalog import Catalog
from iop_edge.pool.effects import Granted, Lease
from iop_edge.pool.explain import Decision
from iop_edge.pool.pool import LeaseError
from iop_edge.runtime.dispatcher import Dispatcher, PoolFault
from iop_shared.errors import Code
from iop_shared.ids import NodeId, RunId
from tests.edge.pool.rig import catalog, demand, policy, spec


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def joined(of: Catalog, *, max_queue: int = 16, timeout_ms: int = 0, **fields: Clock) -> Dispatcher:
    dispatcher = Dispatcher(of, policy(max_queue, timeout_ms), **fields)
    dispatcher.node_connected(NodeId("n"))
    return dispatcher


def asking(dispatcher: Dispatcher, run_id: str, **fields: Lease) -> asyncio.Task[Granted]:
    return asyncio.create_task(dispatcher.acquire(RunId(run_id), demand(), **fields))


async def waiting(dispatcher: Dispatcher, run_id: str) -> asyncio.Task[Granted]:
    """A task that has come as far as the queue."""
    pending = dispatcher.queue_status().pending
    task = asking(dispatcher, run_id)
    await asyncio.sleep(0)
    assert dispatcher.queue_status().pending == pending + 1
    return task


async def soon(task: asyncio.Task[Granted]) -> Granted:
    """What the task brings. A pool that forgets it fails the test instead of stopping it."""
    async with asyncio.timeout(10):
        return await task


async def fault_of(task: asyncio.Task[Granted]) -> PoolFault:
    with pytest.raises(PoolFault) as caught:
        await soon(task)
    return caught.value


@pytest.mark.req("POOL-5", "POOL-6")
async def test_a_free_slot_is_had_at_once_and_a_released_one_by_who_waits_longest():
    dispatcher = joined(catalog([spec("a")]))
    first = await dispatcher.acquire(RunId("r1"), demand())
    second, third = await waiting(dispatcher, "r2"), await waiting(dispatcher, "r3")
    dispatcher.release(first.lease)
    granted = await soon(second)
    assert granted.lease.run_id == "r2"
    assert not third.done()
    dispatcher.release(granted.lease)
    assert (await soon(third)).lease.run_id == "r3"


@pytest.mark.req("POOL-6")
async def test_a_second_release_is_an_error_and_frees_nothing():
    dispatcher = joined(catalog([spec("a")]))
    grant = await dispatcher.acquire(RunId("r1"), demand())
    dispatcher.release(grant.lease)
    other = await dispatcher.acquire(RunId("r2"), demand())
    with pytest.raises(LeaseError):
        dispatcher.release(grant.lease)
    assert dispatcher.lease_count == 1
    dispatcher.release(other.lease)


@pytest.mark.req("POOL-5")
async def test_overflow_has_one_code_and_a_time_to_come_back():
    dispatcher = joined(catalog([spec("a")]), max_queue=1)
    await dispatcher.acquire(RunId("r1"), demand())
    pending = await waiting(dispatcher, "r2")
    with pytest.raises(PoolFault) as caught:
        await dispatcher.acquire(RunId("r3"), demand())
    fault = caught.value
    assert (fault.code, fault.shape.status) == (Code.QUEUE_FULL, 429)
    assert fault.retry_after_s is not None
    assert fault.decision.explain().outcome == "queue_full"
    pending.cancel()


@pytest.mark.req("POOL-5", "CFG-7")
async def test_waiting_out_the_queue_ends_with_its_own_code_and_frees_the_place():
    dispatcher = joined(catalog([spec("a")]), max_queue=1, timeout_ms=20)
    grant = await dispatcher.acquire(RunId("r1"), demand())
    fault = await fault_of(await waiting(dispatcher, "r2"))
    assert (fault.code, fault.shape.status) == (Code.QUEUE_TIMEOUT, 503)
    assert fault.retry_after_s is not None
    assert dispatcher.queue_status().pending == 0
    await fault_of(await waiting(dispatcher, "r3"))
    assert dispatcher.lease_count == 1
    dispatcher.release(grant.lease)


@pytest.mark.req("POOL-5")
async def test_the_queue_clock_stops_at_dispatch():
    dispatcher = joined(catalog([spec("a"), spec("b")], {"m": ["a"], "k": ["b"]}), timeout_ms=20)
    running = await dispatcher.acquire(RunId("r1"), demand("m"))
    blocker = await dispatcher.acquire(RunId("r2"), demand("k"))
    late = asyncio.create_task(dispatcher.acquire(RunId("r3"), demand("k")))
    await fault_of(late)
    assert {lease.lease for lease in (running, blocker)} == set(dispatcher._pool.leases)


@pytest.mark.req("POOL-6")
async def test_a_caller_that_gives_up_in_the_queue_leaves_it():
    dispatcher = joined(catalog([spec("a")]), max_queue=1)
    grant = await dispatcher.acquire(RunId("r1"), demand())
    gone = await waiting(dispatcher, "r2")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert dispatcher.queue_status().pending == 0
    successor = await waiting(dispatcher, "r3")
    dispatcher.release(grant.lease)
    assert (await soon(successor)).lease.run_id == "r3"


@pytest.mark.req("POOL-6")
async def test_a_caller_cancelled_between_grant_and_use_gives_the_slot_back():
    dispatcher = joined(catalog([spec("a")]))
    grant = await dispatcher.acquire(RunId("r1"), demand())
    gone, next_one = await waiting(dispatcher, "r2"), await waiting(dispatcher, "r3")
    dispatcher.release(grant.lease)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (await soon(next_one)).lease.run_id == "r3"
    assert dispatcher.lease_count == 1


@pytest.mark.req("POOL-6")
async def test_a_slot_granted_to_one_cancelled_in_the_same_breath_goes_to_the_next():
    dispatcher = joined(catalog([spec("a")]))
    grant = await dispatcher.acquire(RunId("r1"), demand())
    gone, next_one = await waiting(dispatcher, "r2"), await waiting(dispatcher, "r3")
    gone.cancel()
    dispatcher.release(grant.lease)
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (await soon(next_one)).lease.run_id == "r3"
    assert dispatcher.lease_count == 1
    assert dispatcher.queue_status().pending == 0


@pytest.mark.req("POOL-6")
async def test_a_caller_cancelled_when_it_has_just_been_turned_away_leaves_nothing():
    dispatcher = joined(catalog([spec("a")]))
    grant = await dispatcher.acquire(RunId("r1"), demand())
    gone = await waiting(dispatcher, "r2")
    dispatcher.node_lost(NodeId("n"))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert dispatcher.queue_status().pending == 0
    dispatcher.release(grant.lease)


@pytest.mark.req("POOL-6")
async def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_queue():
    dispatcher = joined(catalog([spec("a")]))
    await dispatcher.acquire(RunId("r1"), demand())
    acquiring = dispatcher.acquire(RunId("r2"), demand())
    acquiring.send(None)
    assert dispatcher.queue_status().pending == 1
    acquiring.close()
    assert dispatcher.queue_status().pending == 0


@pytest.mark.req("POOL-6")
async def test_every_one_of_many_callers_that_give_up_returns_its_slot_or_its_place():
    dispatcher = joined(catalog([spec("a", capacity=3), spec("b", capacity=2)]), max_queue=100)
    tasks = [asking(dispatcher, f"r{n}") for n in range(50)]
    await asyncio.sleep(0)
    held = [task.result() for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    for grant in held:
        dispatcher.release(grant.lease)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (dispatcher.lease_count, dispatcher.queue_status().pending) == (0, 0)
    again = [await dispatcher.acquire(RunId(f"again{n}"), demand()) for n in range(5)]
    spread = sorted(grant.lease.resource.provider_id for grant in again)
    assert spread == ["a", "a", "a", "b", "b"]


@pytest.mark.req("POOL-7")
async def test_a_refresh_wakes_what_the_new_catalog_can_serve_and_tells_the_others():
    dispatcher = joined(catalog([spec("a")], {"m": ["a"], "k": ["a"]}))
    await dispatcher.acquire(RunId("r1"), demand())
    served = await waiting(dispatcher, "r2")
    orphan = asyncio.create_task(dispatcher.acquire(RunId("r3"), demand("k")))
    await asyncio.sleep(0)
    dispatcher.replace(catalog([spec("a", capacity=2)], {"m": ["a"]}), policy())
    assert (await soon(served)).lease.run_id == "r2"
    fault = await fault_of(orphan)
    assert (fault.code, fault.param) == (Code.MODEL_NOT_FOUND, "model")


@pytest.mark.req("POOL-7")
async def test_a_shorter_timeout_reaches_those_who_wait_already():
    clock = Clock()
    dispatcher = joined(catalog([spec("a")]), timeout_ms=3_600_000, clock=clock)
    await dispatcher.acquire(RunId("r1"), demand())
    pending = await waiting(dispatcher, "r2")
    clock.now = 5.0
    dispatcher.replace(catalog([spec("a")]), policy(timeout_ms=5000))
    assert (await fault_of(pending)).code is Code.QUEUE_TIMEOUT


@pytest.mark.req("POOL-7")
async def test_a_timer_that_was_set_for_a_longer_timeout_is_set_anew():
    dispatcher = joined(catalog([spec("a")]), timeout_ms=3_600_000)
    await dispatcher.acquire(RunId("r1"), demand())
    pending = await waiting(dispatcher, "r2")
    dispatcher.replace(catalog([spec("a")]), policy(timeout_ms=20))
    assert (await fault_of(pending)).code is Code.QUEUE_TIMEOUT


@pytest.mark.req("POOL-5")
async def test_a_timer_that_fires_too_early_looks_and_waits_on():
    clock = Clock()
    dispatcher = joined(catalog([spec("a")]), timeout_ms=10, clock=clock)
    await dispatcher.acquire(RunId("r1"), demand())
    pending = await waiting(dispatcher, "r2")
    assert dispatcher._timer is not None
    dispatcher._timer.cancel()
    dispatcher._expire()
    assert not pending.done()
    assert dispatcher._timer is not None
    clock.now = 0.01
    assert (await fault_of(pending)).code is Code.QUEUE_TIMEOUT


@pytest.mark.req("POOL-13")
async def test_a_retry_goes_elsewhere_and_ends_where_nobody_else_is():
    dispatcher = joined(catalog([spec("a"), spec("b")]))
    first = await dispatcher.acquire(RunId("r1"), demand())
    dispatcher.release(first.lease)
    second = await dispatcher.acquire(RunId("r1"), demand(), retry_of=first.lease)
    assert second.lease.resource != first.lease.resource
    dispatcher.release(second.lease)
    with pytest.raises(PoolFault) as caught:
        await dispatcher.acquire(RunId("r1"), demand(), retry_of=second.lease)
    assert caught.value.code is Code.NO_PROVIDER


@pytest.mark.req("POOL-12")
async def test_a_run_that_must_wait_is_told_why_before_it_does_and_at_the_end():
    dispatcher = joined(catalog([spec("a")]), timeout_ms=20)
    told: list[Decision] = []
    grant = await dispatcher.acquire(RunId("r1"), demand(), on_queued=told.append)
    assert told == []
    assert grant.decision.outcome == "granted"
    with pytest.raises(PoolFault) as caught:
        await dispatcher.acquire(RunId("r2"), demand(), on_queued=told.append)
    outcomes = [str(decision.outcome) for decision in (*told, caught.value.decision)]
    assert outcomes == ["queued", "queue_timeout"]


@pytest.mark.req("POOL-6")
async def test_a_cancelled_caller_leaves_the_next_one_of_its_name_in_the_queue():
    dispatcher = joined(catalog([spec("a")]))
    first = await dispatcher.acquire(RunId("r1"), demand())
    gone = await waiting(dispatcher, "r2")
    # Both run before the one that is cancelled runs again; its slot has come and gone by then.
    blocker, again = asking(dispatcher, "r3"), asking(dispatcher, "r2")
    gone.cancel()
    dispatcher.release(first.lease)
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert dispatcher.queue_status().pending == 1
    dispatcher.release((await soon(blocker)).lease)
    assert (await soon(again)).lease.run_id == "r2"


async def test_closing_leaves_no_timer_behind():
    dispatcher = joined(catalog([spec("a")]), timeout_ms=3_600_000)
    await dispatcher.acquire(RunId("r1"), demand())
    pending = await waiting(dispatcher, "r2")
    timer = dispatcher._timer
    assert timer is not None
    dispatcher.close()
    assert timer.cancelled()
    pending.cancel()


@pytest.mark.req("POOL-1", "NODE-10")
async def test_a_sick_provider_or_a_lost_node_serves_nobody_until_it_is_back():
    dispatcher = joined(catalog([spec("a")]))
    dispatcher.probed_health(spec("a").resource, "unavailable")
    with pytest.raises(PoolFault) as caught:
        await dispatcher.acquire(RunId("r"), demand())
    assert caught.value.code is Code.NO_PROVIDER
    dispatcher.node_lost(NodeId("n"))
    dispatcher.node_connected(NodeId("n"))
    assert (await dispatcher.acquire(RunId("r"), demand())).lease.run_id == "r"


@pytest.mark.req("POOL-5")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_deadline_that_has_come_already_is_set_on_every_loop(run: object) -> None:
    async def play() -> None:
        clock = Clock()
        dispatcher = joined(catalog([spec("a")]), timeout_ms=50, clock=clock)
        held = await dispatcher.acquire(RunId("r1"), demand())
        first = await waiting(dispatcher, "r2")
        # Past the deadline of the one that waits, and before any timer has fired.
        clock.now = 0.06
        dispatcher.replace(catalog([spec("a")]), policy(16, 55))
        dispatcher.replace(catalog([spec("a")]), policy(16, 70))
        clock.now = 0.08
        second = asking(dispatcher, "r3")
        assert (await fault_of(first)).code is Code.QUEUE_TIMEOUT
        dispatcher.release(held.lease)
        dispatcher.release((await soon(second)).lease)
        dispatcher.close()

    run(play())  # type: ignore[operator]  # either loop's own


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_timer_for_what_is_due_now_can_be_set_anew(run: object) -> None:
    async def play() -> None:
        clock = Clock()
        dispatcher = joined(catalog([spec("a")]), timeout_ms=50, clock=clock)
        await dispatcher.acquire(RunId("r1"), demand())
        waits = [await waiting(dispatcher, "r2")]
        clock.now = 0.05 - 1e-9
        dispatcher.replace(catalog([spec("a")]), policy(16, 50))
        dispatcher.replace(catalog([spec("a")]), policy(16, 50))
        waits.append(asking(dispatcher, "r3"))
        await asyncio.sleep(0)
        clock.now = 1.0
        for task in waits:
            assert (await fault_of(task)).code is Code.QUEUE_TIMEOUT
        dispatcher.close()

    run(play())  # type: ignore[operator]  # either loop's own
