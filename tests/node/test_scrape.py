from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from iop_node import scrape
from iop_node.scrape import MAX_REQUEST_BYTES, answering


async def asked(*pieces: bytes) -> bytes:
    """All that comes back."""
    async with answering("127.0.0.1", 0, "/metrics", lambda: ("text/plain", b"up 1\n")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        try:
            return await reader.read()
        finally:
            writer.close()


async def status_of(*pieces: bytes) -> int:
    return int((await asked(*pieces)).split(b" ")[1])


@pytest.mark.req("OPS-3")
async def test_the_path_is_answered_however_its_request_arrives() -> None:
    request = b"GET /metrics?a=1 HTTP/1.1\r\nHost: h\r\n\r\n"
    for pieces in ([request], [request[:3], request[3:20], request[20:]]):
        head, _, body = (await asked(*pieces)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body == b"up 1\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics/ HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok", 405),
        (b"GET /metrics HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES, 400),
    ],
)
async def test_nothing_else_is(request_bytes: bytes, status: int) -> None:
    assert await status_of(request_bytes) == status


async def test_two_requests_on_one_connection_are_answered_once() -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
    assert (await asked(request + request)).count(b"HTTP/1.1") == 1


async def test_who_asks_for_nothing_is_cut_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "PATIENCE_S", 0.01)
    assert await asked(b"GET /me") == b""


async def test_the_end_cuts_who_is_still_there() -> None:
    async with answering("127.0.0.1", 0, "/metrics", lambda: ("text/plain", b"")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /me")
        await writer.drain()
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(b"GET / HTTP/1.1\r\n\r\n")
        await other_reader.read()  # so the first is there as well
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    other.close()


async def test_no_more_connections_are_held_than_a_scrape_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "MAX_CONNECTIONS", 1)
    request = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
    async with answering("127.0.0.1", 0, "/metrics", lambda: ("text/plain", b"up 1\n")) as port:
        reader, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(request[:5])
        await first.drain()
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await other_reader.read() == b""
        first.write(request[5:])
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        reader, again = await asyncio.open_connection("127.0.0.1", port)
        again.write(request)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    for writer in (first, other, again):
        writer.close()
