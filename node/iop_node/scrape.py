"""A listener that answers one question: `GET` of one path. For scrapes, and for nothing more.

One request a connection, whose head is short and comes soon; then it is closed. It never looks at
a body or a header, and knows nothing of what it answers with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import httptools

MAX_REQUEST_BYTES = 16_384
MAX_CONNECTIONS = 64
"""More at once are closed unheard: what a scrape leaves of the process's files is for runs."""

PATIENCE_S = 10.0
"""How long one connection may take, from its first byte to its last."""


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        beside: set[_Connection],
        path: bytes,
        respond: Callable[[], tuple[str, bytes]],
    ) -> None:
        self._beside = beside
        self._path = path
        self._respond = respond
        self._parser = httptools.HttpRequestParser(self)
        self._received = 0
        self._target = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self.abort)
        if len(self._beside) >= MAX_CONNECTIONS:
            self.abort()
            return
        self._beside.add(self)

    def abort(self) -> None:
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._beside.discard(self)
        del self._parser  # it holds this connection in turn

    def data_received(self, content: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += len(content)
        try:
            if self._received <= MAX_REQUEST_BYTES:
                self._parser.feed_data(content)
                return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            pass
        self._write("400 Bad Request")

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_headers_complete(self) -> None:
        if self._transport.is_closing():
            return
        path, _, _ = self._target.partition(b"?")
        if path != self._path:
            self._write("404 Not Found")
        elif self._parser.get_method() != b"GET":
            self._write("405 Method Not Allowed")
        else:
            self._write("200 OK", *self._respond())

    def _write(self, status: str, content_type: str = "text/plain", body: bytes = b"") -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + body)
        self._transport.close()


@asynccontextmanager
async def answering(
    host: str, port: int, path: str, respond: Callable[[], tuple[str, bytes]]
) -> AsyncIterator[int]:
    """Answer `GET path` with the content type and body that `respond` gives; yields the port.

    Connections that are open at the end are cut. Raises OSError where it cannot be listened on.
    """
    connections: set[_Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(connections, path.encode("ascii"), respond), host, port
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in tuple(connections):
            connection.abort()
        await server.wait_closed()
