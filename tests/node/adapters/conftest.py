"""Scripted upstreams on raw sockets, and a sink that records what an adapter hands on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest
import uvloop

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters.base import RunEvent, TunnelCall
from iop_node.adapters.kinds import KINDS
from iop_node.adapters.upstream_spec import ProbeSpec, UpstreamSpec


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A node runs on uvloop; whoever embeds an adapter may run on another loop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class Received:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


class Connection:
    """One connection as the upstream sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> Received:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = [
            (n, v.strip()) for n, _, v in (line.partition(":") for line in lines[1:] if line)
        ]
        return Received(method, path, headers, b"")

    async def request(self) -> Received:
        received = await self.head()
        if received.header("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                received.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        else:
            received.body = await self.reader.readexactly(
                int(received.header("content-length") or 0)
            )
        return received

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def answer(self, body: bytes, status: str = "200 OK", headers: str = "") -> None:
        await self.send(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body
        )

    async def chunked_head(self, content_type: str = "text/event-stream") -> None:
        await self.send(
            f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )

    async def chunk(self, content: bytes) -> None:
        await self.send(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    async def peer_gone(self) -> None:
        """Returns when the other end closed or reset this connection."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


class Upstream:
    """Runs one script per connection, the n-th for the n-th; the last one for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.connections = 0
        self.failures: list[BaseException] = []
        self.port = 0
        self.scheme = "http"
        self._running: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        try:
            await script(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._running.discard(task)
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
        self.scheme = "http" if tls is None else "https"
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._running):
                task.cancel()
            if self._running:
                await asyncio.wait(set(self._running))
            await server.wait_closed()
            assert not self.failures, self.failures


@dataclass
class Sink:
    """A Responder. With `gate`, every chunk and event waits until it is set."""

    gate: asyncio.Event | None = None
    starts: int = 0
    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    has_head: asyncio.Event = field(default_factory=asyncio.Event)
    has_started: asyncio.Event = field(default_factory=asyncio.Event)
    has_chunk: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def started(self) -> None:
        self.starts += 1
        self.has_started.set()

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        assert self.status is None, "a head comes once"
        self.status = status
        self.headers = headers
        self.has_head.set()

    async def chunk(self, content: bytes) -> None:
        assert self.status is not None, "a head comes before the body"
        assert content, "an empty chunk says nothing"
        self.chunks.append(content)
        self.has_chunk.set()
        if self.gate is not None:
            await self.gate.wait()

    async def event(self, event: RunEvent) -> None:
        self.events.append(event)
        self.has_chunk.set()
        if self.gate is not None:
            await self.gate.wait()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def make_sink() -> type[Sink]:
    return Sink


@pytest.fixture
def upstream() -> type[Upstream]:
    return Upstream


@pytest.fixture
def call() -> Callable[..., TunnelCall]:
    def make(**changes: object) -> TunnelCall:
        return TunnelCall(
            **{
                "adapter": "a",
                "target": "m",
                "operation": "chat_completions",
                "headers": (("Content-Type", "application/json"),),
                "body": b'{"model":"m"}',
                **changes,
            }
        )

    return make


@pytest.fixture
async def adapter_on() -> AsyncIterator[Callable[..., Awaitable[object]]]:
    """Makes and starts an adapter for a base URL; stopped when the test ends."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(url: str, kind: str = "openai_compat", **spec: object) -> object:
            config = AdapterConfig(key="a")
            if kind == "ollama":
                config.ollama.context_size = int(spec.pop("context_size", 0))
            else:
                getattr(config, kind).profile.operation_urls.update(
                    {
                        "models": f"{url}/v1/models",
                        "chat_completions": f"{url}/v1/chat/completions",
                        "messages": f"{url}/v1/messages",
                        "count_tokens": f"{url}/v1/messages/count_tokens",
                    }
                )
            adapter = KINDS[kind](config, UpstreamSpec(base_url=url, **spec))
            await adapter.start()
            stack.push_async_callback(adapter.stop)
            return adapter

        yield make


@pytest.fixture
def full_backlog() -> Iterator[str]:
    """A listener that completes no further handshake: dialling it hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"


@pytest.fixture
def open_sockets() -> Callable[[], int]:
    """How many this process holds now."""

    def count() -> int:
        held = 0
        for file in os.listdir("/proc/self/fd"):
            # The listing itself is one of them, and gone by now.
            with contextlib.suppress(FileNotFoundError):
                held += os.readlink(f"/proc/self/fd/{file}").startswith("socket:")
        return held

    return count


@pytest.fixture
def probe_spec() -> ProbeSpec:
    return ProbeSpec(path="/health", interval_s=10.0, timeout_s=0.1, failures=3)
