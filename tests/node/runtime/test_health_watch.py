from __future__ import annotations

import asyncio

import pytest

from iop_node.adapters.base import Probe
from iop_node.adapters.upstream_spec import ProbeSpec
from iop_node.core.health import COOLING_DOWN, FAST_FAILURES, Reading
from iop_node.runtime.health_watch import ProviderReading
from iop_node.runtime.router import HealthChanged, Router
from iop_shared.errors import Code, Fault

pytestmark = pytest.mark.req("NODE-10")

DOWN = Probe(health="unavailable", reason="http_503")
GOOD = Probe(health="healthy")


class Watch:
    def __init__(self) -> None:
        self.changes = 0
        self._changed = asyncio.Event()

    def __call__(self, event) -> None:
        if isinstance(event, HealthChanged):
            self.changes += 1
            self._changed.set()

    async def next(self) -> None:
        await self._changed.wait()
        self._changed.clear()


@pytest.fixture
def probing(workshop):
    workshop.probe_spec = ProbeSpec(path="/health", interval_s=0.001, timeout_s=1.0, failures=2)
    return workshop


async def fail(router, attempt, adapter, code: Code, times: int) -> None:
    adapter.fault = Fault(code, "no")
    for _ in range(times):
        with pytest.raises(Fault):
            await router.execute(attempt(), None)
    adapter.fault = None


def down(reason: str) -> tuple[ProviderReading, ...]:
    return (ProviderReading(provider_id="p-a", reading=Reading("unavailable", reason)),)


async def test_bad_probes_lower_the_providers_of_the_adapter_and_a_good_one_clears_them(
    probing, payload, install
):
    watch = Watch()
    async with Router(watch) as router:
        registry = await install(router, payload(1, a="1"))
        assert router.report().health == ()
        for _ in range(2):
            probing.probes.put_nowait(DOWN)
        await watch.next()
        assert router.report().health == down("http_503")
        assert router.current is registry, "a probe changes no registry"
        probing.probes.put_nowait(GOOD)
        await watch.next()
        assert router.report().health == ()
        assert watch.changes == 2


async def test_an_adapter_that_is_carried_over_keeps_its_judgement(probing, payload, install):
    watch = Watch()
    async with Router(watch) as router:
        await install(router, payload(1, a="1"))
        for _ in range(2):
            probing.probes.put_nowait(DOWN)
        await watch.next()
        await install(router, payload(2, capacity=1, a="1"))
        assert router.report().health == down("http_503")
        await install(router, payload(3, a="2"))
        assert router.report().health == ()


async def test_a_replaced_adapter_is_probed_no_more(probing, payload, install, attempt):
    watch = Watch()
    async with Router(watch) as router:
        old = (await install(router, payload(1, a="1"))).adapters["a"]
        run = asyncio.create_task(router.execute(attempt(), None))
        await old.entered.wait()
        await install(router, payload(2, b="1"))
        # One consumer is left: were the old adapter still probed, it would take some of these.
        for _ in range(2):
            probing.probes.put_nowait(DOWN)
        await watch.next()
        assert [one.provider_id for one in router.report().health] == ["p-b"]
        old.release.set()
        await run


async def test_an_upstream_that_fails_fast_is_cooled_down_and_comes_back_by_itself(
    workshop, payload, install, attempt, monkeypatch
):
    monkeypatch.setattr("iop_node.core.health.FIRST_COOLDOWN_S", 0.02)
    watch = Watch()
    async with Router(watch) as router:
        adapter = (await install(router, payload(1, a="1"))).adapters["a"]
        await fail(router, attempt, adapter, Code.UPSTREAM_REFUSED, FAST_FAILURES)
        await watch.next()
        assert watch.changes == 1
        await watch.next()
        assert router.report().health == ()


async def test_an_answer_ends_the_cooling(workshop, payload, install, attempt):
    async with Router() as router:
        adapter = (await install(router, payload(1, a="1"))).adapters["a"]
        await fail(router, attempt, adapter, Code.UPSTREAM_CLOSED, FAST_FAILURES)
        assert router.report().health == down(COOLING_DOWN)
        adapter.release.set()
        await router.execute(attempt(), None)
        assert router.report().health == ()


@pytest.mark.parametrize(
    "code",
    [Code.UPSTREAM_FIRST_BYTE_TIMEOUT, Code.UPSTREAM_TOTAL_TIMEOUT, Code.UNSUPPORTED_BY_MODEL],
)
async def test_an_upstream_that_is_slow_or_asked_wrongly_is_not_cooled_down(
    workshop, payload, install, attempt, code
):
    async with Router() as router:
        adapter = (await install(router, payload(1, a="1"))).adapters["a"]
        await fail(router, attempt, adapter, code, FAST_FAILURES * 2)
        assert router.report().health == ()
