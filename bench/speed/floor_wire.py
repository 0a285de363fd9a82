"""What the floor's two processes say to each other: frames, and a writer that drains what waits.

One gRPC message holds every frame that waited when it was written. No credit, no control, no epoch.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from enum import IntEnum

SERVICE, METHOD = "bench.Floor", "Session"
OPTIONS = [
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.max_send_message_length", 16 * 2**20),
    ("grpc.so_reuseport", 0),
]

_HEAD = struct.Struct("!IBI")


class What(IntEnum):
    RUN = 1
    HEAD_PLAIN = 2
    HEAD_STREAM = 3
    BODY = 4
    END = 5


class Writer:
    """Frames go in, at once; whole messages of them come out, one under way at a time."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()

    def put(self, run: int, what: What, body: bytes = b"") -> None:
        self._waiting.append(_HEAD.pack(run, what, len(body)))
        self._waiting.append(body)
        self._wake.set()

    async def drain_to(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = b"".join(self._waiting)
            self._waiting.clear()
            await write(message)


def frames(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Run, what it is, and its body, of each frame."""
    at = 0
    while at < len(message):
        run, what, length = _HEAD.unpack_from(message, at)
        at += _HEAD.size
        yield run, what, message[at : at + length]
        at += length
