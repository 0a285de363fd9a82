"""Callers that take their answer slowly, and those that take none of it.

The clocks are let run out by hand, so that no test depends on how fast it runs.
"""

import asyncio
import socket

import pytest

from iop_edge.serve.http.connection import Connection
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.untaken import untaken_bytes
from tests.edge.serve.rig import Rig, post

SIZE = 12_000_000
"""More than the buffers of two sockets take."""


async def large(request: Request) -> None:
    await request.respond(200, b"x" * SIZE)


async def stalled(rig: Rig, request: bytes) -> tuple[Connection, socket.socket]:
    """A connection that waits for its caller, and the caller, which has taken nothing yet."""
    listener = await rig.listen(large)
    loop = asyncio.get_running_loop()
    host, _, port = listener.address.rpartition(":")
    caller = socket.socket()
    caller.setblocking(False)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    await loop.sock_connect(caller, (host, int(port)))
    await loop.sock_sendall(caller, request)
    async with asyncio.timeout(10):
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections
        while not connection.is_write_paused:
            await asyncio.sleep(0)
    return connection, caller


async def take(caller: socket.socket, least: int) -> int:
    taken = 0
    async with asyncio.timeout(10):
        while taken < least:
            chunk = await asyncio.get_running_loop().sock_recv(caller, 65_536)
            if not chunk:
                break
            taken += len(chunk)
    return taken


@pytest.mark.req("NODE-8")
@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
async def test_a_caller_that_goes_on_taking_bytes_gets_all_of_a_large_answer(
    rig: Rig, extra: bytes
) -> None:
    connection, caller = await stalled(rig, post(extra=extra))
    with caller:
        taken = 0
        for _ in range(8):
            before = untaken_bytes(connection._transport)
            async with asyncio.timeout(10):
                while untaken_bytes(connection._transport) == before:
                    taken += await take(caller, 1)
            connection._on_write_stall()
            connection._on_deadline()
            assert not connection._transport.is_closing()
        taken += await take(caller, SIZE - taken)
    assert taken >= SIZE


@pytest.mark.req("NODE-8")
async def test_bytes_that_only_the_system_holds_are_not_taken_for_a_stall(rig: Rig) -> None:
    connection, caller = await stalled(rig, post())
    with caller:
        in_transport, in_system = untaken_bytes(connection._transport)
        assert in_transport > 0
        assert in_system > 0
        async with asyncio.timeout(10):
            while untaken_bytes(connection._transport)[1] == in_system:
                await take(caller, 1)


@pytest.mark.req("NODE-8")
async def test_a_caller_that_has_taken_nothing_since_the_last_look_is_cut(rig: Rig) -> None:
    connection, caller = await stalled(rig, post())
    with caller:
        async with asyncio.timeout(10):
            while not connection._transport.is_closing():
                connection._on_write_stall()
                await asyncio.sleep(0)
