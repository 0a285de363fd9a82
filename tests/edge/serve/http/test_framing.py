"""Where a body ends, what stands beside it, and callers who know no chunks."""

import asyncio

import pytest

from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import Rig, echo, post

CHUNKED = b"POST /v1/echo HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n"


async def tell_headers(request: Request) -> None:
    await request.body()
    await request.respond(200, repr(sorted(request.headers)).encode())


@pytest.mark.req("OAI-3")
async def test_a_trailer_adds_nothing_to_the_head_and_overrules_nothing_in_it(rig: Rig) -> None:
    await rig.listen(tell_headers)
    client = await rig.connect()
    answer = await client.ask(
        CHUNKED
        + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        + b"authorization: Bearer other\r\nx-request-id: other\r\n\r\n"
    )
    assert answer.headers["x-request-id"] == "mine"
    assert answer.body == b"[b'host', b'transfer-encoding', b'x-request-id']"


async def test_white_space_after_a_value_is_no_part_of_it(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    answer = await client.ask(post(extra=b"x-request-id: mine \t\r\n"))
    assert answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("before", "piece"),
    [(b"0\r\n", b"a: b\r\n" * 16), (b"0\r\na: ", b"a" * 100), (b"2;a=", b"a" * 100)],
    ids=["many trailers", "one trailer", "an extension"],
)
async def test_what_stands_in_a_body_without_being_of_it_is_bounded_like_the_head(
    rig: Rig, before: bytes, piece: bytes
) -> None:
    await rig.listen(tell_headers, max_header_bytes=1000)
    client = await rig.connect()
    client.send(CHUNKED + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n" + before)
    for _ in range(40):
        client.send(piece)
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer()).status == 431


@pytest.mark.req("OAI-5")
async def test_a_caller_that_goes_on_sending_an_undeclared_body_can_still_read_its_413(
    rig: Rig,
) -> None:
    await rig.listen(tell_headers, max_body_bytes=1000)
    client = await rig.connect()
    client.send(CHUNKED + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(200):
        client.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        await client.writer.drain()
        await asyncio.sleep(0)
    answer = await client.answer()
    assert (answer.status, answer.error()["code"]) == (413, "request_too_large")


async def test_a_body_in_many_small_chunks_is_no_head(rig: Rig) -> None:
    await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    client.send(CHUNKED + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(300):
        for part in (b"00000001;n=v\r", b"\nx\r\n"):
            client.send(part)
            await client.writer.drain()
            await asyncio.sleep(0)
    client.send(b"0\r\n\r\n")
    assert (await client.answer()).body == b"x" * 300


@pytest.mark.parametrize("upgrade", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_a_caller_of_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection(
    rig: Rig, upgrade: bytes
) -> None:
    async def stream(request: Request) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream")])
        await request.write(b"data: 1\n\n")
        await request.finish(b"data: 2\n\n")

    await rig.listen(stream)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.0\r\ncontent-type: application/json\r\n" + upgrade)
    client.send(b"content-length: 0\r\n\r\n")
    head, _, body = (await client.closed()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"data: 1\n\ndata: 2\n\n"


async def test_a_caller_of_http_1_0_gets_a_whole_answer_with_its_length(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}")
    answer = await client.answer()
    assert (answer.status, answer.body, await client.closed()) == (200, b"{}", b"")


LARGE = b"x" * 100_000
"""More than is held before reading pauses; it arrives at once where much has come before it."""


@pytest.mark.req("NODE-7", "POOL-6")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (post(LARGE * 20)[: -len(LARGE)], LARGE),
        (post(), post(b"next")),
        (post(), post(b"next") * 3),
    ],
    ids=["a large end of its body", "one request more", "three requests more"],
)
async def test_a_caller_that_leaves_is_noticed_whatever_it_sent_last(
    rig: Rig, first: bytes, then: bytes
) -> None:
    has_begun, has_body, has_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        has_begun.set()
        await request.body()
        has_body.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_left.set()

    await rig.listen(wait)
    client = await rig.connect()
    client.send(first)
    async with asyncio.timeout(10):
        await has_begun.wait()
        client.send(then)
        await client.writer.drain()
        await has_body.wait()
        client.close()
        await has_left.wait()


async def test_a_caller_that_pipelines_without_end_is_read_no_further(rig: Rig) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        body = await request.body()
        has_begun.set()
        await may_end.wait()
        await request.respond(200, body)

    listener = await rig.listen(wait)
    client = await rig.connect()
    client.send(post(b"0"))
    async with asyncio.timeout(10):
        await has_begun.wait()
        (connection,) = listener.connections
        for number in range(1, 20):
            client.send(post(b"%d" % number))
            await client.writer.drain()
            await asyncio.sleep(0)
        while not connection.is_read_paused:
            await asyncio.sleep(0)
        may_end.set()
        assert [(await client.answer()).body for _ in range(20)] == [b"%d" % n for n in range(20)]
