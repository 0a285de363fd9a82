from __future__ import annotations

import asyncio

import pytest

from iop_node.runtime.router import (
    RegistryDrainDeadline,
    RegistryInstalled,
    RegistryStopped,
    Router,
)
from iop_shared.errors import Code, Fault


class Watch:
    """Records router events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.events = []
        self._changed = asyncio.Event()

    def __call__(self, event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, event) -> None:
        while event not in self.events:
            self._changed.clear()
            await self._changed.wait()


@pytest.mark.req("NODE-4")
async def test_runs_finish_on_the_registry_they_began_on_and_then_it_stops(
    workshop, payload, install, attempt
):
    watch = Watch()
    async with Router(watch) as router:
        before = await install(router, payload(1, a="1"))
        run = asyncio.create_task(router.execute(attempt(), None))
        old = before.adapters["a"]
        await old.entered.wait()

        after = await install(router, payload(2, a="2"))
        assert router.current is after
        assert old.state == "started"
        report = router.report()
        assert (report.generation, report.active_runs) == (2, 1)
        (draining,) = report.draining
        assert (draining.generation, draining.leases) == (1, 1)
        assert 0 < draining.deadline_in_s <= 60

        old.release.set()
        await run
        await watch.until(RegistryStopped(1, ("a",)))
        assert old.state == "stopped"
        assert router.report().draining == ()
    assert watch.events[:2] == [RegistryInstalled(1), RegistryInstalled(2)]


@pytest.mark.req("NODE-3")
async def test_an_unrelated_change_spares_the_adapter_and_its_streams(
    workshop, payload, install, attempt
):
    watch = Watch()
    async with Router(watch) as router:
        before = await install(router, payload(1, a="1", b="1"))
        run = asyncio.create_task(router.execute(attempt("a"), None))
        await before.adapters["a"].entered.wait()
        after = await install(router, payload(2, a="1", b="2"))

        assert after.adapters["a"] is before.adapters["a"]
        assert after.adapters["b"] is not before.adapters["b"]
        assert workshop.stopped == []
        after.adapters["a"].release.set()
        await run
        await watch.until(RegistryStopped(1, ("b",)))
        assert workshop.stopped == ["b"]
        assert after.adapters["a"].state == "started"


@pytest.mark.req("NODE-4")
async def test_a_run_past_the_drain_deadline_ends_with_a_clear_error(
    workshop, payload, install, attempt
):
    watch = Watch()
    async with Router(watch) as router:
        before = await install(router, payload(1, a="1"))
        old = asyncio.create_task(router.execute(attempt(), None))
        await before.adapters["a"].entered.wait()
        after = await install(router, payload(2, drain_ms=20, a="2"))
        new = asyncio.create_task(router.execute(attempt(), None))

        with pytest.raises(Fault) as ended:
            await old
        assert ended.value.code is Code.DRAIN_DEADLINE
        await watch.until(RegistryStopped(1, ("a",)))
        assert RegistryDrainDeadline(1, 1) in watch.events
        after.adapters["a"].release.set()
        await new


async def test_a_timeout_of_the_runs_own_is_not_taken_for_the_drain_deadline(payload, install):
    async with Router() as router:
        await install(router, payload(1, a="1"))
        with pytest.raises(TimeoutError), router.lease():
            raise TimeoutError


async def test_a_run_that_is_cancelled_gives_its_lease_back(payload, install, attempt):
    watch = Watch()
    async with Router(watch) as router:
        before = await install(router, payload(1, a="1"))
        run = asyncio.create_task(router.execute(attempt(), None))
        await before.adapters["a"].entered.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert router.report().active_runs == 0
        await install(router, payload(2, a="2"))
        await watch.until(RegistryStopped(1, ("a",)))


async def test_without_a_registry_a_run_is_refused(attempt):
    async with Router() as router:
        with pytest.raises(Fault) as refused:
            await router.execute(attempt(), None)
    assert refused.value.code is Code.NO_PROVIDER


async def test_an_adapter_that_is_not_there_is_refused(payload, install, attempt):
    async with Router() as router:
        await install(router, payload(1, a="1"))
        with pytest.raises(Fault) as refused:
            await router.execute(attempt("z"), None)
        assert router.report().active_runs == 0
    assert refused.value.code is Code.NO_PROVIDER


@pytest.mark.req("NODE-4")
async def test_leaving_ends_what_runs_and_stops_every_adapter(workshop, payload, install, attempt):
    watch = Watch()
    async with Router(watch) as router:
        first = await install(router, payload(1, a="1"))
        runs = [asyncio.create_task(router.execute(attempt(), None))]
        await first.adapters["a"].entered.wait()
        second = await install(router, payload(2, a="2"))
        runs.append(asyncio.create_task(router.execute(attempt(), None)))
        await second.adapters["a"].entered.wait()
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert [end.code for end in ends] == [Code.DRAIN_DEADLINE] * 2
    assert sorted(workshop.stopped) == ["a", "a"]
    assert {event.generation for event in watch.events if isinstance(event, RegistryStopped)} == {
        1,
        2,
    }


async def test_waiting_for_idle_waits_for_the_last_run(payload, install, attempt):
    async with Router() as router:
        await router.wait_idle()
        registry = await install(router, payload(1, a="1"))
        runs = [asyncio.create_task(router.execute(attempt(), None)) for _ in range(3)]
        await registry.adapters["a"].entered.wait()
        idle = asyncio.create_task(router.wait_idle())
        registry.adapters["a"].release.set()
        await asyncio.gather(*runs)
        await idle
        assert router.report().active_runs == 0


async def test_an_observer_that_fails_harms_nothing(payload, install, attempt):
    def observe(event) -> None:
        raise RuntimeError("not my day")

    async with Router(observe) as router:
        registry = await install(router, payload(1, a="1"))
        registry.adapters["a"].release.set()
        await router.execute(attempt(), None)


@pytest.mark.req("NODE-3", "NODE-4")
async def test_a_thousand_swaps_under_load_lose_nothing(workshop, payload, install, attempt):
    """Runs begin and end all the time while adapters change, stay, and come back."""
    swaps, stops = 1000, []
    finished = 0

    def observe(event) -> None:
        if isinstance(event, RegistryStopped):
            stops.append(event.generation)

    async with Router(observe) as router:
        await install(router, payload(1, a="1", b="1"))
        is_over = False

        async def load(key: str) -> None:
            nonlocal finished
            while not is_over:
                with router.lease() as registry:
                    adapter = registry.adapters[key]
                    assert adapter.state == "started"
                    for _ in range(3):
                        await asyncio.sleep(0)
                    assert adapter.state == "started", "stopped under a run"
                finished += 1

        async with asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(load("ab"[number % 2]))
            for generation in range(2, swaps + 2):
                await install(
                    router, payload(generation, a=str(generation % 3 + 1), b=str(generation))
                )
            is_over = True
        assert finished > swaps
        assert router.report().active_runs == 0
    assert sorted(stops) == list(range(1, swaps + 2)), "every generation stops exactly once"
    started = [adapter for adapter in workshop.made if adapter.state != "new"]
    assert {adapter.state for adapter in started} == {"stopped"}
    assert len(workshop.stopped) == len(workshop.started) == len(started)
