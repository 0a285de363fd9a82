"""An edge that restarts under many nodes gets all of them back, not all at one moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from random import Random

import pytest

from iop.runtime_pb2 import Hello, NodeConfigPayload
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.node_session import NodeSession
from iop_edge.serve.node_link import NodeLink, NodeTokens
from iop_node.core.backoff import Backoff
from iop_node.link.dialer import Dialer
from iop_shared.ids import NodeId
from iop_shared.session.flow import WindowBudget

from .conftest import PoolEars, Ports
from .rig import Edge, echo, running

NODES = 50
NAMES = [NodeId(f"n{number:02}") for number in range(NODES)]


def token_of(node_id: str) -> str:
    return f"iop_node_{node_id}_" + "s" * 32


class CountingHub(NodeHub):
    """Notes when each node joined."""

    def begin(self) -> None:
        self.joined_at: list[float] = []

    async def join(self, node_id: NodeId, hello: Hello) -> NodeSession:
        session = await super().join(node_id, hello)
        self.joined_at.append(asyncio.get_running_loop().time())
        return session


def edge_of(boot_id: str) -> tuple[Edge, CountingHub]:
    edge = Edge(boot_id)
    hub = CountingHub(boot_id=boot_id, version="test", pool=PoolEars(), budget=WindowBudget())
    hub.begin()
    hub.set_desired({name: NodeConfigPayload(generation=1) for name in NAMES})
    edge.hub = hub
    digests = {name: hashlib.sha256(token_of(name).encode()).digest() for name in NAMES}
    edge.link = NodeLink(hub, NodeTokens(digests))
    return edge, hub


def dialers(port: int) -> Iterator[Dialer]:
    random = Random(1)
    for name in NAMES:
        yield Dialer(
            address=f"127.0.0.1:{port}",
            token=token_of(name),
            tls=None,
            instance_id=name,
            version="test",
            ports=Ports(echo),
            backoff=Backoff(random.random, cap_s=5.0),
            budget=WindowBudget(),
            effective_generation=lambda: 0,
        )


@pytest.mark.req("NODE-6", "NODE-9")
async def test_an_edge_that_restarts_gets_every_node_back_with_one_session_each() -> None:
    first, _ = edge_of("first")
    second, hub = edge_of("second")
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        async with first.serving() as port:
            for node in dialers(port):
                await stack.enter_async_context(running(node))
            await first.until(lambda: all(first.hub.takes_runs(name) for name in NAMES))
        began = asyncio.get_running_loop().time()
        async with second.serving(port):
            await second.until(lambda: all(hub.takes_runs(name) for name in NAMES))
            sessions = {view.session for view in hub.views()}
            assert len(sessions) == NODES == len(hub.joined_at)
            moments = [round((at - began) * 1000) for at in sorted(hub.joined_at)]
            print(f"joined after (ms): {moments}")
