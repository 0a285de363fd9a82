"""What many connections write in one turn of the loop leaves at the turn's end, together.

A write to a peer that sleeps wakes it up, and that costs more than the write. Where answers to many
callers follow each other by microseconds, each of them meets a caller's process that has just gone
to sleep again; together they wake it once. A connection's own writes of a turn are one, too.

It decides when bytes leave, by one turn at most, and never what they are or whose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

MAX_HELD_BYTES = 64 * 1024
"""Of one connection. More than that leaves at once, so that the transport's own mark holds."""


class Cork:
    """Shared by connections of one loop. While `connections` are fewer than two it holds nothing:
    a connection that is alone would wait for nobody."""

    def __init__(self, connections: Sized) -> None:
        self.connections = connections
        self._holding: list[CorkedTransport] = []

    def __repr__(self) -> str:
        return f"Cork({len(self._holding)} connections)"

    def hold(self, transport: CorkedTransport) -> None:
        """Flush it at the end of this turn."""
        if not self._holding:
            asyncio.get_running_loop().call_soon(self._release)
        self._holding.append(transport)

    def _release(self) -> None:
        holding, self._holding = self._holding, []
        for transport in holding:
            try:
                transport.flush()
            except Exception as error:
                # The others wait still, and a transport that fails so is of no use.
                transport.abort()
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a transport took no write", "exception": error}
                )


class CorkedTransport(asyncio.Transport):
    """A transport whose writes wait for the end of the turn. All else is as the transport's own,
    after what was written before it.

    Its protocol calls `flush` in `eof_received`, since the transport may close itself then, and
    `drop` in `connection_lost`.
    """

    __slots__ = ("_cork", "_has_ended", "_held", "_held_bytes", "_transport")

    def __init__(self, transport: asyncio.Transport, cork: Cork) -> None:
        self._transport = transport
        self._cork = cork
        self._has_ended = False
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __repr__(self) -> str:
        return f"CorkedTransport({self._transport!r}, held={self._held_bytes})"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        held = self._held
        if not held:
            # What the transport does not take any more it refuses to the writer itself.
            if len(self._cork.connections) < 2 or self._has_ended or self._transport.is_closing():
                self._transport.write(data)
                return
            self._cork.hold(self)
        held.append(bytes(data))
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over what waits, now."""
        held = self._held
        if held:
            data = held[0] if len(held) == 1 else b"".join(held)
            self.drop()
            if not self._transport.is_closing():
                self._transport.write(data)

    def drop(self) -> None:
        """Forget what waits: nobody is there any more."""
        self._held.clear()
        self._held_bytes = 0

    def write_eof(self) -> None:
        self.flush()
        self._has_ended = True
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        # What was written before may have arrived before: answers that are whole.
        self.flush()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._held_bytes + self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
