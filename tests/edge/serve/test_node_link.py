"""The end that nodes dial, without a socket: tokens, and a transport that takes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from iop.runtime_pb2 import (
    EdgeBatch,
    Hello,
    NodeBatch,
    NodeConfigPayload,
    NodeFrame,
    ProtocolRange,
)
from iop_edge.config.effective import Health
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.serve import node_link
from iop_edge.serve.node_link import NodeLink, NodeTokens
from iop_shared.ids import NodeId, Resource
from iop_shared.session.flow import WindowBudget

NODE = NodeId("gpu-a")
TOKEN = "iop_node_0123abcd_" + "s" * 32


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@pytest.mark.req("NODE-9")
@pytest.mark.parametrize(
    ("authorization", "owner"),
    [
        (f"Bearer {TOKEN}", NODE),
        (f"bearer {TOKEN}", NODE),
        (f"Bearer {TOKEN}x", None),
        (f"Basic {TOKEN}", None),
        (f"Bearer {TOKEN[:-1]}", None),
        ("Bearer ", None),
        (TOKEN, None),
        ("", None),
        (None, None),
    ],
)
def test_a_token_belongs_to_the_node_that_was_given_it(
    authorization: str | None, owner: NodeId | None
) -> None:
    other = NodeId("gpu-b")
    tokens = NodeTokens({NODE: digest_of(TOKEN), other: digest_of(TOKEN[::-1])})
    assert tokens.owner(authorization) == owner
    assert tokens.owner(f"Bearer {TOKEN[::-1]}") == other
    assert NodeTokens({}).owner(authorization) is None


class NoPool:
    def node_connected(self, node_id: NodeId) -> None: ...
    def node_lost(self, node_id: NodeId) -> None: ...
    def probed_health(self, resource: Resource, health: Health) -> None: ...


class DeafPeer:
    """What gRPC hands to a servicer, for a peer whose window never opens."""

    def __init__(self) -> None:
        self.is_written_to = asyncio.Event()
        self.has_let_go = asyncio.Event()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {TOKEN}"),)

    async def write(self, batch: EdgeBatch) -> None:
        self.is_written_to.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_let_go.set()

    async def abort(self, code: object, details: str) -> None:
        raise AssertionError(details)


async def _says_hello_and_no_more() -> AsyncIterator[NodeBatch]:
    hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="one")
    yield NodeBatch(frames=[NodeFrame(hello=hello)])
    await asyncio.Event().wait()


@pytest.mark.req("NODE-8")
async def test_a_session_that_is_over_holds_nothing_for_a_peer_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_link, "PARTING_TIMEOUT_S", 0.01)
    hub = NodeHub(boot_id="boot", version="test", pool=NoPool(), budget=WindowBudget())
    hub.set_desired({NODE: NodeConfigPayload(generation=1)})
    link = NodeLink(hub, NodeTokens({NODE: digest_of(TOKEN)}))
    peer: Any = DeafPeer()
    async with asyncio.timeout(5):
        serving = asyncio.create_task(link.Session(_says_hello_and_no_more(), peer))
        await peer.is_written_to.wait()
        hub.close_all("the test is over")
        await serving
    assert peer.has_let_go.is_set()
