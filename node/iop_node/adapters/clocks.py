"""The clocks of upstream calls: connect, first byte, idle, total. All monotonic.

They decide when a call has taken too long and which of its phases is to blame. They know no
socket: whoever talks to one says which phase runs. Making and cancelling a timer costs more than
all the rest of a clock, so the calls of one upstream share one: it fires when the first of them
could be due, and asks.
"""

from __future__ import annotations

import asyncio
import math

from iop_node.adapters.interrupt import Interrupt
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


class Alarm:
    """One timer for all calls that run. Set for the earliest time at which one of them could be
    due; moving such a time later costs nothing until then."""

    def __init__(self) -> None:
        self._calls: set[CallClocks] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._set_for = math.inf

    def add(self, call: CallClocks) -> None:
        self._calls.add(call)

    def remove(self, call: CallClocks) -> None:
        self._calls.discard(call)

    def set_for(self, due: float) -> None:
        """Ring at `due`, in the loop's time, or earlier."""
        if due < self._set_for:
            if self._timer is not None:
                self._timer.cancel()
            self._set_for = due
            self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._set_for = math.inf

    def _ring(self) -> None:
        self._timer = None
        self._set_for = math.inf
        now = asyncio.get_running_loop().time() + _RESOLUTION_S
        for call in tuple(self._calls):
            call.check(now)
        if self._calls:
            self.set_for(min(call.due for call in self._calls))


class CallClocks(Interrupt):
    """Between `start` and `end`, cancels the task that called `start` when a time has run out.
    `end` turns that cancellation, and no other, into Fault(upstream_*_timeout).

    One phase runs at a time, or none while the other side is waited for; the total always runs.
    """

    __slots__ = (
        "_alarm",
        "_blamed",
        "_code",
        "_limit_s",
        "_loop",
        "_phase_due",
        "_spec",
        "_total_due",
        "_total_s",
    )

    def __init__(self, spec: UpstreamSpec, alarm: Alarm, deadline_s: float | None = None) -> None:
        self._spec = spec
        self._alarm = alarm
        self._total_s = spec.total_timeout_s
        if deadline_s and deadline_s < self._total_s:
            self._total_s = deadline_s
        self._total_due = self._phase_due = math.inf
        self._blamed = (Code.UPSTREAM_TOTAL_TIMEOUT, self._total_s)

    @property
    def due(self) -> float:
        """The earliest time at which this call has taken too long, as things stand."""
        return min(self._phase_due, self._total_due)

    def start(self) -> None:
        """The total runs from now on; no phase does yet."""
        self.arm()
        self._loop = asyncio.get_running_loop()
        self._total_due = self._loop.time() + self._total_s
        self._alarm.add(self)
        self._alarm.set_for(self._total_due)

    def connecting(self) -> None:
        self._run(Code.UPSTREAM_CONNECT_TIMEOUT, self._spec.connect_timeout_s)

    def awaiting_first_byte(self) -> None:
        self._run(Code.UPSTREAM_FIRST_BYTE_TIMEOUT, self._spec.first_byte_timeout_s)

    def awaiting_next_byte(self) -> None:
        self._run(Code.UPSTREAM_IDLE_TIMEOUT, self._spec.idle_timeout_s)

    def pause(self) -> None:
        """The upstream is not to blame from here on: it is we, or the caller, who is slow."""
        self._phase_due = math.inf

    def stop(self) -> None:
        """Nothing that happens from here on is a timeout: what was asked for is there."""
        self._alarm.remove(self)

    def end(self, error: BaseException | None) -> None:
        """Stop, after a call that ended with `error`.

        Raises Fault(upstream_*_timeout) where `error` is the cancellation that came of a clock.
        """
        self._alarm.remove(self)
        if self.accounts_for(error):
            code, limit_s = self._blamed
            raise Fault(code, _SAYS[code].format(limit_s)) from None

    def check(self, now: float) -> None:
        """Called by the alarm: end the call where its time has run out."""
        if now >= self._phase_due:
            self._blamed = (self._code, self._limit_s)
        elif now < self._total_due:
            return
        self._alarm.remove(self)
        self.make()

    def _run(self, code: Code, limit_s: float) -> None:
        self._code = code
        self._limit_s = limit_s
        self._phase_due = due = self._loop.time() + limit_s
        self._alarm.set_for(due)
