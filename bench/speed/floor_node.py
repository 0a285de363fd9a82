"""The floor's node: the least that a node of this kind can be.

    python -m bench.speed.floor_node LINK EDGE UPSTREAM        two ports of 127.0.0.1

One gRPC stream to the edge, a raw httptools client with kept connections to the upstream. LINK is
who carries the stream: `library` is gRPC's own, `own` is IOP's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import grpc
import httptools
import uvloop

from bench.speed.floor_wire import METHOD, OPTIONS, SERVICE, What, Writer, frames
from iop_shared.rpc.client import dial
from iop_shared.wire import MAX_MESSAGE_BYTES


class Connection(asyncio.Protocol):
    """One kept connection to the upstream, lent to one run at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, run: int, body: bytes) -> None:
        self._run = run
        self._content_type = b""
        self._whole: list[bytes] = []
        self._transport.write(self._node.head % len(body) + body)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        # What one read brought goes on as one frame.
        if self._whole and self._is_stream:
            self._node.writer.put(self._run, What.BODY, b"".join(self._whole))
            self._whole.clear()
        if self._is_over:
            self._is_over = False
            if self._whole:
                self._node.writer.put(self._run, What.BODY, b"".join(self._whole))
            self._node.writer.put(self._run, What.END)
            self._node.idle.append(self)

    _is_over = _is_stream = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value

    def on_headers_complete(self) -> None:
        self._is_stream = self._content_type.startswith(b"text/event-stream")
        head = What.HEAD_STREAM if self._is_stream else What.HEAD_PLAIN
        self._node.writer.put(self._run, head)

    def on_body(self, body: bytes) -> None:
        self._whole.append(body)

    def on_message_complete(self) -> None:
        self._is_over = True


class Node:
    """The session's writer and the connections that nobody uses."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.idle: list[Connection] = []
        self.writer = Writer()
        self._opening: set[asyncio.Task[None]] = set()
        self.head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{upstream}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode() + b"%d\r\n\r\n"

    async def session(self, edge: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{edge}", options=OPTIONS) as channel:
            stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
                f"/{SERVICE}/{METHOD}"
            )()
            writing = asyncio.create_task(self.writer.drain_to(stream.write))
            try:
                while (message := await stream.read()) is not grpc.aio.EOF:
                    self._hear(cast("bytes", message))
            finally:
                writing.cancel()

    async def own_session(self, edge: int) -> None:
        connection = await dial("127.0.0.1", edge, tls=None)
        path = f"/{SERVICE}/{METHOD}"
        call = connection.call("edge", path, (), max_message_bytes=MAX_MESSAGE_BYTES)
        call.deliver_to(self._hear)
        await self.writer.drain_to(call.write)

    def _hear(self, message: bytes) -> None:
        for run, _, body in frames(message):
            if self.idle:
                self.idle.pop().ask(run, body)
                continue
            task = asyncio.create_task(self._ask_on_a_new_one(run, body))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _ask_on_a_new_one(self, run: int, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self), "127.0.0.1", self._upstream
        )
        connection.ask(run, body)


if __name__ == "__main__":
    node = Node(int(sys.argv[3]))
    session = node.own_session if sys.argv[1] == "own" else node.session
    uvloop.run(session(int(sys.argv[2])))
