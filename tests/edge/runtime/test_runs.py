"""What a run leaves on its record of the way to its slot, and what it is told where there is none.

The hub is scripted: attempts end as the test says, and nothing is sent anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from iop_edge.config.effective import QueuePolicy
from iop_edge.pool.catalog import Attribution, Catalog, DirectTarget
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.snapshot import SnapshotStore
from iop_edge.runtime.usage import RunReport, UsageLedger
from iop_edge.runtime.work import RunSpec
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, ModelId, NodeId, RouteId, RunId, Target
from tests.edge.pool.rig import TUNNEL, catalog, demand, policy, spec

N = NodeId("n")


class Hub:
    """Opens attempts that end at once with the fault of their provider, or stay open."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.connected: set[NodeId] = set()

    def takes_runs(self, node_id: NodeId) -> bool:
        return node_id in self.connected

    def open_attempt(self, node_id: NodeId, frame: Any, body: bytes) -> Attempt:
        attempt = Attempt(cast(Any, Link()), 1, receive_window=cast(Any, Window()),
                          send_window=cast(Any, None))  # fmt: skip
        fault = self.faults.get(frame.attempt_open.provider_id)
        if fault is not None:
            attempt.on_end(fault)
        return attempt


class Link:
    def cancel_attempt(self, attempt_id: int, reason: str) -> None:
        pass


class Window:
    def close(self) -> None:
        pass


class Work:
    operation = "chat_completions"
    is_stream = True
    auth_override = None

    def upstream_headers(self) -> list[tuple[str, str]]:
        return []

    def upstream_body(self, target: Target) -> bytes:
        return b""


class Snapshot:
    generation = 1

    def __init__(self, of: Catalog) -> None:
        self.catalog = of


class World:
    def __init__(self, of: Catalog, queue: QueuePolicy) -> None:
        self.hub = Hub()
        self.dispatcher = Dispatcher(of, queue)
        self._ledger = UsageLedger()
        self.service = RunService(
            snapshots=SnapshotStore(cast(Any, Snapshot(of))),
            dispatcher=self.dispatcher,
            hub=cast(Any, self.hub),
            ledger=self._ledger,
        )
        self.hub.connected.add(N)
        self.dispatcher.node_connected(N)

    async def run(self, run_id: str, model: str = "m") -> None:
        asked = RunSpec(
            run_id=RunId(run_id),
            request_id=run_id,
            surface="chat",
            model=ModelId(model),
            demand=demand(model),
            work=cast(Any, Work()),
        )
        async with self.service.open(asked):
            pass

    async def waiting(self, run_id: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self.run(run_id))
        await asyncio.sleep(0)
        assert self.dispatcher.queue_status().pending == 1
        return task

    async def take(self, run_id: str) -> Callable[[], None]:
        """Take a slot past the run service; what comes back gives it back."""
        lease = (await self.dispatcher.acquire(RunId(run_id), demand())).lease
        return lambda: self.dispatcher.release(lease)

    @property
    def last(self) -> RunReport:
        return self._ledger.latest(1)[0]


async def fault_of(run: asyncio.Task[None]) -> Fault:
    async with asyncio.timeout(10):
        with pytest.raises(Fault) as caught:
            await run
    return caught.value


def outcomes(report: RunReport) -> list[str]:
    return [explanation.outcome for explanation in report.decisions]


REFUSED = Fault(Code.UPSTREAM_REFUSED, "the upstream refused the connection")


@pytest.mark.req("POOL-12")
async def test_a_run_that_waited_in_vain_has_its_wait_and_both_decisions_on_its_record():
    world = World(catalog([spec("a")]), policy(timeout_ms=20))
    await world.take("holder")
    assert (await fault_of(await world.waiting("late"))).code is Code.QUEUE_TIMEOUT
    assert outcomes(world.last) == ["queued", "queue_timeout"]
    assert world.last.run.queue_ms == pytest.approx(world.last.decisions[-1].waited_ms, abs=1e-3)
    assert world.last.run.queue_ms >= 20


@pytest.mark.req("POOL-12")
async def test_a_caller_who_leaves_the_queue_leaves_the_reason_and_the_length_of_its_wait():
    world = World(catalog([spec("a")]), policy(timeout_ms=0))
    await world.take("holder")
    gone = await world.waiting("gone")
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    assert world.last.run.end == "cancelled"
    assert world.last.run.queue_ms > 0
    [queued] = world.last.decisions
    assert [seen.reason for seen in queued.others] == ["no_free_slot"]


@pytest.mark.req("POOL-12")
async def test_a_run_that_had_its_slot_at_once_waited_for_nothing():
    world = World(catalog([spec("a")]), policy())
    world.hub.faults["a"] = Fault(Code.UPSTREAM_INVALID, "garbage")
    await fault_of(asyncio.create_task(world.run("r")))
    assert (outcomes(world.last), world.last.run.queue_ms) == (["granted"], 0.0)


@pytest.mark.req("POOL-13")
async def test_the_last_fault_is_told_where_nobody_is_left_to_be_tried():
    world = World(catalog([spec("a")]), policy())
    world.hub.faults["a"] = REFUSED
    assert await fault_of(asyncio.create_task(world.run("r"))) is REFUSED
    assert outcomes(world.last) == ["granted", "no_provider"]


@pytest.mark.req("POOL-5", "POOL-13")
@pytest.mark.parametrize(
    ("max_queue", "ends", "code"),
    [(4, "in time", Code.QUEUE_TIMEOUT), (1, "at once", Code.QUEUE_FULL)],
)
async def test_a_run_that_comes_back_to_a_queue_is_told_what_the_queue_made_of_it(
    max_queue: int, ends: str, code: Code
):
    """And not of the provider before, which others may still be served by."""
    world = World(
        catalog([spec("a"), spec("b")], {"m": ["a", "b"], "k": ["b"]}),
        policy(max_queue, 20 if ends == "in time" else 0),
    )
    world.hub.faults["a"] = REFUSED
    held = (await world.dispatcher.acquire(RunId("holder"), demand("k"))).lease
    waits = None
    if max_queue == 1:
        waits = asyncio.create_task(world.dispatcher.acquire(RunId("waits"), demand("k")))
        await asyncio.sleep(0)
    fault = await fault_of(asyncio.create_task(world.run("r")))
    assert fault.code is code
    assert fault.retry_after_s is not None
    assert world.last.run.attempts == 1
    if waits is not None:
        waits.cancel()
    world.dispatcher.release(held)


@pytest.mark.req("POOL-7", "POOL-13")
async def test_a_run_that_waits_for_another_attempt_is_told_when_its_model_goes():
    world = World(
        catalog([spec("a"), spec("b")], {"m": ["a", "b"], "k": ["b"]}), policy(timeout_ms=0)
    )
    world.hub.faults["a"] = REFUSED
    await world.dispatcher.acquire(RunId("holder"), demand("k"))
    back = await world.waiting("back")
    world.dispatcher.replace(catalog([spec("a"), spec("b")], {"k": ["b"]}), policy())
    assert (await fault_of(back)).code is Code.MODEL_NOT_FOUND


@pytest.mark.req("OPS-3", "POOL-13")
async def test_draining_refuses_the_new_and_serves_those_who_wait_or_come_back():
    world = World(catalog([spec("a"), spec("b")]), policy(timeout_ms=0))
    world.hub.faults |= {"a": REFUSED, "b": REFUSED}
    free_a, free_b = await world.take("one"), await world.take("other")
    early = await world.waiting("early")
    world.service.stop_admitting()
    late = await fault_of(asyncio.create_task(world.run("late")))
    assert late.code is Code.DRAINING
    assert late.retry_after_s is not None
    free_a()
    free_b()
    assert await fault_of(early) is REFUSED
    assert (world.last.run.run_id, world.last.run.attempts) == ("early", 2)


@pytest.mark.req("CFG-28", "POOL-1")
async def test_a_route_to_a_node_that_is_not_connected_is_told_so_with_a_time_to_come_back():
    route = DirectTarget(
        node_id=NodeId("away"),
        adapter=AdapterKey("main"),
        target=Target("small"),
        attribution=Attribution("provider", "lab"),
        abilities=TUNNEL,
        route_id=RouteId("r1"),
    )
    world = World(replace(catalog([]), routes={ModelId("routed"): route}), policy())
    fault = await fault_of(asyncio.create_task(world.run("r", "routed")))
    assert (fault.code, fault.shape.status) == (Code.NO_PROVIDER, 503)
    assert fault.retry_after_s is not None
    assert world.last.run.attempts == 0
    assert world.last.run.attribution == Attribution("provider", "lab")
