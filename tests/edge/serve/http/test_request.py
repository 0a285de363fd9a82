"""How an answer is framed, told by the very writes that a connection is asked for."""

from __future__ import annotations

import asyncio

import pytest

from iop_edge.serve.http.head import response_head
from iop_edge.serve.http.request import MAX_WRITE_BYTES, CallerGoneError, Request


class Caller:
    """A connection that keeps its writes apart."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.answers: list[Request] = []
        self.is_write_paused = False
        self.resumed = asyncio.Event()

    async def writable(self) -> None:
        await self.resumed.wait()

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def keeps_open_after(self, request: Request) -> bool:
        return request.keeps_open

    def want_body(self) -> None:
        pass

    def answered(self, request: Request) -> None:
        self.answers.append(request)


def asked(caller: Caller, method: str = "POST", *, is_http_1_0: bool = False) -> Request:
    pairs = [(b"x-request-id", b"mine")]
    return Request(caller, method=method, path="/", pairs=pairs, is_http_1_0=is_http_1_0)


EVENTS = [(b"content-type", b"text/event-stream")]


async def test_a_whole_answer_is_one_write() -> None:
    caller = Caller()
    request = asked(caller)
    await request.respond(200, b"hello")
    (written,) = caller.writes
    assert written == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n"
        b"x-request-id: mine\r\n\r\nhello"
    )
    assert caller.answers == [request]
    assert request.is_answered


async def test_the_head_of_a_stream_goes_out_with_its_first_part() -> None:
    caller = Caller()
    request = asked(caller)
    await request.start(200, EVENTS)
    assert caller.writes == []
    assert request.has_started
    await request.write(b"one")
    await request.write(b"")
    await request.finish(b"two")
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\nx-request-id: mine\r\n\r\n"
    )
    assert caller.writes == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"]


async def test_a_stream_without_any_part_still_has_a_head_and_an_end() -> None:
    caller = Caller()
    request = asked(caller)
    await request.start(200, [])
    await request.finish()
    (written,) = caller.writes
    assert written.endswith(b"\r\n\r\n0\r\n\r\n")


async def test_a_body_of_a_declared_length_is_sent_as_it_is() -> None:
    caller = Caller()
    request = asked(caller)
    await request.start(200, [(b"content-length", b"6")])
    await request.write(b"one")
    await request.finish(b"two")
    written = b"".join(caller.writes)
    assert written.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in written


@pytest.mark.parametrize(("declared", "message"), [(b"5", "longer"), (b"7", "ends 1 bytes before")])
async def test_a_body_that_is_not_of_its_declared_length_is_our_own_fault(
    declared: bytes, message: str
) -> None:
    request = asked(Caller())
    await request.start(200, [(b"content-length", declared)])
    with pytest.raises(RuntimeError, match=message):
        await request.finish(b"onetwo")
    assert not request.is_answered


async def test_an_answer_to_head_tells_the_length_and_sends_no_body() -> None:
    caller = Caller()
    await asked(caller, "HEAD").respond(200, b"hello")
    assert b"content-length: 5\r\n" in caller.writes[0]
    assert caller.writes[0].endswith(b"\r\n\r\n")
    streamed = asked(caller, "HEAD")
    await streamed.start(200, EVENTS)
    await streamed.write(b"one")
    await streamed.finish(b"two")
    assert b"".join(caller.writes[1:]).endswith(b"x-request-id: mine\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_no_chunks(status: int) -> None:
    caller = Caller()
    request = asked(caller)
    await request.start(status, [])
    await request.finish()
    (written,) = caller.writes
    assert b"transfer-encoding" not in written
    assert written.endswith(b"\r\n\r\n")


async def test_a_stream_for_http_1_0_has_no_chunks() -> None:
    caller = Caller()
    request = asked(caller, is_http_1_0=True)
    await request.start(200, EVENTS)
    await request.finish(b"one")
    (written,) = caller.writes
    assert b"transfer-encoding" not in written
    assert written.endswith(b"\r\n\r\none")


async def test_a_second_answer_is_our_own_fault() -> None:
    caller = Caller()
    request = asked(caller)
    await request.respond(200, b"")
    with pytest.raises(RuntimeError, match="begun already"):
        await request.respond(200, b"")
    assert len(caller.writes) == 1


@pytest.mark.req("NODE-8")
async def test_a_part_waits_until_the_caller_reads_again() -> None:
    caller = Caller()
    request = asked(caller)
    await request.start(200, EVENTS)
    caller.is_write_paused = True
    writing = asyncio.create_task(request.write(b"one"))
    await asyncio.sleep(0)
    assert caller.writes == []
    caller.resumed.set()
    await writing
    assert len(caller.writes) == 1


@pytest.mark.req("NODE-8")
async def test_a_long_answer_is_sent_in_pieces_as_the_caller_takes_them() -> None:
    caller = Caller()
    request = asked(caller)
    body = bytes(range(256)) * (3 * MAX_WRITE_BYTES // 256)
    caller.is_write_paused = True
    answering = asyncio.create_task(request.respond(200, body))
    await asyncio.sleep(0)
    assert (caller.writes, request.is_answered) == ([], False)
    caller.resumed.set()
    await answering
    assert max(map(len, caller.writes)) == MAX_WRITE_BYTES
    assert b"".join(caller.writes).endswith(b"\r\n\r\n" + body)
    assert caller.answers == [request]


async def test_no_further_piece_is_sent_to_a_caller_that_leaves() -> None:
    caller = Caller()
    request = asked(caller)
    caller.is_write_paused = True
    answering = asyncio.create_task(request.respond(200, b"x" * 3 * MAX_WRITE_BYTES))
    await asyncio.sleep(0)
    request.leave()
    caller.resumed.set()
    await answering
    assert (caller.writes, caller.answers) == ([], [])


async def test_nothing_is_written_to_a_caller_that_is_gone() -> None:
    caller = Caller()
    request = asked(caller)
    request.leave()
    await request.respond(200, b"hello")
    assert (caller.writes, caller.answers) == ([], [])


async def test_a_body_is_given_once_it_is_whole() -> None:
    request = asked(Caller())
    request.arrived(b"one")
    reading = asyncio.create_task(request.body())
    await asyncio.sleep(0)
    assert not reading.done()
    request.arrived(b"two")
    request.complete()
    assert await reading == b"onetwo"


async def test_whoever_waits_for_a_body_is_told_that_its_caller_has_left() -> None:
    request = asked(Caller())
    reading = asyncio.create_task(request.body())
    await asyncio.sleep(0)
    request.leave()
    with pytest.raises(CallerGoneError):
        await reading


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: x", b"a\nb", b"a\rb"])
def test_no_header_can_hold_a_line_of_its_own(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        response_head(200, [(b"retry-after", value)], keeps_open=True)


def test_a_status_that_has_no_phrase_is_one_all_the_same() -> None:
    assert response_head(529, [], keeps_open=False) == b"HTTP/1.1 529 \r\nconnection: close\r\n\r\n"
