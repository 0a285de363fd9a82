from __future__ import annotations

import asyncio

import pytest

from iop_node.runtime.router import Router
from iop_node.runtime.slots import ProviderSlots
from iop_shared.errors import Code, Fault


class Slots:
    """Two slots on generation 5, both changeable."""

    def __init__(self, grace_s: float = 60.0) -> None:
        self.capacity: int | None = 2
        self.generation = 5
        self.under_test = ProviderSlots(
            lambda provider_id: self.capacity, lambda: self.generation, grace_s
        )
        self.held: list[asyncio.Event] = []

    def start(self, name: str, log: list[str], generation: int = 5) -> asyncio.Task[None]:
        leave = asyncio.Event()
        self.held.append(leave)

        async def hold() -> None:
            await self.under_test.take("p", generation)
            log.append(name)
            await leave.wait()
            self.under_test.give_back("p")

        return asyncio.create_task(hold())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_work_beyond_the_capacity_is_refused_and_nothing_was_sent():
    slots, log = Slots(grace_s=0.01), []
    tasks = [slots.start(name, log) for name in "ab"]
    await settle()
    with pytest.raises(Fault) as refused:
        await slots.start("c", log)
    assert refused.value.code is Code.NO_PROVIDER
    assert log == ["a", "b"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks)
    assert slots.under_test.in_use("p") == 0


async def test_a_slot_that_comes_free_goes_to_the_one_who_waited_longest():
    slots, log = Slots(), []
    tasks = [slots.start(name, log) for name in "abcd"]
    await settle()
    assert log == ["a", "b"]
    slots.held[0].set()
    await settle()
    assert log == ["a", "b", "c"]
    slots.held[1].set()
    tasks.append(slots.start("e", log))
    await settle()
    assert log == ["a", "b", "c", "d"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "c", "d", "e"]
    assert slots.under_test.in_use("p") == 0


async def test_one_who_gives_up_waiting_holds_up_nobody():
    slots, log = Slots(), []
    tasks = [slots.start(name, log) for name in "abcd"]
    await settle()
    tasks[2].cancel()
    await settle()
    slots.held[0].set()
    await settle()
    assert log == ["a", "b", "d"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert slots.under_test.in_use("p") == 0


async def test_a_payload_with_more_capacity_lets_those_who_wait_in():
    slots, log = Slots(), []
    tasks = [slots.start(name, log) for name in "abcde"]
    await settle()
    slots.capacity = 4
    slots.under_test.recheck()
    await settle()
    assert log == ["a", "b", "c", "d"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks)


async def test_an_attempt_dispatched_before_the_capacity_shrank_is_not_judged_by_it():
    slots, log = Slots(grace_s=0.0), []
    slots.capacity = 1
    tasks = [slots.start("a", log), slots.start("b", log, generation=4)]
    await settle()
    assert log == ["a", "b"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks)


async def test_a_provider_that_the_payload_does_not_name_is_not_judged():
    slots, log = Slots(grace_s=0.0), []
    slots.capacity = None
    tasks = [slots.start(name, log) for name in "abc"]
    await settle()
    assert log == ["a", "b", "c"]
    for leave in slots.held:
        leave.set()
    await asyncio.gather(*tasks)


async def test_a_router_counts_across_swaps_and_by_the_registry_that_serves(
    payload, install, attempt
):
    async with Router(capacity_grace_s=0.0) as router:
        registry = await install(router, payload(1, capacity=1, a="1"))
        first = asyncio.create_task(router.execute(attempt(), None))
        await registry.adapters["a"].entered.wait()
        await install(router, payload(2, capacity=1, a="1"))
        with pytest.raises(Fault) as refused:
            await router.execute(attempt(), None)
        assert refused.value.code is Code.NO_PROVIDER
        await install(router, payload(3, capacity=2, a="1"))
        second = asyncio.create_task(router.execute(attempt(), None))
        registry.adapters["a"].release.set()
        await asyncio.gather(first, second)


@pytest.mark.req("REF-3")
async def test_a_router_lets_those_who_wait_in_as_soon_as_a_larger_capacity_is_installed(
    payload, install, attempt
):
    async with Router(capacity_grace_s=60.0) as router:
        registry = await install(router, payload(1, capacity=1, a="1"))
        adapter = registry.adapters["a"]
        runs = [asyncio.create_task(router.execute(attempt(), None)) for _ in range(2)]
        await adapter.entered.wait()
        await settle()
        assert adapter.running == 1
        await install(router, payload(2, capacity=2, a="1"))
        await settle()
        assert adapter.running == 2
        adapter.release.set()
        await asyncio.gather(*runs)
