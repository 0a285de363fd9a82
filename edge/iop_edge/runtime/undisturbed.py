"""How heavy work keeps out of the way of the runs that go on meanwhile.

Two things of the interpreter's own stop a loop while a thread proves a candidate:

*Full collections.* One looks at every container object once and stops all threads meanwhile: some
20 ms of an idle core with 1,000 nodes connected, several times that on a busy one. A refresh makes
many objects and no cycles, but their number alone would start one, in the middle of an apply and
of everybody's streams. Young objects are collected as ever.

*The switch interval.* A loop that wakes up waits until the thread that computes gives way: 5 ms as
it comes, at every step of every run. With 0.5 ms it waits a tenth of that, and the work costs no
more that could be measured.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0005

_NEVER = 2**31 - 1


def settle() -> None:
    """What there is now lives as long as the process: keep the collector from looking at it again.

    To be called once, when everything has been built and nothing has happened yet: what is settled
    is freed by its last reference alone.
    """
    gc.collect()
    gc.freeze()


class Interpreter:
    """The settings of the interpreter, which are one for the whole process."""

    def __init__(self) -> None:
        self._holders = 0
        self._threshold = gc.get_threshold()
        self._interval_s = sys.getswitchinterval()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Within the block, no full collection begins by itself, and threads give way soon. What
        was set before is set again after the last such block."""
        if not self._holders:
            self._threshold = gc.get_threshold()
            self._interval_s = sys.getswitchinterval()
            young, middle, _ = self._threshold
            gc.set_threshold(young, middle, _NEVER)
            sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._interval_s))
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                gc.set_threshold(*self._threshold)
                sys.setswitchinterval(self._interval_s)


interpreter = Interpreter()
