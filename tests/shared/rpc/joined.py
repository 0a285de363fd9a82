"""Two ends of ours in one process, joined by two wires that move when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from h2.events import Event, RequestReceived

from iop_shared.rpc.client import ClientConnection
from iop_shared.rpc.codes import plain
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.stream import Stream

MAX_MESSAGE_BYTES = 300_000


class NothingYet(Exception):
    """Whoever reads would wait."""


class Wire(asyncio.Transport):
    """What one end has written, until it is delivered to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = self.is_aborted = False
        self.other: Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def deliver(self, size: int | None = None) -> bool:
        """Hand on so many bytes, or all; whether there were any."""
        raw = b"".join(self.writes)
        now, later = (raw, b"") if size is None else (raw[:size], raw[size:])
        self.writes = [later] if later else []
        if now:
            self.other.data_received(now)
        return bool(now)


class Called(Connection):
    """A server's end without handlers: its calls are there to be looked at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, is_client=False)
        self.calls: list[Stream] = []

    def _happened(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            call = Stream(self, event.stream_id, MAX_MESSAGE_BYTES)
            call.headers = plain(event.headers)
            call.is_heard = True
            self.streams[event.stream_id] = call
            self.calls.append(call)
            self._h2.send_headers(
                event.stream_id, [(":status", "200"), ("content-type", "application/grpc")]
            )
            self._write_h2()
            self._open_window(call)

    def _peer_ended(self, stream: Stream) -> None:
        stream.end_received()


class Joined:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.client, self.server = ClientConnection(loop), Called(loop)
        self.out, self.back = Wire(), Wire()
        self.out.other, self.back.other = self.server, self.client
        self.client.connection_made(self.out)
        self.server.connection_made(self.back)
        self.settle()

    def settle(self) -> None:
        """Deliver until nothing is on its way."""
        while self.out.deliver() | self.back.deliver():
            pass

    def turn(self) -> None:
        """One turn of the loop, which does not run by itself."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def call(self) -> tuple[Stream, Stream]:
        """Both ends of a new call."""
        made = self.client.call("test", "/t/t", (), max_message_bytes=MAX_MESSAGE_BYTES)
        self.settle()
        return made, self.server.calls[-1]

    @staticmethod
    def read(stream: Stream) -> bytes | None:
        """The next message or the end. Raises NothingYet where neither has arrived."""
        reading = stream.read()
        try:
            reading.send(None)
        except StopIteration as read:
            message: bytes | None = read.value
            return message
        reading.close()
        raise NothingYet

    def arrived(self, stream: Stream) -> list[bytes]:
        """All the messages that have arrived: they are read by this."""
        found = []
        with suppress(NothingYet):
            while (message := self.read(stream)) is not None:
                found.append(message)
        return found


@contextmanager
def joined() -> Iterator[Joined]:
    loop = asyncio.new_event_loop()
    try:
        yield Joined(loop)
    finally:
        loop.close()
