"""Whatever is sent, and however it is sent: an answer or a close, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.effective import IngressLimits
from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import post

CHUNKS = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\na: b\r\n\r\n"
VALID = [
    b"GET /whole HTTP/1.1\r\nhost: x\r\n\r\n",
    b"HEAD /whole HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /stream HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n",
    b"POST /stream HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    post(b"hello", path="/whole"),
    post(b"hello", path="/unread", extra=b"connection: close\r\n"),
    post(b"hello", path="/short", extra=b"connection: upgrade\r\nupgrade: h2c\r\n"),
    post(b"hello", path="/fails", extra=b"expect: 100-continue\r\n"),
    post(b"x" * 2000, path="/nothing"),
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b";", b"\xff", b"%00", b"#", b"@", b"HTTP/1.1",
    b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"FFFFFFFF\r\n",
    b"connection: upgrade\r\nupgrade: x\r\n",
]  # fmt: skip


class Sent(NamedTuple):
    data: bytes
    piece: int
    ends: str


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=7))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["insert", "cut", "byte"]))
        if kind == "insert":
            data[place:place] = draw(st.sampled_from(TOKENS))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 30))]
        else:
            data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
    anything = draw(st.one_of(st.just(bytes(data)), st.binary(min_size=1, max_size=100)))
    piece = draw(st.sampled_from([7, 100, 1000, 100_000]))
    return Sent(anything, piece, draw(st.sampled_from(["waits", "ends", "resets"])))


async def answer(request: Request) -> None:
    match request.path:
        case "/stream":
            await request.start(200, [(b"content-type", b"text/event-stream")])
            await request.write(b"data: 1\n\n")
            await request.finish(await request.body())
        case "/unread":
            await request.respond(401, b"no")
        case "/short":
            await request.start(200, [(b"content-length", b"10")])
            await request.finish(b"short")
        case "/fails":
            raise RuntimeError
        case "/nothing":
            await request.body()
        case _:
            await request.respond(200, await request.body())


async def tell(to: Sent) -> tuple[bytes, list[dict[str, Any]], Callable[[], int]]:
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
    limits = IngressLimits(
        receive_timeout_ms=30, write_timeout_ms=1000, max_header_bytes=1000, max_body_bytes=1500
    )
    told = b""
    async with HttpListener(answer, "127.0.0.1:0", limits=limits) as listener:
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for start in range(0, len(to.data), to.piece):
                writer.write(to.data[start : start + to.piece])
                await writer.drain()
                await asyncio.sleep(0)
            if to.ends == "resets":
                writer.transport.abort()
            elif to.ends == "ends" and writer.can_write_eof():
                writer.write_eof()
            told = await reader.read(65_536)
        except OSError:
            pass
        writer.close()
        # The one that is left is an idle one, which its caller has left as well.
        while listener.connections:
            await asyncio.sleep(0)
    return told, troubles, lambda: len(asyncio.all_tasks())


@pytest.mark.req("OAI-5")
@settings(max_examples=150, deadline=None)
@given(sent())
def test_anything_is_answered_or_closed_and_leaves_nothing_behind(to: Sent) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(15):
            told, troubles, tasks = await tell(to)
        assert troubles == []
        assert tasks() == 1
        assert not told or told.startswith(b"HTTP/1.1 ")

    asyncio.run(bounded())
