"""HTTP/2 frames: cut out of the bytes of a connection, and the few that are read or written here.

It knows the forms of RFC 9113, sections 4.1 and 6, and nothing of what a frame does to a
connection. No socket, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8

HEAD_BYTES = 9
MAX_FRAME_BYTES = 65_536
"""The longest content that a frame may have here; both ends of a session send such."""

MAX_WINDOW = 2**31 - 1
MAX_SETTINGS = 32
"""In one frame. There are six."""

MAX_TABLE_BYTES = 4096
"""Of headers that are remembered for a peer, however many it would remember."""

_HEAD = Struct(">HBBBL")
_WINDOW_UPDATE = Struct(">HBBBLL")
_SETTING = Struct(">HL")
_GOAWAY = Struct(">LL")

_HEADER_TABLE_SIZE = 0x1
_KNOWN_SETTINGS = range(0x1, 0x7)

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream and content."""


class Broken(Exception):
    """The peer has broken a rule, and the connection cannot go on. Its words are fixed ones: they
    are logged, and repeat nothing that came."""

    def __init__(self, reason: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.code = code


class FrameReader:
    """Bytes in any pieces in, whole frames out."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The frames that are whole now. To be read to its end, or never again.

        Raises Broken for a frame that is too long, before its content is held.
        """
        buffer = self._buffer + received if self._buffer else received
        start, size = 0, len(buffer)
        while size - start >= HEAD_BYTES:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(buffer, start)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                raise Broken(
                    f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}",
                    ErrorCodes.FRAME_SIZE_ERROR,
                )
            content_start = start + HEAD_BYTES
            end = content_start + length
            if end > size:
                break
            start = end
            yield kind, flags, stream_id & MAX_WINDOW, buffer[content_start:end]
        self._buffer = buffer[start:]

    @property
    def held_bytes(self) -> int:
        """Of a frame that is not whole."""
        return len(self._buffer)


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The header of a frame whose content is `length` bytes."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """More credit for a stream, or for the whole connection (stream 0)."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


def increment_of(content: bytes) -> int:
    """What a WINDOW_UPDATE grants, at least 1. Raises Broken."""
    if len(content) != 4:
        raise Broken("a window update of another length", ErrorCodes.FRAME_SIZE_ERROR)
    increment = int.from_bytes(content, "big") & MAX_WINDOW
    if not increment:
        raise Broken("a window update that grants nothing")
    return increment


def without_padding(content: bytes) -> bytes:
    """What a padded DATA frame carries. Raises Broken."""
    if not content or content[0] >= len(content):
        raise Broken("a frame whose padding is longer than itself")
    return content[1 : len(content) - content[0]]


def known_settings(content: bytes) -> bytes:
    """A SETTINGS frame's content, as it may be followed: without what nobody here knows, and with
    no table of headers above MAX_TABLE_BYTES. Raises Broken.

    What is not known is to be ignored (RFC 9113, 6.5.2), and to remember it would let six bytes of
    a peer cost hundreds here. A table is this end's own memory too: what the peer allows is a
    limit, and no order (RFC 7541, 4.2).
    """
    if len(content) % _SETTING.size:
        raise Broken("settings of another length", ErrorCodes.FRAME_SIZE_ERROR)
    if len(content) > MAX_SETTINGS * _SETTING.size:
        raise Broken("too many settings at once", ErrorCodes.ENHANCE_YOUR_CALM)
    return b"".join(
        _SETTING.pack(code, min(value, MAX_TABLE_BYTES) if code == _HEADER_TABLE_SIZE else value)
        for code, value in _SETTING.iter_unpack(content)
        if code in _KNOWN_SETTINGS
    )


def goodbye(content: bytes) -> tuple[int, int]:
    """What a GOAWAY says: the last stream that is still served, and the error. Raises Broken."""
    if len(content) < _GOAWAY.size:
        raise Broken("a goodbye of another length", ErrorCodes.FRAME_SIZE_ERROR)
    last_stream_id, code = _GOAWAY.unpack_from(content)
    return last_stream_id & MAX_WINDOW, code
