"""The head of a response, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

ByteHeaders = Sequence[tuple[bytes, bytes]]

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode("ascii")
    for status in range(100, 600)
}


def response_head(status: int, headers: ByteHeaders, *, keeps_open: bool) -> bytes:
    """Status line and headers, up to and including the empty line.

    Raises ValueError for a value that would begin a line of its own, wherever it came from.
    """
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    end = b"\r\n" if keeps_open else b"connection: close\r\n\r\n"
    head = _STATUS_LINES[status] + lines + end
    ends = len(headers) + (2 if keeps_open else 3)
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise ValueError("a response header holds a line break")
    return head
