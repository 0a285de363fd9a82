"""A mock of a model server that costs next to nothing: about ten microseconds a plain request.

    python -m bench.speed.upstream        prints {"port": …} and serves until it is ended

A raw asyncio protocol over httptools on uvloop; every answer is bytes made beforehand. It knows
nothing of who stands before it.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import cast

import httptools
import uvloop

from bench.speed import answers
from bench.speed.answers import PACE_S, Kind


def _whole(content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


_PLAIN = _whole("application/json", answers.plain_answer())
_MODELS = _whole(
    "application/json",
    json.dumps(
        {"object": "list", "data": [{"id": answers.MODEL, "object": "model", "owned_by": "bench"}]}
    ).encode(),
)
_LOST = _whole("text/plain", b"no such answer").replace(b"200 OK", b"400 Bad Request")
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_PIECES = [_chunk(piece) for piece in answers.stream_pieces()]
_END = b"0\r\n\r\n"
_LARGE = _chunk(answers.large_piece())
_BURST = _HEAD + b"".join(_PIECES) + _END
_FIRST, *_NEXT = [_HEAD + _PIECES[0], *_PIECES[1:-2], _PIECES[-2] + _PIECES[-1] + _END]
"""What a paced stream writes at each of its moments: as many as it has pieces of content."""


class Upstream(asyncio.Protocol):
    """One connection, kept alive, one request after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._left = 0  # bytes of a large answer that are still to be written
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(_MODELS)
            return
        try:
            self._answer(answers.kind_of(self._body))
        except ValueError:
            self._transport.write(_LOST)

    def _answer(self, kind: Kind) -> None:
        if kind == "plain":
            self._transport.write(_PLAIN)
        elif kind == "burst":
            self._transport.write(_BURST)
        elif kind == "held":
            self._transport.write(_FIRST)
        elif kind == "large":
            self._transport.write(_FIRST)
            self._left = answers.large_bytes_of(self._body)
            self._write_large()
        else:
            self._transport.write(_FIRST)
            self._go_on(0, self._loop.time() + PACE_S)

    def _go_on(self, at: int, due: float) -> None:
        self._loop.call_at(due, partial(self._write_next, at, due))

    def _write_next(self, at: int, due: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_NEXT[at])
        if at + 1 < len(_NEXT):
            self._go_on(at + 1, due + PACE_S)

    def _write_large(self) -> None:
        while self._left > 0 and not self._is_paused and not self._transport.is_closing():
            self._transport.write(_LARGE)
            self._left -= answers.LARGE_EVENT_BYTES
        if self._left <= 0:
            self._transport.write(_NEXT[-1])

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._left > 0:
            self._write_large()


async def serve(port: int = 0) -> asyncio.Server:
    """Listen on 127.0.0.1; port 0 picks one."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Upstream(loop), "127.0.0.1", port)


async def _main() -> None:
    server = await serve()
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
