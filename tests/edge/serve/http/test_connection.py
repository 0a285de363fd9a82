"""The limits of a connection, told to it in raw bytes."""

import asyncio

import pytest

from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import Rig, echo, post


async def test_a_connection_is_kept_for_the_next_request(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    for body in (b"one", b"two", b"three"):
        assert (await client.ask(post(body))).body == body


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    client.send(post(b"one") + post(b"two") + post(b"three"))
    assert [(await client.answer()).body for _ in range(3)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_a_request_may_arrive_in_pieces_of_any_size(rig: Rig, size: int) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    whole = post(b"x" * 300)
    for start in range(0, len(whole), size):
        client.send(whole[start : start + size])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"x" * 300


async def test_one_header_over_the_bound_is_431_and_ends_the_connection(rig: Rig) -> None:
    await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    answer = await client.ask(post(extra=b"x-long: " + b"a" * 1000 + b"\r\n"))
    assert (answer.status, answer.error()["code"]) == (431, "headers_too_large")
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["connection"] == "close"
    assert await client.closed() == b""


async def test_a_header_that_never_ends_is_431_before_it_is_held(rig: Rig) -> None:
    await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.1\r\nx-long: ")
    for _ in range(40):
        client.send(b"a" * 100)
        await client.writer.drain()
    assert (await client.answer()).status == 431


async def test_a_hundred_thousand_headers_are_431(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    answer = await client.ask(post(extra=b"a:b\r\n" * 100_000))
    assert answer.status == 431


async def test_a_path_over_the_bound_is_431(rig: Rig) -> None:
    await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    assert (await client.ask(post(path="/" + "a" * 1000))).status == 431


async def test_a_large_body_does_not_count_as_the_head_of_the_next_request(rig: Rig) -> None:
    await rig.listen(echo, max_header_bytes=1000)
    client = await rig.connect()
    second = post(b"second")
    client.send(post(b"x" * 50_000) + second[:60])
    assert (await client.answer()).body == b"x" * 50_000
    client.send(second[60:])
    assert (await client.answer()).body == b"second"


async def test_a_declared_body_over_the_bound_is_413_before_a_byte_of_it(rig: Rig) -> None:
    await rig.listen(echo, max_body_bytes=100)
    client = await rig.connect()
    answer = await client.ask(
        b"POST /v1/echo HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\ncontent-length: 101\r\n\r\n"
    )
    assert (answer.status, answer.error()["code"]) == (413, "request_too_large")
    assert answer.headers["x-request-id"] == "mine"
    assert await client.closed() == b""


async def test_a_caller_that_is_still_sending_can_read_its_413(rig: Rig) -> None:
    await rig.listen(echo, max_body_bytes=1000)
    client = await rig.connect()
    client.send(post(b"x" * 5_000_000))
    assert (await client.answer()).status == 413


async def test_a_chunked_body_over_the_bound_is_413(rig: Rig) -> None:
    await rig.listen(echo, max_body_bytes=100)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        client.send(b"32\r\n" + b"x" * 50 + b"\r\n")
    assert (await client.answer()).status == 413


async def test_a_body_at_the_bound_is_taken(rig: Rig) -> None:
    await rig.listen(echo, max_body_bytes=100)
    client = await rig.connect()
    assert (await client.ask(post(b"x" * 100))).status == 200
    client.send(b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    client.send(b"64\r\n" + b"y" * 100 + b"\r\n0\r\n\r\n")
    assert (await client.answer()).body == b"y" * 100


async def test_the_anthropic_paths_are_refused_in_their_own_shape(rig: Rig) -> None:
    await rig.listen(echo, max_body_bytes=10)
    client = await rig.connect()
    answer = await client.ask(post(b"x" * 11, path="/v1/messages"))
    assert b'"type":"error"' in answer.body
    assert answer.error()["type"] == "request_too_large"


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("rest", "status", "error_type"),
    [
        (b"x-long: " + b"a" * 1000 + b"\r\n\r\n", 431, "request_too_large"),
        (b"x-long: " + b"a" * 1000, 431, "request_too_large"),
        (b"host:", 408, "timeout_error"),
        (b"content-length: 3\r\ncontent-length: 4\r\n\r\n", 400, "invalid_request_error"),
    ],
)
async def test_a_head_that_is_refused_halfway_is_answered_as_the_callers_client_expects(
    rig: Rig, rest: bytes, status: int, error_type: str
) -> None:
    await rig.listen(echo, max_header_bytes=500, receive_timeout_ms=50)
    client = await rig.connect()
    answer = await client.ask(b"POST /v1/messages?beta=true HTTP/1.1\r\n" + rest)
    assert answer.status == status
    assert b'"type":"error"' in answer.body
    assert answer.error()["type"] == error_type
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_head_that_stalls_is_408(rig: Rig) -> None:
    await rig.listen(echo, receive_timeout_ms=50)
    client = await rig.connect()
    answer = await client.ask(b"POST /v1/echo HTTP/1.1\r\nhost:")
    assert (answer.status, answer.error()["code"]) == (408, "request_timeout")
    assert await client.closed() == b""


async def test_a_body_that_drips_is_408_whatever_it_drips(rig: Rig) -> None:
    handled = asyncio.Event()

    async def reading(request: Request) -> None:
        try:
            await request.body()
        finally:
            handled.set()

    await rig.listen(reading, receive_timeout_ms=200)
    client = await rig.connect()
    client.send(post(b"x" * 100)[:-99])

    async def drip() -> None:
        while True:
            client.send(b"x")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    answer = await client.answer()
    dripping.cancel()
    assert answer.status == 408
    assert handled.is_set()


async def test_a_connection_that_says_nothing_is_closed(rig: Rig) -> None:
    await rig.listen(echo, receive_timeout_ms=50)
    client = await rig.connect()
    assert await client.closed() == b""


async def test_the_receipt_deadline_does_not_bound_the_answer(rig: Rig) -> None:
    async def slow(request: Request) -> None:
        await request.body()
        await asyncio.sleep(0.2)
        await request.respond(200, b"late")

    await rig.listen(slow, receive_timeout_ms=50)
    client = await rig.connect()
    client.send(post()[:-1])
    await client.writer.drain()
    client.send(post()[-1:])
    assert (await client.answer()).body == b"late"


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        b"content-length: 2\r\ncontent-length: 3\r\n",
        b"content-length: -1\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"x y: z\r\n",
        b"x: a\x00b\r\n",
        b"x: a\r\n folded\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"host: y\r\n",
        b"transfer-encoding: chunked\n\r\n",
    ],
)
async def test_an_ambiguous_or_broken_head_is_400(rig: Rig, head: bytes) -> None:
    reached: list[Request] = []

    async def never(request: Request) -> None:
        reached.append(request)
        await request.respond(200, b"")

    await rig.listen(never)
    client = await rig.connect()
    answer = await client.ask(b"POST /v1/echo HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n{}")
    assert (answer.status, answer.error()["type"]) == (400, "invalid_request_error")
    assert await client.closed() == b""
    assert reached == []


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"hello\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_once_and_closed(rig: Rig, junk: bytes) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    client.send(junk)
    assert (await client.closed()).startswith(b"HTTP/1.1 400 ")


async def test_an_upgrade_is_not_taken_and_the_request_is_served(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    answer = await client.ask(post(b"hi", extra=b"connection: upgrade\r\nupgrade: h2c\r\n"))
    assert (answer.status, answer.body) == (200, b"hi")
    assert (await client.ask(post(b"next"))).body == b"next"
    assert (await client.ask(b"CONNECT a:443 HTTP/1.1\r\n\r\n")).status == 400


async def test_a_connection_over_the_bound_is_told_to_come_back(rig: Rig) -> None:
    await rig.listen(echo, max_connections=1)
    first, second = await rig.connect(), None
    await first.ask(post())
    second = await rig.connect()
    answer = await second.answer()
    assert (answer.status, answer.error()["code"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    assert await second.closed() == b""
    assert (await first.ask(post(b"still"))).body == b"still"


@pytest.mark.req("NODE-8")
async def test_a_caller_that_takes_no_byte_is_cut(rig: Rig) -> None:
    cancelled = asyncio.Event()

    async def pour(request: Request) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream")])
        try:
            while True:
                await request.write(b"x" * 65_536)
        finally:
            cancelled.set()

    await rig.listen(pour, write_timeout_ms=50)
    client = await rig.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport too
    client.send(post())
    async with asyncio.timeout(10):
        await cancelled.wait()


@pytest.mark.req("NODE-8")
async def test_a_whole_answer_that_is_not_taken_does_not_hold_its_connection(rig: Rig) -> None:
    has_begun = asyncio.Event()

    async def large(request: Request) -> None:
        has_begun.set()
        await request.respond(200, b"x" * 30_000_000)

    listener = await rig.listen(large, write_timeout_ms=50)
    client = await rig.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport too
    client.send(post(extra=b"connection: close\r\n"))
    async with asyncio.timeout(10):
        await has_begun.wait()
        await listener.stop(grace_s=60)


async def test_a_handler_that_fails_halfway_does_not_look_whole(rig: Rig) -> None:
    async def half(request: Request) -> None:
        await request.start(200, [])
        await request.write(b"half")
        raise RuntimeError("the text of a caller")

    await rig.listen(half)
    client = await rig.connect()
    client.send(post())
    assert not (await client.closed()).endswith(b"0\r\n\r\n")


async def test_the_head_method_has_no_body_and_100_continue_is_answered(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    whole = post(b"hello", extra=b"expect: 100-continue\r\n")
    client.send(whole[:-5])
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"hello")
    assert (await client.answer()).body == b"hello"


async def test_a_body_that_nobody_reads_does_not_harm_the_next_request(rig: Rig) -> None:
    async def refuse_large(request: Request) -> None:
        if int(request.headers[b"content-length"]) > 100:
            await request.respond(401, b"no")
        else:
            await request.respond(200, await request.body())

    await rig.listen(refuse_large)
    client = await rig.connect()
    assert (await client.ask(post(b"x" * 2_000_000))).status == 401
    assert (await client.ask(post(b"next"))).body == b"next"


async def test_a_caller_that_leaves_pipelined_requests_behind_is_forgotten(rig: Rig) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    listener = await rig.listen(endless)
    client = await rig.connect()
    client.send(post() + post())
    await started.wait()
    client.writer.transport.abort()
    await listener.stop(grace_s=0)
    assert cancelled.is_set()


@pytest.mark.parametrize(
    "encoding", [b"content-length: 500\r\n", b"transfer-encoding: chunked\r\n"]
)
async def test_a_request_that_was_answered_early_is_not_answered_twice(
    rig: Rig, encoding: bytes
) -> None:
    async def unread(request: Request) -> None:
        await request.respond(401, b"no")

    await rig.listen(unread, receive_timeout_ms=50)
    client = await rig.connect()
    head = b"POST /v1/echo HTTP/1.1\r\nhost: x\r\n" + encoding
    assert (await client.ask(head + b"\r\n")).status == 401
    assert await client.closed() == b""


async def test_a_stop_closes_what_was_answered_before_all_of_it_had_come(rig: Rig) -> None:
    async def unread(request: Request) -> None:
        await request.respond(401, b"no")

    listener = await rig.listen(unread)
    client = await rig.connect()
    whole = post(b"x" * 10)
    assert (await client.ask(whole[:-5])).status == 401
    stopping = asyncio.create_task(listener.stop(grace_s=60))
    client.send(whole[-5:])
    async with asyncio.timeout(5):
        await stopping


async def test_a_stop_lets_a_request_arrive_whole_and_then_closes(rig: Rig) -> None:
    reading = asyncio.Event()

    async def read(request: Request) -> None:
        reading.set()
        await request.respond(200, await request.body())

    listener = await rig.listen(read)
    client = await rig.connect()
    whole = post(b"x" * 10)
    client.send(whole[:-5])
    await reading.wait()
    stopping = asyncio.create_task(listener.stop(grace_s=60))
    await asyncio.sleep(0)
    client.send(whole[-5:])
    assert (await client.answer()).body == b"x" * 10
    async with asyncio.timeout(5):
        await stopping


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    "coding",
    [
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
    ],
)
async def test_a_coding_that_is_not_spoken_is_501(rig: Rig, coding: bytes) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    answer = await client.ask(
        b"POST /v1/echo HTTP/1.1\r\nhost: x\r\n" + coding + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    assert (answer.status, answer.error()["code"]) == (501, "invalid_value")
    assert await client.closed() == b""


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/echo HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/echo HTTP/2.0\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/echo HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/\xff HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["no host", "HTTP/2", "chunks of HTTP/1.0", "a path that is no text"],
)
async def test_a_head_that_is_none_of_http_1_1_is_400(rig: Rig, head: bytes) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    assert (await client.ask(head)).status == 400
    assert await client.closed() == b""


async def test_a_target_may_be_a_whole_url(rig: Rig) -> None:
    async def tell(request: Request) -> None:
        await request.respond(200, f"{request.path}?{request.query}".encode())

    await rig.listen(tell)
    client = await rig.connect()
    answer = await client.ask(b"POST http://x/v1/%65cho?a=1&b HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.body == b"/v1/echo?a=1&b"


async def test_nothing_is_served_behind_the_request_that_was_to_be_the_last(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    client.send(post(b"last", extra=b"connection: close\r\n") + post(b"more"))
    answer = await client.answer()
    assert (answer.body, answer.headers["connection"]) == (b"last", "close")
    assert await client.closed() == b""


async def test_garbage_behind_a_request_is_refused_after_that_has_been_answered(rig: Rig) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        has_begun.set()
        await may_end.wait()
        await request.respond(200, await request.body())

    await rig.listen(wait)
    client = await rig.connect()
    client.send(post(b"whole") + b"garbage\r\n\r\n")
    async with asyncio.timeout(10):
        await has_begun.wait()
    may_end.set()
    assert (await client.answer()).body == b"whole"
    assert (await client.answer()).status == 400
    assert await client.closed() == b""


async def test_a_refusal_of_a_pipelined_body_leaves_those_before_it_alone(rig: Rig) -> None:
    handled: list[bytes] = []
    may_end = asyncio.Event()

    async def wait(request: Request) -> None:
        await may_end.wait()
        handled.append(await request.body())
        await request.respond(200, handled[-1])

    await rig.listen(wait, max_body_bytes=100)
    client = await rig.connect()
    chunked = b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(post(b"whole") + chunked + b"65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n")
    await client.writer.drain()
    may_end.set()
    assert (await client.answer()).body == b"whole"
    assert (await client.answer()).status == 413
    assert handled == [b"whole"]


async def test_a_caller_that_still_sends_can_read_an_early_answer_that_is_the_last(
    rig: Rig,
) -> None:
    async def unread(request: Request) -> None:
        await request.respond(401, b"no")

    await rig.listen(unread)
    client = await rig.connect()
    client.send(post(b"x" * 5_000_000, extra=b"connection: close\r\n"))
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (401, "close")


async def test_a_handler_that_answers_nothing_is_500(rig: Rig) -> None:
    async def nothing(request: Request) -> None:
        pass

    await rig.listen(nothing)
    client = await rig.connect()
    answer = await client.ask(post())
    assert (answer.status, answer.error()["code"]) == (500, "internal")
    assert await client.closed() == b""
