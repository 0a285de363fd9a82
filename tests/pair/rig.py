"""Both ends on a real socket of loopback: an edge's hub behind its listener, and dialers."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from iop.runtime_pb2 import AttemptOpen, EdgeFrame, NodeConfigPayload, ProviderTunnelRequest
from iop_edge.config.effective import Server, Tls
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.serve.grpc_listener import GrpcListener
from iop_edge.serve.node_link import SERVICE_NAME, NodeLink, NodeTokens
from iop_node.adapters.base import Responder, TunnelCall
from iop_node.core.backoff import Backoff
from iop_node.link.dialer import Dialer, TokenRefused
from iop_node.runtime.router import Attempt
from iop_shared.session.flow import WindowBudget

from .conftest import NODE, PoolEars, Ports

TOKEN = "iop_node_0123abcd_" + "s" * 32


async def echo(attempt: Attempt, out: Responder) -> None:
    assert isinstance(attempt.work, TunnelCall)
    body = attempt.work.body
    content = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
    out.started()
    out.head(200, [])
    await out.chunk(content)


class Edge:
    def __init__(self, boot_id: str = "boot", tls: Tls | None = None) -> None:
        self.tls = tls
        self.pool = PoolEars()
        self.hub = NodeHub(boot_id=boot_id, version="test", pool=self.pool, budget=WindowBudget())
        self.hub.set_desired({NODE: NodeConfigPayload(generation=1)})
        tokens = NodeTokens({NODE: hashlib.sha256(TOKEN.encode()).digest()})
        self.link = NodeLink(
            self.hub, tokens, binds_certificates=tls is not None and bool(tls.client_ca_file)
        )
        self.port = 0

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[int]:
        config = Server(listen=f"127.0.0.1:{port}", tls=self.tls)
        async with GrpcListener(config, {SERVICE_NAME: self.link}) as listener:
            self.port = int(listener.address.rpartition(":")[2])
            yield self.port
        self.hub.close_all("the test is over")

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_true():
                await asyncio.sleep(0.005)

    def is_connected(self) -> bool:
        return self.hub.takes_runs(NODE)

    async def ask(self, body: bytes) -> bytes:
        opening = AttemptOpen(
            run_id="run", attempt=1, tunnel=ProviderTunnelRequest(adapter="a", target="t")
        )
        attempt = self.hub.open_attempt(NODE, EdgeFrame(attempt_open=opening), body)
        await attempt.head()
        pieces = []
        while (piece := await attempt.next_chunk()) is not None:
            pieces.append(piece)
        return b"".join(pieces)


def dialer(
    port: int,
    *,
    host: str = "127.0.0.1",
    token: str = TOKEN,
    instance_id: str = "one",
    tls: ssl.SSLContext | None = None,
) -> Dialer:
    return Dialer(
        address=f"{host}:{port}",
        token=token,
        tls=tls,
        instance_id=instance_id,
        version="test",
        ports=Ports(echo),
        backoff=Backoff(lambda: 0.0, first_s=0.05, cap_s=0.1),
        budget=WindowBudget(),
        effective_generation=lambda: 0,
    )


@asynccontextmanager
async def running(node: Dialer) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(node.run())
    try:
        yield task
    finally:
        await node.drain(1.0)
        with suppress(asyncio.CancelledError, TokenRefused):
            await asyncio.wait_for(task, 5)
