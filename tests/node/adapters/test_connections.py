from __future__ import annotations

import asyncio
import socket

import pytest

from iop_node.adapters.connections import is_readable


@pytest.mark.req("POOL-13")
async def test_an_end_that_the_loop_has_not_yet_seen_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *listener.getsockname()
        )
        peer, _ = listener.accept()
        assert not is_readable(transport)
        peer.close()
        # Nothing was awaited since, so the transport itself believes that all is well.
        assert not transport.is_closing()
        assert is_readable(transport)
        transport.abort()


async def test_nothing_can_be_read_where_nothing_is():
    assert not is_readable(None)
