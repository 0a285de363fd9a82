"""A pool, and endpoints of scripted upstreams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.http1.pool import ConnectionPool
from iop_node.adapters.upstream import UpstreamClient
from iop_node.adapters.upstream_spec import UpstreamSpec


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(tls=None, allow_link_local=False)
    yield made
    await made.stop()


@pytest.fixture
async def client_of() -> AsyncIterator[Callable[..., tuple[UpstreamClient, Endpoint]]]:
    """Makes a client for a base URL, and the endpoint of it."""
    async with contextlib.AsyncExitStack() as stack:

        def make(url: str, **spec: object) -> tuple[UpstreamClient, Endpoint]:
            client = UpstreamClient(UpstreamSpec(base_url=url, **spec))
            stack.push_async_callback(client.stop)
            return client, Endpoint.of(f"{url}/v1")

        yield make
