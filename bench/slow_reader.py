"""What one slow caller costs the others, and what a very long answer costs in memory.

`python -m bench.slow_reader` runs one edge and one node as real processes. Fifty callers read
paced streams; in one window of two one more caller reads 1 KB a second of an endless one. The
figure is the ratio of the fast callers' median times with and without it, the median of several
pairs of windows (NODE-8 asks for no difference; 1.1 is the bound that is kept). Then a 1 GB answer
is read as fast as it comes, and another by nobody, and the most memory that edge and node ever
held is printed.

All figures of one run belong together. Windows come in pairs, so that other work on the machine
meets both kinds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from demo.processes import Group, Process
from demo.site import Site

FAST_CALLERS = 50
EVENTS, PACE_S = 60, 0.02
PAIRS, WINDOW_S = 8, 2.5
SLOW_BYTES_A_SECOND = 1024
LARGE_EVENT_BYTES = 16 * 1024


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streams of two kinds: `paced`, and `large N` of so many bytes."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))["messages"][0]["content"]
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            if asked == "paced":
                for _ in range(EVENTS):
                    writer.write(_event(b"word "))
                    await asyncio.sleep(PACE_S)
            else:
                event = _event(b"x" * LARGE_EVENT_BYTES)
                for _ in range(int(asked.split()[1]) // LARGE_EVENT_BYTES):
                    writer.write(event)
                    await writer.drain()
            writer.write(_event(b"", b'"stop"') + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


def _event(content: bytes, finish: bytes = b"null") -> bytes:
    data = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":0,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"' + content + b'"},"finish_reason":' + finish + b"}]}\n\n"
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


class Caller:
    """One connection for one streamed call after the other."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(
        self, content: str, receive_buffer: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(
            sock=connection, limit=receive_buffer or 2**16
        )
        body = json.dumps(
            {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]}
        ).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        return reader, writer

    async def whole(self, content: str) -> int:
        """Read one answer to its end; its length. Raises where it did not end well."""
        reader, writer = await self.ask(content)
        size, last = 0, b""
        while piece := await reader.read(2**18):
            size += len(piece)
            last = (last + piece)[-64:]
        writer.close()
        if b"[DONE]" not in last:
            raise RuntimeError(f"an answer of {size} bytes did not end well: {last!r}")
        return size


async def _fast(caller: Caller, until: float, times: list[float]) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        await caller.whole("paced")
        times.append(time.monotonic() - began)


async def _slow(caller: Caller) -> None:
    reader, writer = await caller.ask("large 1000000000", receive_buffer=4096)
    try:
        while await reader.read(SLOW_BYTES_A_SECOND):  # noqa: ASYNC110 - its pace is the point
            await asyncio.sleep(1.0)
    finally:
        writer.transport.abort()


async def _window(caller: Caller, *, with_slow: bool) -> list[float]:
    times: list[float] = []
    slow = asyncio.create_task(_slow(caller)) if with_slow else None
    until = time.monotonic() + WINDOW_S
    await asyncio.gather(*(_fast(caller, until, times) for _ in range(FAST_CALLERS)))
    if slow is not None:
        if slow.done():
            raise RuntimeError("the slow reader was not held to the end") from slow.exception()
        slow.cancel()
        await asyncio.wait([slow])
    return times


def _resident_mib(process: Process, which: str) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(which)[2].split()[0]) / 1024


def _site(folder: Path, upstream_port: int) -> Site:
    site = Site(Group(folder))
    config: dict[str, Any] = {
        **site.listeners(),
        "logging": {"level": "warning"},
        "models": [{"id": "m", "providers": {"p": "m"}}],
        "nodes": [
            {
                "id": "a",
                "token": {"sha256": site.token_sha256("a")},
                "adapters": [
                    {
                        "key": "up",
                        "type": "openai_compat",
                        "base_url": f"http://127.0.0.1:{upstream_port}",
                    }
                ],
                "providers": [
                    {
                        "id": "p",
                        "type": "vllm",
                        "category": "local_inference",
                        "adapter": "up",
                        "models": ["m"],
                        "capacity": 200,
                    }
                ],
            }
        ],
    }
    site.config.write_text(yaml.safe_dump(config))
    return site


async def measure(large_bytes: int) -> dict[str, Any]:
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        site = _site(Path(folder), server.sockets[0].getsockname()[1])
        try:
            edge = await asyncio.to_thread(site.start_edge)
            node = site.start_node("a")
            await asyncio.to_thread(site.wait_connected, "a")
            caller = Caller(site.ports.openai)
            await _window(caller, with_slow=False)
            pairs: list[tuple[float, float]] = []
            for number in range(PAIRS):
                # Either comes first in turn, so that a machine that slows down favours neither.
                order = (False, True) if number % 2 else (True, False)
                p50 = {
                    kind: statistics.median(await _window(caller, with_slow=kind)) for kind in order
                }
                pairs.append((p50[False], p50[True]))
            before = {p.name: _resident_mib(p, "VmRSS:") for p in (edge, node)}
            began = time.monotonic()
            size = await caller.whole(f"large {large_bytes}")
            took_s = time.monotonic() - began
            reader, writer = await caller.ask(f"large {large_bytes}", receive_buffer=4096)
            await reader.readexactly(1)
            await asyncio.sleep(5)
            writer.transport.abort()
            most = {p.name: _resident_mib(p, "VmHWM:") for p in (edge, node)}
        finally:
            await asyncio.to_thread(site.group.stop)
            server.close()
    return {
        "alone_p50_ms": round(statistics.median(alone for alone, _ in pairs) * 1000, 1),
        "beside_slow_p50_ms": round(statistics.median(beside for _, beside in pairs) * 1000, 1),
        "ratio": round(statistics.median(beside / alone for alone, beside in pairs), 3),
        "large_answer_mib": round(size / 2**20),
        "large_answer_mib_a_second": round(size / 2**20 / took_s, 1),
        "resident_before_mib": {name: round(value, 1) for name, value in before.items()},
        "most_resident_mib": {name: round(value, 1) for name, value in most.items()},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description="What one slow caller costs the others")
    arguments.add_argument("--large-mb", type=int, default=1000, help="length of the long answer")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    result = asyncio.run(measure(options.large_mb * 1_000_000))
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
