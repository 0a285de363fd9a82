"""Callers that do what the load does not: read slowly, hold a stream open, read a very long one.

Plain blocking sockets: what such callers ask for is patience and not speed.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.speed.answers import DONE, Kind, request_body
from bench.speed.running import CALLER_TOKEN

SLOW_BYTES_A_SECOND = 1024
_TIMEOUT_S = 60.0
_ENDLESS = 10**12
_END_OF_BODY = b"0\r\n\r\n"


class NotHeld(Exception):
    """A stream that was to stay open has ended."""


def ask(port: int, kind: Kind, *, large_bytes: int = 0, receive_buffer: int = 0) -> socket.socket:
    """Send one request on a connection of its own; nothing is read yet."""
    body = request_body(kind, large_bytes)
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(_TIMEOUT_S)
    connection.connect(("127.0.0.1", port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (CALLER_TOKEN.encode(), len(body), body)
    )
    return connection


def whole(port: int, large_bytes: int) -> int:
    """Read one large answer to its end as fast as it comes; its length. Raises NotHeld for one
    that did not end well."""
    with ask(port, "large", large_bytes=large_bytes) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        size, end = 0, b""
        while piece := answer.read1(2**18):
            size += len(piece)
            end = (end + piece)[-64:]
    if answer.status != 200 or DONE not in end:
        raise NotHeld(f"status {answer.status}, {size} bytes, and then {end!r}")
    return size


@contextmanager
def slow_reader(port: int) -> Iterator[None]:
    """One caller who reads an endless answer at 1 KB a second meanwhile. Raises NotHeld where it
    ended before the reader left."""
    leaves = threading.Event()
    ended: list[str] = []

    def read() -> None:
        with ask(port, "large", large_bytes=_ENDLESS, receive_buffer=4096) as connection:
            while not leaves.wait(1.0):
                if not connection.recv(SLOW_BYTES_A_SECOND):
                    ended.append("the answer to the slow reader ended")
                    return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        leaves.set()
        thread.join()
    if ended:
        raise NotHeld(ended[0])


@contextmanager
def open_streams(port: int, count: int) -> Iterator[None]:
    """So many streams, each of which has brought its first piece and stays open."""
    with ExitStack() as stack:
        connections = [stack.enter_context(ask(port, "held")) for _ in range(count)]
        begun = []
        for connection in connections:
            received = b""
            while b"data: " not in received:
                piece = connection.recv(65536)
                received += piece
                if not piece or not received.startswith(b"HTTP/1.1 200"):
                    raise NotHeld(f"a stream did not begin: {received[:200]!r}")
            begun.append(received)
        yield
        for connection, received in zip(connections, begun, strict=True):
            connection.setblocking(False)
            try:
                rest = connection.recv(65536)
            except BlockingIOError:
                rest = received
            if not rest or rest.endswith(_END_OF_BODY):
                raise NotHeld("a stream ended that was to stay open")
