"""The clocks of one upstream call: connect, first byte, idle, total. All monotonic.

They decide when a call has taken too long and which of its phases is to blame. They know no
socket: whoever talks to one says which phase runs.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_shared.errors import Code, Fault

_SAYS = {
    Code.UPSTREAM_CONNECT_TIMEOUT: "the upstream took no connection within {:g} s",
    Code.UPSTREAM_FIRST_BYTE_TIMEOUT: "the upstream sent no answer within {:g} s",
    Code.UPSTREAM_IDLE_TIMEOUT: "the upstream fell silent for {:g} s in the middle of its answer",
    Code.UPSTREAM_TOTAL_TIMEOUT: "the upstream's answer was not complete within {:g} s",
}

# A timer may be called early by the resolution of the loop's clock.
_RESOLUTION_S = 0.001


class CallClocks:
    """A scope that ends its body with Fault(upstream_*_timeout). Used as `async with`.

    One phase runs at a time, or none while the other side is waited for; the total always runs.
    Moving a deadline later, as every chunk does, costs one look at the clock: the timer finds
    out when it fires.
    """

    def __init__(self, spec: UpstreamSpec, deadline_s: float | None = None) -> None:
        self._spec = spec
        self._total_s = min(spec.total_timeout_s, deadline_s or math.inf)
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = -math.inf
        self._total_due = math.inf
        self._due = math.inf
        self._code = Code.UPSTREAM_TOTAL_TIMEOUT
        self._limit_s = self._total_s
        self._blamed: tuple[Code, float] | None = None

    def connecting(self) -> None:
        self._run(Code.UPSTREAM_CONNECT_TIMEOUT, self._spec.connect_timeout_s)

    def awaiting_first_byte(self) -> None:
        self._run(Code.UPSTREAM_FIRST_BYTE_TIMEOUT, self._spec.first_byte_timeout_s)

    def awaiting_next_byte(self) -> None:
        self._run(Code.UPSTREAM_IDLE_TIMEOUT, self._spec.idle_timeout_s)

    def pause(self) -> None:
        """The upstream is not to blame from here on: it is we, or the caller, who is slow."""
        self._due = math.inf

    def stop(self) -> None:
        """Nothing that happens from here on is a timeout: what was asked for is there."""
        self._due = self._total_due = math.inf
        # No phase that is still begun, by a body on its way, arms the timer again.
        self._armed_for = -math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._total_due = self._loop.time() + self._total_s
        self._arm()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._blamed is None:
                raise
            code, limit_s = self._blamed
            raise Fault(code, _SAYS[code].format(limit_s)) from None

    def _run(self, code: Code, limit_s: float) -> None:
        self._code = code
        self._limit_s = limit_s
        self._due = self._loop.time() + limit_s
        if self._due < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = min(self._due, self._total_due)
        self._timer = self._loop.call_at(self._armed_for, self._fire)

    def _fire(self) -> None:
        now = self._loop.time() + _RESOLUTION_S
        if now >= self._due:
            self._blamed = (self._code, self._limit_s)
        elif now >= self._total_due:
            self._blamed = (Code.UPSTREAM_TOTAL_TIMEOUT, self._total_s)
        else:
            self._arm()
            return
        self._timer = None
        self._scope.reschedule(self._loop.time())
