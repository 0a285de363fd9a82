"""Upstreams behind TLS, with an authority of the test's own."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import trustme

from iop_shared.errors import Code, Fault


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_an_upstream_of_a_trusted_authority_is_spoken_to(
    upstream, adapter_on, call, make_sink, server_tls, client_tls
):
    async def script(conn):
        while True:
            await conn.request()
            await conn.answer(b"ok")

    async with upstream(script).running(server_tls) as server:
        adapter = await adapter_on(server.url, tls=client_tls)
        for _ in range(2):
            sink = make_sink()
            await adapter.tunnel(call(), sink)
            assert (sink.body, sink.starts) == (b"ok", 1)
        assert server.connections == 1


@pytest.mark.req("POOL-13")
async def test_an_upstream_of_an_unknown_authority_is_refused_before_anything_is_sent(
    upstream, adapter_on, call, sink, server_tls
):
    async def script(conn):
        await conn.request()

    async with upstream(script).running(server_tls) as server:
        adapter = await adapter_on(server.url)
        with pytest.raises(Fault) as refused:
            await adapter.tunnel(call(), sink)
    assert refused.value.code is Code.UPSTREAM_REFUSED
    assert sink.starts == 0


async def test_an_upstream_that_speaks_no_tls_is_refused(
    upstream, adapter_on, call, sink, client_tls
):
    async def script(conn):
        await conn.reader.read(1)
        await conn.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with upstream(script).running() as server:
        adapter = await adapter_on(server.url.replace("http:", "https:"), tls=client_tls)
        with pytest.raises(Fault) as refused:
            await adapter.tunnel(call(), sink)
    assert refused.value.code is Code.UPSTREAM_REFUSED
    assert sink.starts == 0


@pytest.mark.req("NODE-7")
@pytest.mark.parametrize("moment", ["before the head", "in the body"])
async def test_hanging_up_closes_the_connection(
    upstream, adapter_on, call, sink, server_tls, client_tls, moment
):
    gone = asyncio.Event()

    async def script(conn):
        await conn.request()
        if moment == "in the body":
            await conn.chunked_head()
            await conn.chunk(b"abc")
        await conn.peer_gone()
        gone.set()

    async with upstream(script).running(server_tls) as server:
        adapter = await adapter_on(server.url, tls=client_tls)
        task = asyncio.create_task(adapter.tunnel(call(), sink))
        await (sink.has_chunk if moment == "in the body" else sink.has_started).wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()


@pytest.mark.req("OAI-7")
async def test_a_body_that_is_cut_is_closed(
    upstream, adapter_on, call, sink, server_tls, client_tls
):
    async def script(conn):
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")

    async with upstream(script).running(server_tls) as server:
        adapter = await adapter_on(server.url, tls=client_tls)
        with pytest.raises(Fault) as cut:
            await adapter.tunnel(call(), sink)
    assert cut.value.code is Code.UPSTREAM_CLOSED
