from __future__ import annotations

import asyncio

from iop_node.adapters.base import Responder
from iop_node.runtime.router import Attempt

from .conftest import Pair


async def test_a_run_counts_for_its_node_as_soon_as_it_is_opened(pair: Pair) -> None:
    go_on = asyncio.Event()

    async def held(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await go_on.wait()

    _, _, ports = await pair.join(held)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
        attempt = pair.open()
        assert pair.hub.views()[0].active_runs == 1
        await attempt.head()
        assert pair.hub.views()[0].active_runs == 1
        go_on.set()
        assert await attempt.next_chunk() is None
    assert pair.hub.views()[0].active_runs == 0
