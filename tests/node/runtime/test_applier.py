from __future__ import annotations

import asyncio

import pytest

from iop_node.runtime.applier import Applier
from iop_node.runtime.router import RegistryStopped, Router


@pytest.fixture
async def events():
    return []


@pytest.fixture
def node(workshop, sources, events):
    """A router and the applier in front of it, with fake adapters."""

    class Node:
        def __init__(self) -> None:
            self.router = Router(events.append)
            self.applier = Applier(self.router, sources, workshop.kinds)

        async def welcome(self, payload, boot_id="boot"):
            return await self.applier.apply(payload, boot_id=boot_id, is_welcome=True)

        async def refresh(self, payload, boot_id="boot"):
            return await self.applier.apply(payload, boot_id=boot_id, is_welcome=False)

    return Node()


def unknown_kind(payload):
    payload.adapters.add(key="odd")
    return payload


@pytest.mark.req("NODE-3", "REF-9")
async def test_a_payload_is_acknowledged_with_the_generation_that_now_serves(node, payload):
    async with node.router:
        answer = await node.welcome(payload(7, a="1"))
        assert (answer.generation, answer.is_acknowledged) == (7, True)
        assert (answer.effective_generation, answer.code, answer.reason) == (7, "", "")
        assert node.router.current.generation == 7
        assert (node.applier.boot_id, node.applier.effective_generation) == ("boot", 7)


@pytest.mark.req("NODE-3", "REF-9")
async def test_a_refusal_leaves_the_old_registry_serving(node, payload, workshop, attempt):
    async with node.router:
        await node.welcome(payload(7, a="1"))
        before = node.router.current
        answer = await node.refresh(unknown_kind(payload(8, a="2")))
        assert (answer.generation, answer.is_acknowledged) == (8, False)
        assert answer.effective_generation == 7
        assert answer.code == "unknown_adapter_kind"
        assert "odd" in answer.reason
        assert node.router.current is before
        before.adapters["a"].release.set()
        await node.router.execute(attempt(), None)
        assert workshop.stopped == []
        assert (await node.refresh(payload(9, a="2"))).is_acknowledged


@pytest.mark.req("NODE-3")
async def test_an_adapter_that_does_not_start_is_a_refusal_with_nothing_left_behind(
    node, payload, workshop
):
    async with node.router:
        await node.welcome(payload(1, a="1"))
        workshop.broken.add("c")
        answer = await node.refresh(payload(2, a="1", b="1", c="1"))
        assert answer.code == "adapter_start_failed"
        assert workshop.stopped == ["b"]
        assert node.router.alive == (node.router.current,)


@pytest.mark.req("NODE-3")
async def test_a_payload_of_equal_meaning_swaps_without_rebuilding_an_adapter(
    node, payload, workshop, events
):
    async with node.router:
        await node.welcome(payload(1, a="1", b="1"))
        adapters = node.router.current.adapters
        assert (await node.refresh(payload(2, a="1", b="1"))).effective_generation == 2
        assert node.router.current.adapters == adapters
        assert workshop.started == ["a", "b"]
        while RegistryStopped(1, ()) not in events:
            await asyncio.sleep(0)


@pytest.mark.req("REF-9")
async def test_an_older_generation_of_the_same_edge_never_overwrites_a_newer_one(node, payload):
    async with node.router:
        await node.welcome(payload(8, a="1"))
        answer = await node.refresh(payload(7, a="2"))
        assert (answer.is_acknowledged, answer.code) == (False, "stale_generation")
        assert answer.effective_generation == 8
        assert node.router.current.generation == 8


@pytest.mark.req("REF-9")
async def test_a_welcome_is_judged_afresh_whatever_its_generation(node, payload):
    async with node.router:
        await node.welcome(payload(8, a="1"), "one")
        answer = await node.welcome(payload(1, a="2"), "two")
        assert (answer.is_acknowledged, answer.effective_generation) == (True, 1)
        assert (await node.refresh(payload(2, a="3"), "two")).is_acknowledged
        assert (await node.welcome(payload(1, a="2"), "two")).is_acknowledged


@pytest.mark.req("REF-9")
async def test_an_edge_that_was_succeeded_has_nothing_more_to_say(node, payload):
    async with node.router:
        await node.welcome(payload(8, a="1"), "one")
        await node.welcome(payload(1, a="2"), "two")
        answer = await node.refresh(payload(9, a="3"), "one")
        assert (answer.is_acknowledged, answer.code) == (False, "stale_session")
        assert node.router.current.generation == 1


@pytest.mark.req("REF-9")
async def test_a_refused_welcome_of_a_new_edge_claims_no_generation_of_its_own(node, payload):
    async with node.router:
        await node.welcome(payload(8, a="1"), "one")
        answer = await node.welcome(unknown_kind(payload(1)), "two")
        assert (answer.is_acknowledged, answer.effective_generation) == (False, 0)
        assert node.router.current.generation == 8
        # Generations compare within one edge process: 2 is not older than 8 here.
        assert (await node.refresh(payload(2, a="2"), "two")).is_acknowledged


@pytest.mark.req("REF-9")
async def test_applies_run_one_after_the_other_in_the_order_given(node, payload, workshop):
    gate = workshop.start_gates["slow"] = asyncio.Event()
    async with node.router:
        await node.welcome(payload(1, a="1"))
        slow = asyncio.create_task(node.refresh(payload(2, slow="1")))
        quick = asyncio.create_task(node.refresh(payload(3, b="1")))
        done, _ = await asyncio.wait({slow, quick}, timeout=0.05)
        assert not done
        assert node.router.current.generation == 1
        gate.set()
        assert [(await slow).effective_generation, (await quick).effective_generation] == [2, 3]
        assert node.router.current.generation == 3


@pytest.mark.req("NODE-3")
async def test_what_is_carried_over_outlives_its_old_registry_while_the_new_one_starts(
    node, payload, workshop, attempt
):
    """The registry that drained away in between was the last other holder of the adapter."""
    async with node.router:
        await node.welcome(payload(1, a="1"))
        adapter = node.router.current.adapters["a"]
        run = asyncio.create_task(node.router.execute(attempt(), None))
        await adapter.entered.wait()
        await node.refresh(payload(2, b="1"))
        gate = workshop.start_gates["slow"] = asyncio.Event()
        apply = asyncio.create_task(node.refresh(payload(3, a="1", slow="1")))
        await workshop.starting["slow"].wait()
        adapter.release.set()
        await run
        gate.set()
        assert (await apply).is_acknowledged
        assert node.router.current.adapters["a"] is adapter
        assert adapter.state == "started"


@pytest.mark.req("NODE-3")
async def test_an_apply_that_is_cancelled_leaves_nothing_behind(node, payload, workshop):
    workshop.start_gates["slow"] = asyncio.Event()
    async with node.router:
        await node.welcome(payload(1, a="1"))
        apply = asyncio.create_task(node.refresh(payload(2, b="1", slow="1")))
        await workshop.starting["slow"].wait()
        assert workshop.started == ["a", "b"]
        apply.cancel()
        with pytest.raises(asyncio.CancelledError):
            await apply
        assert workshop.stopped == ["b"]
        assert node.router.current.generation == 1
        assert (await node.refresh(payload(2, c="1"))).is_acknowledged


@pytest.mark.req("NODE-3")
async def test_a_bug_in_an_adapter_is_a_refusal_and_not_the_end_of_the_session(
    node, payload, workshop, monkeypatch
):
    async with node.router:
        await node.welcome(payload(1, a="1"))
        monkeypatch.setattr(workshop, "made", None)
        answer = await node.refresh(payload(2, a="2"))
        assert (answer.is_acknowledged, answer.code) == (False, "internal")
        assert node.router.current.generation == 1
