"""The floor's edge: the least that an edge of this kind can be.

    python -m bench.speed.floor_edge LINK    prints {"http": …, "grpc": …}, serves until it is ended

Callers on a raw httptools protocol, one node on one gRPC stream, bodies relayed as bytes. No auth,
no config, no pool, no credit, no metrics: what IOP adds to this is what its features cost. LINK is
who carries the stream: `library` is gRPC's own, `own` is IOP's.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from itertools import count
from typing import cast

import grpc
import httptools
import uvloop

from bench.speed.floor_wire import METHOD, OPTIONS, SERVICE, What, Writer, frames
from iop_shared.rpc.server import Method, RpcServer, ServerCall
from iop_shared.wire import MAX_MESSAGE_BYTES

_PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Edge:
    """The runs in flight, and the writer of the one session."""

    def __init__(self) -> None:
        self.runs: dict[int, Caller] = {}
        self.numbers = count(1)
        self.writer = Writer()

    async def session(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        writing = asyncio.create_task(self.writer.drain_to(context.write))
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                self._hear(cast("bytes", message))
        finally:
            writing.cancel()

    async def own_session(self, call: ServerCall) -> None:
        call.deliver_to(self._hear)
        await self.writer.drain_to(call.write)

    def _hear(self, message: bytes) -> None:
        for run, what, body in frames(message):
            self.runs[run].frame(what, body)


class Caller(asyncio.Protocol):
    """One connection of a caller."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._run = next(self._edge.numbers)
        self._edge.runs[self._run] = self
        self._edge.writer.put(self._run, What.RUN, self._body)

    def frame(self, what: int, body: bytes) -> None:
        """What the node sends for this caller's run."""
        if what == What.BODY:
            if self._is_stream:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            else:
                body = _PLAIN_HEAD % len(body) + body
            self._transport.write(body)
        elif what == What.END:
            del self._edge.runs[self._run]
            if self._is_stream:
                self._transport.write(b"0\r\n\r\n")
        else:
            self._is_stream = what == What.HEAD_STREAM
            if self._is_stream:
                self._transport.write(_STREAM_HEAD)


async def _serve_by_library(edge: Edge) -> tuple[int, object]:
    server = grpc.aio.server(options=OPTIONS)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        edge.session
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, server


async def _serve_by_own(edge: Edge) -> tuple[int, object]:
    server = RpcServer({f"/{SERVICE}/{METHOD}": Method(edge.own_session, MAX_MESSAGE_BYTES)})
    listening = socket.create_server(("127.0.0.1", 0))
    await server.start([listening], backlog=16, tls=None)
    return listening.getsockname()[1], server


async def _main(link: str) -> None:
    edge = Edge()
    serve = _serve_by_own if link == "own" else _serve_by_library
    # A server is served for as long as somebody holds it.
    grpc_port, _server = await serve(edge)
    http = await asyncio.get_running_loop().create_server(lambda: Caller(edge), "127.0.0.1", 0)
    ports = {"http": http.sockets[0].getsockname()[1], "grpc": grpc_port}
    print(json.dumps(ports), flush=True)
    await http.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1]))
