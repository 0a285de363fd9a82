"""Every asynchronous test here runs on both loops; with `errors` it leaves none to its loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme
import uvloop

from .rig import Served, Tls, serving


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Edge and node run on uvloop; whoever embeds them may run on another loop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def errors() -> AsyncIterator[list[dict[str, Any]]]:
    """What the loop was left with: callbacks, timers, protocols and tasks that raised. A test that
    waits for what does not come is cancelled."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()

    def tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # gRPC's own library tells a loop of what it had still to say to an earlier one.
        if "PollerCompletionQueue" not in context["message"]:
            told.append(context)

    loop.set_exception_handler(tell)
    timer = loop.call_later(20, lambda: [task.cancel() for task in asyncio.all_tasks()])
    yield told
    timer.cancel()
    assert told == []


@pytest.fixture(scope="session")
def tls() -> Tls:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.set_alpn_protocols(["h2"])
    issued = authority.issue_cert("localhost")
    issued.configure_cert(server)
    client = ssl.create_default_context()
    client.set_alpn_protocols(["h2"])
    authority.configure_trust(client)
    return Tls(server, client, authority.cert_pem.bytes(), issued)


@pytest.fixture(params=["plaintext", "tls"])
async def served(request: pytest.FixtureRequest, tls: Tls) -> AsyncIterator[Served]:
    async with serving(tls=tls if request.param == "tls" else None) as up:
        yield up


@pytest.fixture
async def plain() -> AsyncIterator[Served]:
    async with serving() as up:
        yield up
