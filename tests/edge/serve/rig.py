"""A listener on a free port, and a raw client that reads until the other side closes."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from iop_edge.config.effective import IngressLimits
from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import Handler, Request
from iop_edge.serve.http.routes import Route, Router


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class RawClient:
    """One connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    async def answer(self) -> Answer:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            pairs = [line.split(": ", 1) for line in lines[1:] if line]
            headers = {name.lower(): value for name, value in pairs}
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self._chunks()
        return Answer(int(lines[0].split(" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    async def closed(self) -> bytes:
        """What still comes until the other side has closed."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self.writer.close()


class Rig:
    """A listener with one POST route of the test's own, and connections to it."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._clients: list[RawClient] = []
        self.listener: HttpListener

    async def listen(self, handler: Handler, **options: Any) -> HttpListener:
        limits = IngressLimits(**{k: options.pop(k) for k in list(options) if k in LIMITS})
        router = Router([Route(method="POST", path="/v1/echo", handler=handler)])
        self.listener = HttpListener(
            router, options.pop("address", "127.0.0.1:0"), limits=limits, **options
        )
        # As where many callers are connected, though a test has one: writes wait for the turn.
        self.listener.cork.connections = range(2)
        await self._stack.enter_async_context(self.listener)
        return self.listener

    async def connect(self) -> RawClient:
        host, _, port = self.listener.address.rpartition(":")
        client = RawClient(*await asyncio.open_connection(host, int(port)))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        await self._stack.aclose()


LIMITS = frozenset(IngressLimits.__struct_fields__)


async def echo(request: Request) -> None:
    await request.respond(200, await request.body())


def post(body: bytes = b"{}", *, path: str = "/v1/echo", extra: bytes = b"") -> bytes:
    return (
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n"
        % (path.encode(), len(body), extra)
        + body
    )
