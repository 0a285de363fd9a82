"""HTTP/2 frames: cut out of the bytes of a connection, and the two kinds that are written here.

It knows the frame header of RFC 9113, section 4.1, and no frame's meaning beyond that. No socket,
no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PUSH_PROMISE = 0x5
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8

HEAD_BYTES = 9
MAX_FRAME_BYTES = 65_536
"""The longest content that a frame may have here; both ends of a session send such."""

MAX_WINDOW = 2**31 - 1

_HEAD = Struct(">HBBBL")
_WINDOW_UPDATE = Struct(">HBBBLL")


class FrameTooLarge(Exception):
    """A frame is longer than was agreed on; the connection cannot go on."""


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    content: bytes


class FrameReader:
    """Bytes in any pieces in, whole frames out."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises FrameTooLarge."""
        buffer = self._buffer + received if self._buffer else received
        start, size = 0, len(buffer)
        try:
            while size - start >= HEAD_BYTES:
                high, low, kind, flags, stream_id = _HEAD.unpack_from(buffer, start)
                length = high << 8 | low
                if length > MAX_FRAME_BYTES:
                    raise FrameTooLarge(f"a frame of {length} bytes; the limit: {MAX_FRAME_BYTES}")
                end = start + HEAD_BYTES + length
                if end > size:
                    break
                content = buffer[start + HEAD_BYTES : end]
                start = end
                yield Frame(kind, flags, stream_id & MAX_WINDOW, content)
        finally:
            self._buffer = buffer[start:]


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The header of a frame whose content is `length` bytes."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """More credit for a stream, or for the whole connection (stream 0)."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)
