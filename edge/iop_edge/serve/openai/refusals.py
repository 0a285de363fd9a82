"""Requests that were refused before they became a run: what is written and counted of them.

A run has its record, whatever comes of it. What is refused earlier (a wrong token, a path that is
none, a body that asks for nothing) has a line here, by the id that its caller was told, and a
count by its code. The code is all that is told: everything else is the caller's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from iop_edge.runtime.line_quota import LineQuota
from iop_edge.serve.http.request import Request
from iop_shared import logs
from iop_shared.errors import Code, Fault

log = logs.get("openai")


class Refusals:
    """One surface's. `count` is told every code; lines have a quota, since callers cause them."""

    def __init__(self, count: Callable[[Code], None]) -> None:
        self._count = count
        self._quota = LineQuota()

    def note(self, request: Request, fault: Fault) -> None:
        self._count(fault.code)
        if self._quota.allows(time.monotonic()):
            suppressed = self._quota.take_suppressed()
            more = {"suppressed_lines": suppressed} if suppressed else {}
            log.info(
                "request_refused", request_id=request.request_id, code=fault.code.value, **more
            )
