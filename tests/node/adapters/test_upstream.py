"""One exchange with an upstream: what is sent, what is left behind, and when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.upload import WHOLE_BYTES
from iop_node.adapters.upstream import UpstreamClient
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_shared.errors import Code, Fault

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
async def client_of():
    async with contextlib.AsyncExitStack() as stack:

        def make(url, **spec):
            client = UpstreamClient(UpstreamSpec(base_url=url, **spec))
            stack.push_async_callback(client.stop)
            return client, Endpoint.of(f"{url}/v1")

        yield make


async def body_of(answer):
    body = b""
    while piece := await answer.read():
        body += piece
    return body


class TestARequest:
    @pytest.mark.parametrize(
        ("method", "body", "framing"),
        [
            (b"GET", b"", []),
            (b"HEAD", b"", []),
            (b"POST", b"", ["Content-Length"]),
            (b"POST", b"abc", ["Content-Length"]),
            (b"POST", b"x" * (WHOLE_BYTES * 3 + 1), ["Content-Length"]),
            (b"POST", "pieces", ["Transfer-Encoding"]),
            (b"POST", "no pieces", ["Transfer-Encoding"]),
        ],
    )
    async def test_says_in_exactly_one_way_where_its_body_ends(
        self, upstream, client_of, method, body, framing
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.send(OK)

        async def pieces():
            if body == "pieces":
                yield b"ab"
                yield b"c"

        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            is_whole = isinstance(body, bytes)
            hostile = [("Content-Length", "999"), ("transfer-encoding", "chunked"), ("Host", "e")]
            async with client.exchange(
                method, endpoint, headers=hostile, body=body if is_whole else pieces()
            ) as answer:
                assert answer.status == 200
        (received,) = seen
        names = [name for name, _ in received.headers]
        assert [n for n in names if n in ("Content-Length", "Transfer-Encoding")] == framing
        assert received.all("host") == [f"127.0.0.1:{server.port}"]
        assert received.body == (body if is_whole else b"abc" if body == "pieces" else b"")

    async def test_to_head_takes_no_body_and_waits_for_none(self, upstream, client_of):
        async def script(conn):
            await conn.request()
            await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            await conn.peer_gone()

        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            async with client.exchange(b"HEAD", endpoint) as answer:
                assert await body_of(answer) == b""

    async def test_goes_to_the_upstream_and_to_no_proxy_of_the_environment(
        self, upstream, client_of, monkeypatch
    ):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")

        async def script(conn):
            assert (await conn.request()).path == "/v1"
            await conn.send(OK)

        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            async with client.exchange(b"GET", endpoint) as answer:
                assert await body_of(answer) == b"ok"

    @pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
    async def test_is_over_with_a_status_that_has_no_body(self, upstream, client_of, status):
        async def script(conn):
            while True:
                await conn.request()
                await conn.send(f"HTTP/1.1 {status}\r\n\r\n".encode())

        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            for _ in range(2):
                with contextlib.suppress(Fault):
                    async with client.exchange(b"POST", endpoint, body=b"a") as answer:
                        assert (answer.status, await body_of(answer)) == (204, b"")
            assert server.connections == 1

    async def test_gets_past_an_interim_answer_that_comes_alone(self, upstream, client_of):
        async def script(conn):
            await conn.head()
            await conn.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            continued.set()
            await conn.reader.readuntil(b"0\r\n\r\n")
            await conn.send(OK)

        async def pieces():
            yield b"one"
            await continued.wait()
            yield b"two"

        continued = asyncio.Event()
        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            async with client.exchange(b"POST", endpoint, body=pieces()) as answer:
                assert (answer.status, await body_of(answer)) == (200, b"ok")


@pytest.mark.req("NODE-7")
@pytest.mark.parametrize("moment", ["uploading", "blocked", "before the head", "in the body"])
async def test_cancelling_closes_the_connection_whenever_it_comes(
    upstream, client_of, moment, open_sockets
):
    arrived, gone = asyncio.Event(), asyncio.Event()
    may_read = asyncio.Event()

    async def script(conn):
        await conn.head()
        if moment == "blocked":
            arrived.set()
            await may_read.wait()
        if moment == "in the body":
            await conn.chunked_head()
            await conn.chunk(b"abc")
        arrived.set()
        await conn.peer_gone()
        gone.set()

    async def pieces():
        yield b"x"
        if moment == "uploading":
            await asyncio.Event().wait()
        while moment == "blocked":
            yield b"x" * 65_536

    async def call(client, endpoint):
        async with client.exchange(b"POST", endpoint, body=pieces()) as answer:
            await body_of(answer)

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url)
        task = asyncio.create_task(call(client, endpoint))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # At once: the node's own end is closed before anything else is awaited for long.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert repr(client._pool) == "ConnectionPool(0 open, 0 idle)"
        may_read.set()
        await gone.wait()


@pytest.mark.req("NODE-7")
async def test_cancelling_while_connecting_leaves_nothing(client_of, full_backlog, open_sockets):
    client, endpoint = client_of(full_backlog)
    before = open_sockets()

    async def call():
        async with client.exchange(b"POST", endpoint):
            raise AssertionError("nobody answers there")

    task = asyncio.create_task(call())
    while open_sockets() == before:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while open_sockets() > before:
        await asyncio.sleep(0)


@pytest.mark.req("NODE-8")
async def test_a_caller_who_waits_too_long_is_told_by_the_total_clock(upstream, client_of):
    """It runs even while nobody waits for the upstream."""

    async def script(conn):
        await conn.request()
        await conn.chunked_head()
        await conn.chunk(b"abc")
        await conn.peer_gone()

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url, idle_timeout_s=0.001)
        with pytest.raises(Fault) as late:
            async with client.exchange(b"POST", endpoint, deadline_s=0.05) as answer:
                assert await answer.read() == b"abc"
                await asyncio.Event().wait()
    assert late.value.code is Code.UPSTREAM_TOTAL_TIMEOUT


async def test_what_came_before_a_cut_is_read_first(upstream, client_of):
    async def script(conn):
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url)
        with pytest.raises(Fault) as cut:
            async with client.exchange(b"POST", endpoint) as answer:
                while repr(client._pool) != "ConnectionPool(0 open, 0 idle)":
                    await asyncio.sleep(0)
                assert await answer.read() == b"abc"
                await answer.read()
    assert cut.value.code is Code.UPSTREAM_CLOSED


@pytest.mark.req("SEC-1")
async def test_what_is_raised_and_shown_names_no_secret_and_no_address(client_of):
    client, endpoint = client_of("http://127.0.0.1:9", headers=(("Authorization", "canary"),))
    with pytest.raises(Fault) as refused:
        async with client.exchange(b"POST", endpoint, body=b"canary"):
            pass
    shown = f"{refused.value!r} {client.spec!r} {client._pool!r}"
    assert "canary" not in shown
    assert "127.0.0.1" not in shown


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_ten_thousand_requests_leave_nothing_behind(upstream, client_of, open_sockets):
    """Of every kind: whole, streamed, cut, refused half-way, given up."""

    async def script(conn):
        while True:
            received = await conn.request()
            match received.header("x-kind"):
                case "whole":
                    await conn.send(OK)
                case "chunked" | "given up":
                    await conn.chunked_head()
                    await conn.chunk(b"ok")
                    await conn.send(b"0\r\n\r\n" if received.header("x-kind") == "chunked" else b"")
                case "cut":
                    await conn.send(OK[:-1])
                    return
                case "garbage":
                    await conn.send(b"garbage")
                    return

    kinds = ["whole"] * 16 + ["chunked", "cut", "garbage", "given up"]

    async def one(kind):
        with contextlib.suppress(Fault):
            async with client.exchange(
                b"POST", endpoint, headers=[("x-kind", kind)], body=b"{}"
            ) as answer:
                assert await answer.read() in (b"ok", b"o")
                if kind != "given up":
                    await body_of(answer)

    async def worker(count):
        for number in range(count):
            await one(kinds[number % len(kinds)])

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url)
        before = open_sockets()
        await asyncio.gather(*(worker(1000) for _ in range(10)))
        await client.stop()
        assert repr(client._pool).startswith("ConnectionPool(0 open")
        while server._running:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert open_sockets() <= before
        assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each).__name__ == "UpstreamAnswer"]
