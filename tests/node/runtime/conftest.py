"""Adapters that do what a test tells them, and payloads of a few words."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

import pytest

from iop.runtime_pb2 import AdapterConfig, NodeConfigPayload
from iop_node.adapters.base import Probe, TunnelCall
from iop_node.adapters.upstream_spec import ProbeSpec
from iop_node.runtime.registry import AdapterRegistry
from iop_node.runtime.resolve import NodeSources
from iop_node.runtime.router import Attempt
from iop_shared.errors import Fault


class FakeAdapter:
    """Holds every call until `release`, or until it is stopped, which a run must never see."""

    def __init__(self, workshop: Workshop, key: str) -> None:
        self.workshop = workshop
        self.key = key
        self.state = "new"
        self.running = 0
        self.release = asyncio.Event()
        self.entered = asyncio.Event()
        self.probe_spec = workshop.probe_spec
        self.fault: Fault | None = None

    async def start(self) -> None:
        assert self.state == "new", "an adapter starts once"
        self.workshop.starting[self.key].set()
        await asyncio.sleep(0)
        if gate := self.workshop.start_gates.get(self.key):
            await gate.wait()
        if self.key in self.workshop.broken:
            raise OSError("no such thing")
        self.state = "started"
        self.workshop.started.append(self.key)

    async def stop(self) -> None:
        assert self.state == "started", "an adapter that started stops once"
        assert not self.running, "an adapter with runs is not stopped"
        self.state = "stopped"
        self.workshop.stopped.append(self.key)

    async def tunnel(self, call, out) -> None:
        assert self.state == "started", "a run sees its adapter alive"
        if self.fault is not None:
            raise self.fault
        self.running += 1
        self.entered.set()
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        assert self.state == "started", "a run keeps its adapter until it ends"

    async def run(self, call, out) -> None:
        await self.tunnel(call, out)

    async def probe(self) -> Probe:
        assert self.state == "started", "an adapter is probed while it lives"
        return await self.workshop.probes.get()


class Workshop:
    """Makes fake adapters and remembers what became of them."""

    def __init__(self) -> None:
        self.made: list[FakeAdapter] = []
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.broken: set[str] = set()
        self.probe_spec: ProbeSpec | None = None
        self.probes: asyncio.Queue[Probe] = asyncio.Queue()
        self.starting: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.start_gates: dict[str, asyncio.Event] = {}

    def build(self, config: AdapterConfig, spec: object) -> FakeAdapter:
        self.made.append(FakeAdapter(self, config.key))
        return self.made[-1]

    @property
    def kinds(self) -> Mapping[str, object]:
        return {"openai_compat": self.build}


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def sources() -> NodeSources:
    return NodeSources(environ={"KEY": "s3cret"})


@pytest.fixture
def payload():
    def make(
        generation: int = 1,
        *,
        capacity: int = 8,
        drain_ms: int = 60_000,
        concurrency: int = 0,
        **adapters: str,
    ) -> NodeConfigPayload:
        """Each adapter by key, with the port that tells its config from another's."""
        made = NodeConfigPayload(generation=generation)
        made.runtime.drain_deadline_ms = drain_ms
        made.runtime.concurrency = concurrency
        for key, port in adapters.items():
            upstream = made.adapters.add(key=key).openai_compat.upstream
            upstream.base_url = f"http://127.0.0.1:{port}"
            made.providers.add(id=f"p-{key}", adapter=key, models=["m"], capacity=capacity)
        return made

    return make


@pytest.fixture
def attempt():
    def make(key: str = "a", generation: int = 1_000_000, **changes: object) -> Attempt:
        work = TunnelCall(adapter=key, target="m", operation="chat_completions")
        return Attempt(
            **{"work": work, "provider_id": f"p-{key}", "generation": generation, **changes}
        )

    return make


@pytest.fixture
def install(workshop, sources):
    """Build, start and swap, as the applier does."""

    async def into(router, payload) -> AdapterRegistry:
        registry = AdapterRegistry.build(payload, sources, workshop.kinds).sharing(router.alive)
        router.prepare(registry)
        await registry.start()
        router.swap(registry)
        return registry

    return into
