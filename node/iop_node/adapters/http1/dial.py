"""Opens a connection: resolve, judge the addresses, connect to one of those judged, speak TLS.

Names are judged where they are dialled, since one may come to mean another address. What is
connected to is the very address that was judged. The loop makes the socket itself: uvloop takes
over one of ours only after a moment in which a connection that ends leaves it closed twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from itertools import zip_longest
from socket import SOCK_STREAM
from typing import TypeVar

from iop_node.adapters.http1.endpoint import Origin
from iop_node.adapters.upstream_url import is_link_local
from iop_shared.errors import Code, Fault

HEAD_START_S = 0.25
"""How long one address of several is tried alone before the next one is tried beside it."""


class Abortable(asyncio.Protocol):
    """What is made for a connection."""

    def abort(self) -> None:
        raise NotImplementedError


Made = TypeVar("Made", bound=Abortable)


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
    addresses = await _resolve(origin)
    if not allow_link_local:
        addresses = [each for each in addresses if not is_link_local(each)]
        if not addresses:
            raise _refused("link-local and metadata addresses are not dialled")
    loop = asyncio.get_running_loop()

    async def connect(address: str) -> Made:
        _, made = await loop.create_connection(
            make,
            address,
            origin.port,
            ssl=tls,
            server_hostname=None if tls is None else origin.host.rstrip("."),
        )
        return made

    try:
        if len(addresses) == 1:
            return await connect(addresses[0])
        return await _connect_first(connect, addresses)
    except ssl.SSLError:
        raise _refused("no TLS session with the upstream came about") from None
    except OSError:
        raise _refused("the upstream took no connection") from None


async def _resolve(origin: Origin) -> list[str]:
    """In the order to be tried: the resolver's, with the families in turn (RFC 8305)."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _refused("the upstream's name could not be resolved") from None
    families: dict[int, list[str]] = {}
    for family, _, _, _, place in found:
        address, scope = str(place[0]), place[3] if len(place) == 4 else 0
        if scope and "%" not in address:
            address += f"%{scope}"
        families.setdefault(family, []).append(address)
    in_turn = (each for tier in zip_longest(*families.values()) for each in tier if each)
    return list(dict.fromkeys(in_turn))


async def _connect_first(
    connect: Callable[[str], Coroutine[object, object, Made]], addresses: Sequence[str]
) -> Made:
    """Connect to whichever address answers first. Raises OSError where none does."""
    left = list(addresses)
    attempts: list[asyncio.Task[Made]] = []
    try:
        while True:
            if left:
                attempts.append(asyncio.create_task(connect(left.pop(0))))
            await asyncio.wait(
                [each for each in attempts if not each.done()],
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
                attempt.result().abort()


def _refused(why: str) -> Fault:
    return Fault(Code.UPSTREAM_REFUSED, why)
