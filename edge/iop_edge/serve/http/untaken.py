"""How much of what was written to a caller it has not taken yet.

A socket's own buffer holds megabytes and reports room only once a third of it is free, so the
transport's buffer alone stands still for long under a caller that reads slowly. It decides
nothing, and knows no connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios


def untaken_bytes(transport: asyncio.Transport) -> tuple[int, int]:
    """Bytes that wait in the transport, and in the system until the other side has taken them.

    The second is 0 where the system does not tell. Over TLS some bytes between the two are in
    neither, so progress shows as a difference and not always as a decrease.
    """
    return transport.get_write_buffer_size(), _queued_bytes(transport)


def _queued_bytes(transport: asyncio.Transport) -> int:
    try:
        descriptor = transport.get_extra_info("socket").fileno()
        told = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0
    queued: int = struct.unpack("i", told)[0]
    return queued
