"""Callers who read slowly or not at all, with real sockets all the way to the upstream."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

import pytest
from e2e_harness import CALLER_TOKEN, Edge, Upstream, chat, prompt, site_config, start_nodes, write

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e

TOKENS = 60_000  # some megabytes: more than every buffer on the way holds


def _unread_call(edge: Edge, body: dict[str, object]) -> socket.socket:
    """A request on a connection from which nobody reads, with the least of a buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", edge.site.ports.openai))
    content = json.dumps(body).encode()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (CALLER_TOKEN.encode(), len(content), content)
    )
    return connection


@pytest.mark.req("NODE-8", "NODE-7", "POOL-6")
async def test_a_caller_that_takes_nothing_is_cut_and_its_upstream_let_go(
    own_site: Edge, upstream: Upstream, small_upstream_url: str
) -> None:
    config = site_config(own_site.site, small_upstream_url)
    config["openai"]["limits"] = {"write_timeout_ms": 1000}
    write(own_site.site, config)
    await asyncio.to_thread(own_site.site.start_edge)
    await asyncio.to_thread(start_nodes, own_site.site, "a")
    await upstream.plan("unread", tokens=TOKENS)
    body = chat("one", prompt("unread"), stream=True)
    with _unread_call(own_site, body) as connection:
        await upstream.seen("unread", "opened")
        # The only slot of this model is held by somebody who takes nothing; it comes free.
        async with own_site.call(chat("one", prompt("after-unread"))) as call:
            assert b"200 OK" in await call.rest()
        await upstream.seen("unread", "closed")
        connection.settimeout(10)
        received = b""
        with suppress(ConnectionResetError):
            while piece := await asyncio.to_thread(connection.recv, 65536):
                received += piece
    # Neither the answer's end nor the body's: nobody can take it for a whole one.
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    words = words_for(prompt("unread"), TOKENS)
    assert words[0].encode() in received
    await own_site.until_idle()
