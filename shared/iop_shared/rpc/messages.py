"""gRPC messages: cut out of the content of DATA frames.

A message is one byte (is it compressed), four of length, and itself. No socket, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from iop_shared.rpc.codes import RpcError, StatusCode

PREFIX_BYTES = 5
_PREFIX = Struct(">BL")


class MessageReader:
    """Bytes in any pieces in, whole messages out, none longer than `max_bytes`."""

    __slots__ = ("_buffer", "_max_bytes", "_missing")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._missing = 0

    def whole(self, received: bytes) -> bytes | None:
        """The message that `received` is from its first byte to its last, as nearly every frame
        is one; None where `feed` has to look."""
        if self._buffer or len(received) < PREFIX_BYTES:
            return None
        compressed, length = _PREFIX.unpack_from(received)
        if compressed or length != len(received) - PREFIX_BYTES or length > self._max_bytes:
            return None
        return received[PREFIX_BYTES:]

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The messages that are whole now. To be read to its end.

        Raises RpcError: RESOURCE_EXHAUSTED for one that is too long, before its bytes are held;
        UNIMPLEMENTED for one that is compressed, which nobody was offered.
        """
        buffer: bytes | bytearray = received
        if self._buffer:
            self._buffer += received
            if len(received) < self._missing:
                self._missing -= len(received)
                return
            buffer, self._buffer = self._buffer, bytearray()
        start, size = 0, len(buffer)
        self._missing = 0
        while size - start >= PREFIX_BYTES:
            compressed, length = _PREFIX.unpack_from(buffer, start)
            if compressed:
                raise RpcError(StatusCode.UNIMPLEMENTED, "messages are taken uncompressed alone")
            if length > self._max_bytes:
                raise RpcError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"a message of {length} bytes; the limit is {self._max_bytes}",
                )
            end = start + PREFIX_BYTES + length
            if end > size:
                self._missing = end - size
                break
            yield bytes(memoryview(buffer)[start + PREFIX_BYTES : end])
            start = end
        if start < size:
            self._buffer += memoryview(buffer)[start:]

    @property
    def held_bytes(self) -> int:
        """Of a message that is not whole."""
        return len(self._buffer)


def prefixed(message: bytes) -> bytes:
    """A message as it is sent."""
    return _PREFIX.pack(0, len(message)) + message
