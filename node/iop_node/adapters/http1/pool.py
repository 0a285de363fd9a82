"""The connections to one upstream: which one a request may be written to.

A request that was written may have been received, and is never silently sent again (POOL-13). So
everything depends on not writing to a connection that has ended. Three things are looked at right
before the first byte: the transport's own state; whether something can be read, which on an idle
connection can only be its end; and whether it has just carried a chunked answer, because common
servers announce keep-alive and close after a stream all the same, a moment later. What is found
unfit is closed, what must rest is left to rest, and the request goes out on another connection.

There is no limit on connections (the pool's slots at the edge are the limit). An idle one is
closed after less time than common servers keep theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from functools import cache

from iop_node.adapters.http1.connection import Connection
from iop_node.adapters.http1.dial import dial
from iop_node.adapters.http1.endpoint import Origin
from iop_node.adapters.http1.reader import closed

KEEPALIVE_S = 4.0
SETTLE_S = 0.25
"""How long a connection rests after a chunked answer before it is trusted again."""
SWEEP_S = 1.0
"""How often idle connections are looked through for those that have been so for too long."""


class _Idle:
    """Idle connections to one origin. Those that have ended meanwhile are found when taken."""

    __slots__ = ("ready", "resting")

    def __init__(self) -> None:
        self.ready: deque[Connection] = deque()
        """The one that was used last is at the end."""
        self.resting: deque[Connection] = deque()


class ConnectionPool:
    """The connections of one adapter. `stop` is called once, in the loop."""

    def __init__(self, *, tls: ssl.SSLContext | None, allow_link_local: bool) -> None:
        self._tls = tls
        self._allow_link_local = allow_link_local
        self._idle: dict[Origin, _Idle] = {}
        self._open: set[Connection] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        idle = sum(len(each.ready) + len(each.resting) for each in self._idle.values())
        return f"ConnectionPool({len(self._open)} open, {idle} idle)"

    def take(self, origin: Origin) -> Connection | None:
        """The connection used last of those that nothing speaks against. It must be written to
        before anything else is awaited, or its fitness means nothing."""
        idle = self._idle.get(origin)
        if idle is None:
            return None
        now = asyncio.get_running_loop().time()
        ready, resting = idle.ready, idle.resting
        while resting and resting[0].usable_from <= now:
            ready.append(resting.popleft())
        while ready:
            connection = ready.pop()
            if now < connection.usable_until and connection.is_fit():
                return connection
            connection.abort()
        return None

    async def connect(self, origin: Origin) -> Connection:
        """A fresh connection, open at this moment. Raises Fault(upstream_refused, …_closed)."""
        tls = self._tls
        if origin.is_tls and tls is None:
            tls = await asyncio.to_thread(system_tls)
        connection = await dial(
            origin,
            lambda: Connection(origin, self),
            tls=tls if origin.is_tls else None,
            allow_link_local=self._allow_link_local,
        )
        if self._all_lost is not None:
            connection.abort()
        if not connection.is_open:
            raise closed()
        # Not as the loop makes it: a loop may give up one that nobody waits for, without a word.
        self._open.add(connection)
        return connection

    async def stop(self) -> None:
        """Close every connection, used or idle; returns when none is left."""
        self._all_lost = asyncio.get_running_loop().create_future()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._idle.clear()
        if self._open:
            for connection in tuple(self._open):
                connection.abort()
            await self._all_lost

    # --- called by the connections ------------------------------------------------------------

    def freed(self, connection: Connection, *, after_chunked: bool) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        connection.usable_until = now + KEEPALIVE_S
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = _Idle()
        if after_chunked:
            connection.usable_from = now + SETTLE_S
            idle.resting.append(connection)
        else:
            idle.ready.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(SWEEP_S, self._sweep)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    # ------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweep_timer = None
        for origin, idle in tuple(self._idle.items()):
            for waiting in (idle.ready, idle.resting):
                while waiting and (waiting[0].usable_until <= now or not waiting[0].is_open):
                    waiting.popleft().abort()
            if not idle.ready and not idle.resting:
                del self._idle[origin]
        if self._idle:
            self._sweep_timer = loop.call_later(SWEEP_S, self._sweep)


@cache
def system_tls() -> ssl.SSLContext:
    """Trusts what the system trusts. Made once, since it reads a few hundred certificates."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
