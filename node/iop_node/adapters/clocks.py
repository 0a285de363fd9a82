"""The clocks of one upstream call: connect, first byte, idle, total. All monotonic.

They decide when a call has taken too long and which of its phases is to blame. They know no
socket: whoever talks to one says which phase runs.
"""

from __future__ import annotations

import asyncio
import math

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
    """Between `start` and `end`, cancels the task that called `start` when a time has run out.
    `end` turns that cancellation, and no other, into Fault(upstream_*_timeout).

    One phase runs at a time, or none while the other side is waited for; the total always runs.
    Moving a deadline later, as every chunk does, costs one look at the clock: the timer finds
    out when it fires.
    """

    __slots__ = (
        "_armed_for",
        "_blamed",
        "_cancelling",
        "_code",
        "_due",
        "_is_over",
        "_limit_s",
        "_loop",
        "_spec",
        "_task",
        "_timer",
        "_total_due",
        "_total_s",
    )

    def __init__(self, spec: UpstreamSpec, deadline_s: float | None = None) -> None:
        self._spec = spec
        self._total_s = min(spec.total_timeout_s, deadline_s or math.inf)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._total_due = math.inf
        self._due = math.inf
        self._is_over = False
        self._code = Code.UPSTREAM_TOTAL_TIMEOUT
        self._limit_s = self._total_s
        self._blamed: tuple[Code, float] | None = None

    def start(self) -> None:
        """The total runs from now on; a phase has to be begun."""
        self._task = asyncio.current_task()
        assert self._task is not None, "a call is made by a task"
        self._cancelling = self._task.cancelling()
        self._total_due = self._loop.time() + self._total_s

    def connecting(self) -> None:
        self._run(Code.UPSTREAM_CONNECT_TIMEOUT, self._spec.connect_timeout_s)

    def awaiting_first_byte(self) -> None:
        self._run(Code.UPSTREAM_FIRST_BYTE_TIMEOUT, self._spec.first_byte_timeout_s)

    def awaiting_next_byte(self) -> None:
        self._run(Code.UPSTREAM_IDLE_TIMEOUT, self._spec.idle_timeout_s)

    def pause(self) -> None:
        """The upstream is not to blame from here on: it is we, or the caller, who is slow."""
        self._due = math.inf
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Nothing that happens from here on is a timeout: what was asked for is there."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self, error: BaseException | None) -> None:
        """Stop, after a call that ended with `error`.

        Raises Fault(upstream_*_timeout) where `error` is the cancellation that came of a clock.
        """
        self.stop()
        if self._blamed is None or self._task is None:
            return
        is_ours_alone = self._task.uncancel() <= self._cancelling
        if is_ours_alone and isinstance(error, asyncio.CancelledError):
            code, limit_s = self._blamed
            raise Fault(code, _SAYS[code].format(limit_s)) from None

    def _run(self, code: Code, limit_s: float) -> None:
        self._code = code
        self._limit_s = limit_s
        self._due = due = self._loop.time() + limit_s
        if self._timer is None or due < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._is_over:
            return
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
        self.stop()
        assert self._task is not None
        self._task.cancel()
