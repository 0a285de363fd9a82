"""Opens a connection: resolve, judge the addresses, connect to one of those judged, speak TLS.

Names are judged where they are dialled, since one may come to mean another address. What is
connected to is the very address that was judged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from itertools import zip_longest
from socket import IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY, socket
from typing import TypeVar

from iop_node.adapters.http1.endpoint import Origin
from iop_node.adapters.upstream_url import is_link_local
from iop_shared.errors import Code, Fault

HEAD_START_S = 0.25
"""How long one address of several is tried alone before the next one is tried beside it."""

Made = TypeVar("Made", bound=asyncio.Protocol)
Address = tuple[int, tuple[object, ...]]
"""A family and a socket address of it."""


async def dial(
    origin: Origin,
    make: Callable[[], Made],
    *,
    tls: ssl.SSLContext | None,
    allow_link_local: bool,
) -> Made:
    """An open connection, of plain text where `tls` is None. Cancelled, it leaves none behind.

    Raises Fault(upstream_refused), which names no address (SEC-1).
    """
    loop = asyncio.get_running_loop()
    addresses = await _resolve(loop, origin)
    if not allow_link_local:
        addresses = [each for each in addresses if not is_link_local(str(each[1][0]))]
        if not addresses:
            raise _refused("link-local and metadata addresses are not dialled")
    try:
        connected = await _connect_first(loop, addresses)
    except OSError:
        raise _refused("the upstream took no connection") from None
    try:
        connected.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        _, protocol = await loop.create_connection(
            make,
            sock=connected,
            ssl=tls,
            server_hostname=None if tls is None else origin.host.rstrip("."),
        )
    except (OSError, ssl.SSLError):
        connected.close()
        raise _refused(
            "the upstream took no connection"
            if tls is None
            else "no TLS session with the upstream came about"
        ) from None
    except BaseException:
        connected.close()
        raise
    return protocol


async def _resolve(loop: asyncio.AbstractEventLoop, origin: Origin) -> list[Address]:
    """In the order to be tried: the resolver's, with the families in turn (RFC 8305)."""
    try:
        found = await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _refused("the upstream's name could not be resolved") from None
    addresses: list[Address] = list(dict.fromkeys((each[0], tuple(each[4])) for each in found))
    of_first = [each for each in addresses if each[0] == addresses[0][0]]
    of_other = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for pair in zip_longest(of_first, of_other) for each in pair if each is not None]


async def _connect_first(loop: asyncio.AbstractEventLoop, addresses: Sequence[Address]) -> socket:
    """Connect to whichever address answers first. Raises OSError where none does."""
    if len(addresses) == 1:
        return await _connect(loop, addresses[0])
    left = list(addresses)
    attempts: list[asyncio.Task[socket]] = []
    try:
        while True:
            if left:
                attempts.append(loop.create_task(_connect(loop, left.pop(0))))
            under_way = [each for each in attempts if not each.done()]
            await asyncio.wait(
                under_way,
                timeout=HEAD_START_S if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in attempts:
                if attempt.done() and attempt.exception() is None:
                    attempts.remove(attempt)
                    return attempt.result()
            if not left and all(attempt.done() for attempt in attempts):
                return attempts[-1].result()
    finally:
        for attempt in attempts:
            if not attempt.cancel() and attempt.exception() is None:
                attempt.result().close()


async def _connect(loop: asyncio.AbstractEventLoop, address: Address) -> socket:
    family, place = address
    connecting = socket(family, SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await loop.sock_connect(connecting, place)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _refused(why: str) -> Fault:
    return Fault(Code.UPSTREAM_REFUSED, why)
