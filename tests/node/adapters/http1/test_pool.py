from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from iop_node.adapters.http1 import pool as pooling
from iop_node.adapters.http1.connection import Connection
from iop_node.adapters.http1.endpoint import Endpoint, Origin
from iop_shared.errors import Code, Fault


async def answered(client, endpoint, **request):
    async with client.exchange(b"POST", endpoint, **request) as answer:
        body = b""
        while piece := await answer.read():
            body += piece
    return body


def forever(*parts):
    """Answers every request of a connection with these bytes."""

    async def script(conn):
        while True:
            await conn.request()
            for part in parts:
                await conn.send(part)

    return script


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


async def test_a_connection_is_used_again(upstream, client_of):
    async with upstream(forever(PLAIN)).running() as server:
        client, endpoint = client_of(server.url)
        for _ in range(5):
            assert await answered(client, endpoint) == b"ok"
        assert server.connections == 1
        assert repr(client._pool) == "ConnectionPool(1 open, 1 idle)"


async def test_a_connection_after_a_chunked_answer_rests_and_is_then_used_again(
    upstream, client_of, monkeypatch
):
    monkeypatch.setattr(pooling, "SETTLE_S", 0.05)
    async with upstream(forever(CHUNKED)).running() as server:
        client, endpoint = client_of(server.url)
        await answered(client, endpoint)
        await answered(client, endpoint)
        assert server.connections == 2
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.06):
                await asyncio.Event().wait()
        await asyncio.gather(answered(client, endpoint), answered(client, endpoint))
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), id="close"),
        pytest.param(PLAIN.replace(b"1.1", b"1.0"), id="1.0"),
        pytest.param(PLAIN + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", id="surplus"),
        pytest.param(PLAIN + b"x", id="a byte too many"),
    ],
)
async def test_a_connection_is_used_once_where_nothing_else_is_safe(upstream, client_of, answer):
    async def script(conn):
        await conn.request()
        await conn.send(answer)
        await conn.peer_gone()

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url)
        for count in (1, 2):
            assert await answered(client, endpoint) == b"ok"
            assert server.connections == count


async def test_an_idle_connection_that_says_something_is_never_believed(upstream, client_of):
    """What nobody asked for would be taken for the answer to whoever asks next."""
    gone = asyncio.Event()

    async def poisoned(conn):
        await conn.request()
        await conn.send(PLAIN)
        await first_is_read.wait()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await conn.peer_gone()
        gone.set()

    first_is_read = asyncio.Event()
    async with upstream(poisoned, forever(PLAIN)).running() as server:
        client, endpoint = client_of(server.url)
        assert await answered(client, endpoint) == b"ok"
        first_is_read.set()
        await gone.wait()
        assert await answered(client, endpoint) == b"ok"
        assert server.connections == 2


async def test_an_answer_that_comes_before_the_request_was_sent_takes_its_connection_with_it(
    upstream, client_of
):
    gone = asyncio.Event()

    async def early(conn):
        await conn.head()
        await conn.send(PLAIN)
        await conn.peer_gone()
        gone.set()

    async def endless():
        yield b"x"
        await asyncio.Event().wait()

    async with upstream(early, forever(PLAIN)).running() as server:
        client, endpoint = client_of(server.url)
        assert await answered(client, endpoint, body=endless()) == b"ok"
        await gone.wait()
        assert await answered(client, endpoint) == b"ok"
        assert server.connections == 2


async def test_an_idle_connection_is_closed_after_a_time(upstream, client_of, monkeypatch):
    monkeypatch.setattr(pooling, "KEEPALIVE_S", 0.02)
    monkeypatch.setattr(pooling, "SWEEP_S", 0.01)
    closed = []
    both_closed = asyncio.Event()

    async def script(conn):
        received = await conn.request()
        await conn.send(CHUNKED if received.header("x-chunked") else PLAIN)
        await conn.peer_gone()
        closed.append(conn)
        if len(closed) == 2:
            both_closed.set()

    async with upstream(script).running() as server:
        client, endpoint = client_of(server.url)
        await asyncio.gather(
            answered(client, endpoint), answered(client, endpoint, headers=[("x-chunked", "1")])
        )
        await both_closed.wait()
    assert repr(client._pool) == "ConnectionPool(0 open, 0 idle)"


async def test_connections_to_different_places_are_not_mixed_up(upstream, client_of):
    async with (
        upstream(forever(PLAIN)).running() as one,
        upstream(forever(PLAIN.replace(b"ok", b"no"))).running() as other,
    ):
        client, endpoint = client_of(one.url)
        _, elsewhere = client_of(other.url)
        for _ in range(2):
            assert await answered(client, endpoint) == b"ok"
            assert await answered(client, elsewhere) == b"no"
        assert (one.connections, other.connections) == (1, 1)


class TestStopping:
    async def test_closes_what_is_idle_and_what_is_used(self, upstream, client_of):
        gone = asyncio.Semaphore(0)
        has_asked = asyncio.Event()

        async def answering(conn):
            await conn.request()
            await conn.send(PLAIN)
            await conn.peer_gone()
            gone.release()

        async def silent(conn):
            await conn.request()
            has_asked.set()
            await conn.peer_gone()
            gone.release()

        async with upstream(answering, answering, silent).running() as server:
            client, endpoint = client_of(server.url)
            await asyncio.gather(answered(client, endpoint), answered(client, endpoint))
            assert repr(client._pool) == "ConnectionPool(2 open, 2 idle)"
            held = client._pool.take(endpoint.origin), client._pool.take(endpoint.origin)
            task = asyncio.create_task(answered(client, endpoint))
            await has_asked.wait()
            client._pool.freed(held[0], after_chunked=False)
            assert repr(client._pool) == "ConnectionPool(3 open, 1 idle)"
            await client.stop()
            assert repr(client._pool) == "ConnectionPool(0 open, 0 idle)"
            with pytest.raises(Fault) as cut:
                await task
            assert cut.value.code is Code.UPSTREAM_CLOSED
            for _ in range(3):
                await gone.acquire()

    async def test_leaves_none_that_was_just_being_opened(self, upstream, pool):
        async def script(conn):
            await conn.peer_gone()

        async with upstream(script).running() as server:
            origin = Endpoint.of(server.url).origin
            task = asyncio.create_task(pool.connect(origin))
            await asyncio.sleep(0)
            await pool.stop()
            with pytest.raises(Fault) as closed:
                await task
            assert closed.value.code is Code.UPSTREAM_CLOSED
        assert repr(pool) == "ConnectionPool(0 open, 0 idle)"

    async def test_waits_for_none_whose_call_was_cancelled_as_it_opened(
        self, upstream, client_of, monkeypatch
    ):
        """A loop may close such a connection without telling it."""
        made = Connection.connection_made

        def cancelled_there(connection, transport):
            made(connection, transport)
            task.cancel()

        async def script(conn):
            await conn.peer_gone()

        async with upstream(script).running() as server:
            client, endpoint = client_of(server.url)
            monkeypatch.setattr(Connection, "connection_made", cancelled_there)
            task = asyncio.create_task(answered(client, endpoint))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert repr(client._pool) == "ConnectionPool(0 open, 0 idle)"
            async with asyncio.timeout(10):
                await client.stop()

    async def test_twice_is_no_error(self, pool):
        await pool.stop()
        await pool.stop()


@pytest.mark.req("POOL-13")
async def test_an_end_that_the_loop_has_not_yet_seen_is_seen(pool):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = Origin(False, *listener.getsockname())
        connection = await pool.connect(origin)
        peer, _ = listener.accept()
        pool.freed(connection, after_chunked=False)
        assert pool.take(origin) is connection
        pool.freed(connection, after_chunked=False)
        peer.close()
        # Nothing was awaited since, so the transport itself believes that all is well.
        assert connection.is_open
        assert pool.take(origin) is None
