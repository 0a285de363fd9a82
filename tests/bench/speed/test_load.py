"""The load and the mock upstream agree, and nothing but a whole answer is ever counted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from bench.speed import answers, callers, load, upstream
from bench.speed.answers import DONE, Kind
from bench.speed.load import Figures, Order


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = await upstream.serve()
    yield server.sockets[0].getsockname()[1]
    server.close()


async def answered(answer: bytes, kind: Kind = "plain") -> Figures:
    """What the load makes of an upstream that says this to everything, and then hangs up."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        return await load.run(Order(server.sockets[0].getsockname()[1], kind, 1, 0.0))


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@pytest.mark.parametrize("kind", ["plain", "burst", "paced"])
async def test_every_answer_of_the_mock_upstream_is_whole_to_the_load(
    port: int, kind: Kind
) -> None:
    figures = await load.run(Order(port, kind, 3, 0.0, processes={"me": [os.getpid()]}))
    assert figures.error is None
    assert figures.requests == 3  # each caller's first, and no other after so short a time
    assert figures.cpu_s["me"] > 0
    assert 0 < figures.first_byte_p50_ms <= figures.p50_ms <= figures.p99_ms


async def test_a_connection_is_kept_for_the_next_request(port: int) -> None:
    figures = await load.run(Order(port, "plain", 2, 0.05))
    assert figures.error is None
    assert figures.requests > 2


@pytest.mark.parametrize(
    "answer",
    [
        http("500 Internal Server Error", answers.plain_answer()),
        http("429 Too Many Requests", b""),
        http("200 OK", b'{"error": "busy"}'),
        http("200 OK", answers.plain_answer())[:-1],
        b"nonsense\r\n\r\n",
        b"",
    ],
    ids=["an error", "a refusal", "another answer", "a cut one", "nonsense", "nothing"],
)
async def test_an_answer_that_is_not_the_one_that_is_due_is_never_counted(answer: bytes) -> None:
    figures = await answered(answer)
    assert figures.error
    assert figures.requests == 0


@pytest.mark.parametrize("lost", [DONE, answers.stream_pieces()[0]], ids=["end", "beginning"])
async def test_a_stream_without_its_end_or_a_piece_is_never_counted(lost: bytes) -> None:
    whole = b"".join(answers.stream_pieces())
    short = whole.replace(lost, b"")
    assert short != whole
    assert (await answered(http("200 OK", short), "burst")).error


async def test_a_load_that_finds_nobody_says_so() -> None:
    server = await upstream.serve()
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert (await load.run(Order(port, "plain", 1, 0.0))).error


async def test_a_long_answer_is_as_long_as_asked_and_a_held_one_stays_open(port: int) -> None:
    asked = 300_000
    assert await asyncio.to_thread(callers.whole, port, asked) >= asked

    def hold() -> None:
        with callers.open_streams(port, 3):
            pass

    await asyncio.to_thread(hold)


async def test_a_stream_that_was_to_stay_open_and_did_not_is_told(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = callers.ask
    monkeypatch.setattr(callers, "ask", lambda port, _: ask(port, "burst"))

    def hold() -> None:
        with callers.open_streams(port, 1):
            # The whole answer, and the connection with it, is waiting to be read.
            pass

    with pytest.raises(callers.NotHeld):
        await asyncio.to_thread(hold)


@pytest.mark.parametrize("kind", answers.KINDS)
def test_a_request_names_the_answer_it_wants(kind: Kind) -> None:
    assert answers.kind_of(answers.request_body(kind)) == kind


def test_a_request_of_nobody_here_has_no_answer() -> None:
    with pytest.raises(ValueError, match="none of the bench's answers"):
        answers.kind_of(b'{"model": "bench"}')


def test_the_answers_are_of_the_size_and_number_that_the_docs_say() -> None:
    assert 950 < len(answers.plain_answer()) < 1150
    assert b"".join(answers.stream_pieces()).count(b"data: ") == answers.CHUNKS + 2
