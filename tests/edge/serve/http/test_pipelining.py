"""Requests that come before those in front of them were answered."""

import asyncio

import pytest

from iop_edge.serve.http.connection import MAX_PIPELINED_AT_ONCE
from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import Rig, echo, post

UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"


@pytest.mark.req("OAI-5")
async def test_a_head_that_begins_behind_other_requests_is_counted_without_them(rig: Rig) -> None:
    listener = await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    whole = post(b"x" * 2000) + post(b"second")
    async with asyncio.timeout(10):
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections
        connection.data_received(whole[:-20])  # in one piece, which a socket does not promise
        assert (await client.answer()).body == b"x" * 2000
        client.send(whole[-20:])
        assert (await client.answer()).body == b"second"


@pytest.mark.req("OAI-5")
async def test_a_head_that_begins_behind_another_request_is_bounded_all_the_same(rig: Rig) -> None:
    listener = await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    whole = post() + post(extra=b"x-long: " + b"a" * 2000 + b"\r\n")
    async with asyncio.timeout(10):
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections
        connection.data_received(whole[:-10])
        client.send(whole[-10:])
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 431


@pytest.mark.parametrize("extra", [b"", UPGRADE], ids=["plain", "with upgrades"])
async def test_more_requests_at_once_than_are_held_are_left_to_another_connection(
    rig: Rig, extra: bytes
) -> None:
    handled = 0

    async def count(request: Request) -> None:
        nonlocal handled
        handled += 1
        await request.respond(200, b"")

    listener = await rig.listen(count)
    client = await rig.connect()
    async with asyncio.timeout(10):
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections
        connection.data_received(post(extra=extra) * 3000)
        answers = [await client.answer() for _ in range(MAX_PIPELINED_AT_ONCE)]
    assert {answer.status for answer in answers} == {200}
    assert ["connection" in answer.headers for answer in answers] == [
        *[False] * (MAX_PIPELINED_AT_ONCE - 1),
        True,
    ]
    assert await client.closed() == b""
    assert handled == MAX_PIPELINED_AT_ONCE


async def test_a_caller_that_sends_more_than_its_last_request_can_read_the_answer(
    rig: Rig,
) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    client.send(post(b"last", extra=b"connection: close\r\n") + post(b"x" * 1000) * 5000)
    assert (await client.answer()).body == b"last"
    assert await client.closed() == b""


async def test_pipelined_upgrades_are_all_served(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    bodies = [b"%d" % number for number in range(50)]
    client.send(b"".join(post(body, extra=UPGRADE) for body in bodies))
    assert [(await client.answer()).body for _ in bodies] == bodies


async def test_a_request_that_is_left_unanswered_is_refused_under_its_own_name(rig: Rig) -> None:
    may_end = asyncio.Event()

    async def nothing(request: Request) -> None:
        await may_end.wait()

    listener = await rig.listen(nothing)
    client = await rig.connect()
    client.send(post(extra=b"x-request-id: first\r\n"))
    client.send(post(path="/v1/messages", extra=b"x-request-id: second\r\n"))
    async with asyncio.timeout(10):
        while not listener.connections:
            await asyncio.sleep(0)
        while len(next(iter(listener.connections))._requests) < 2:
            await asyncio.sleep(0)
    may_end.set()
    answer = await client.answer()
    assert (answer.status, answer.headers["x-request-id"]) == (500, "first")
    assert b'"type":"error"' not in answer.body
