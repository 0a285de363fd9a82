"""One edge hub and one node session in a process, joined by two pumps instead of a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from iop.runtime_pb2 import (
    AttemptOpen,
    EdgeFrame,
    Hello,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeReport,
    ProtocolRange,
    ProviderResource,
    ProviderTunnelRequest,
)
from iop_edge.config.effective import Health
from iop_edge.runtime.attempt import Attempt as EdgeAttempt
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.node_session import NodeSession
from iop_node.adapters.base import Responder
from iop_node.link.session import NodeSessionEnd
from iop_node.runtime.router import Attempt
from iop_shared.ids import NodeId, Resource
from iop_shared.session.flow import WindowBudget
from tests.batches import next_batch

NODE = NodeId("gpu-a")

Execute = Callable[[Attempt, Responder], Awaitable[None]]


class PoolEars:
    """Hears what the hub tells the dispatcher."""

    def __init__(self) -> None:
        self.events: list[tuple[str, NodeId]] = []
        self.health: list[tuple[str, str]] = []

    def node_connected(self, node_id: NodeId) -> None:
        self.events.append(("connected", node_id))

    def node_lost(self, node_id: NodeId) -> None:
        self.events.append(("lost", node_id))

    def probed_health(self, resource: Resource, health: Health) -> None:
        self.health.append((resource.provider_id, health))


class Ports:
    """The rest of a node, scripted."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self.refuse: tuple[str, str] | None = None
        self.applied: list[int] = []
        self.reported = NodeReport()
        self.is_connected = asyncio.Event()
        self.hold_answers = asyncio.Event()
        self.hold_answers.set()

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        await self.hold_answers.wait()
        if self.refuse is not None:
            code, reason = self.refuse
            return NodeConfigAnswer(
                generation=payload.generation,
                effective_generation=self.applied[-1] if self.applied else 0,
                code=code,
                reason=reason,
            )
        self.applied.append(payload.generation)
        return NodeConfigAnswer(
            generation=payload.generation,
            is_acknowledged=True,
            effective_generation=payload.generation,
        )

    def report(self) -> NodeReport:
        report = NodeReport()
        report.CopyFrom(self.reported)
        return report

    def connected(self, is_connected: bool) -> None:
        if is_connected:
            self.is_connected.set()
        else:
            self.is_connected.clear()


class Pair:
    """A hub and its nodes. `join` connects a node whose runs are executed by `execute`."""

    def __init__(self) -> None:
        self.pool = PoolEars()
        self.hub = NodeHub(boot_id="boot", version="test", pool=self.pool, budget=WindowBudget())
        provider = ProviderResource(id="p1")
        self.hub.set_desired({NODE: NodeConfigPayload(generation=1, providers=[provider])})
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: list[NodeSessionEnd] = []

    async def join(
        self, execute: Execute, *, instance_id: str = "one", ports: Ports | None = None
    ) -> tuple[NodeSession, NodeSessionEnd, Ports]:
        ports = ports or Ports(execute)
        hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id=instance_id)
        session = await self.hub.join(NODE, hello)
        first = await next_batch(session)
        assert first is not None
        end = NodeSessionEnd(first.frames[0].welcome, ports, WindowBudget())
        self._ends.append(end)
        self._tasks += [
            asyncio.create_task(_pump(session, end)),
            asyncio.create_task(_pump(end, session)),
        ]
        return session, end, ports

    def open(self, body: bytes = b"{}") -> EdgeAttempt:
        opening = AttemptOpen(
            run_id="run", attempt=1, tunnel=ProviderTunnelRequest(adapter="a", target="t")
        )
        return self.hub.open_attempt(NODE, EdgeFrame(attempt_open=opening), body)

    async def close(self) -> None:
        self.hub.close_all("the test is over")
        for end in self._ends:
            end.close("the test is over")
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _pump(source: NodeSession | NodeSessionEnd, sink: NodeSession | NodeSessionEnd) -> None:
    while (batch := await next_batch(source)) is not None:
        sink.receive(batch)  # type: ignore[arg-type]  # each end's batches fit the other end


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    await made.close()
