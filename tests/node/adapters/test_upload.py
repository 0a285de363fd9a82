from __future__ import annotations

import asyncio
import socket

import pytest

from iop_node.adapters.upload import _is_live


@pytest.mark.req("POOL-13")
async def test_a_connection_whose_end_the_loop_has_not_yet_seen_is_not_live():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *listener.getsockname()
        )
        peer, _ = listener.accept()
        assert _is_live(transport, probe=True)
        peer.close()
        # Nothing was awaited since, so the transport itself believes that all is well.
        assert not transport.is_closing()
        assert not _is_live(transport, probe=True)
        transport.abort()


async def test_a_connection_that_we_closed_is_not_live():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *listener.getsockname()
        )
        transport.close()
        assert not _is_live(transport, probe=False)
    assert not _is_live(None, probe=False)
