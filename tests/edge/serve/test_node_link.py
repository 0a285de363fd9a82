"""The end that nodes dial, without a socket: tokens, and a transport that takes nothing."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from iop.runtime_pb2 import (
    Hello,
    NodeBatch,
    NodeConfigPayload,
    NodeFrame,
    ProtocolRange,
    ProviderResource,
)
from iop_edge.config.effective import Health, Server
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.node_session import NodeSession
from iop_edge.serve import node_link
from iop_edge.serve.grpc_listener import GrpcListener
from iop_edge.serve.node_link import SERVICE_NAME, NodeLink, NodeTokens
from iop_shared.ids import NodeId, Resource
from iop_shared.rpc.client import dial
from iop_shared.rpc.codes import StatusCode
from iop_shared.session.flow import WindowBudget
from iop_shared.wire import MAX_MESSAGE_BYTES

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


MANY = [ProviderResource(id=f"{n:05d}" + "p" * 200) for n in range(5000)]
"""About a mebibyte of a payload."""


class ObservedHub(NodeHub):
    """Shows the sessions that it opens."""

    def __init__(self) -> None:
        super().__init__(boot_id="boot", version="test", pool=NoPool(), budget=WindowBudget())
        self.sessions: asyncio.Queue[NodeSession] = asyncio.Queue()

    async def join(self, node_id: NodeId, hello: Hello) -> NodeSession:
        session = await super().join(node_id, hello)
        self.sessions.put_nowait(session)
        return session


@pytest.mark.req("NODE-8")
async def test_a_session_that_is_over_holds_nothing_for_a_peer_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_link, "PARTING_TIMEOUT_S", 0.01)
    hub = ObservedHub()
    hub.set_desired({NODE: NodeConfigPayload(generation=1)})
    link = NodeLink(hub, NodeTokens({NODE: digest_of(TOKEN)}))
    hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="one")
    async with (
        asyncio.timeout(10),
        GrpcListener(Server(listen="127.0.0.1:0"), {SERVICE_NAME: link}) as listener,
    ):
        connection = await dial("127.0.0.1", int(listener.address.rpartition(":")[2]), tls=None)
        call = connection.call(
            "edge",
            f"/{SERVICE_NAME}/Session",
            [("authorization", f"Bearer {TOKEN}")],
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        call.send(NodeBatch(frames=[NodeFrame(hello=hello)]).SerializeToString())
        session = await hub.sessions.get()
        # A peer that reads nothing pays for nothing: a few of these are more than its window.
        for generation in range(2, 8):
            session.refresh(NodeConfigPayload(generation=generation, providers=MANY))
        is_over = asyncio.Event()
        call.on_end = is_over.set
        hub.close_all("the test is over")
        await is_over.wait()
        connection.close("the test is over")
    assert call.failure is not None
    assert call.failure.code is StatusCode.UNAVAILABLE
    assert "takes nothing" in call.failure.details
