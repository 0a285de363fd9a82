"""Signals that come while a process still loads what it is made of.

Nobody handles them yet. The first process of a container loses such a signal without a trace, and
is killed in the middle of its work when its supervisor's patience is over; any other process dies
of a mere SIGHUP. Held back, a signal is only late. Light to import: it stands before all that is
not.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def held(*numbers: signal.Signals) -> Iterator[None]:
    """Within the block these signals wait for `deliver`, for this thread and all that it begins.

    At its end they are let through where they were before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deliver(numbers: Iterable[signal.Signals]) -> None:
    """Let these signals through, those that have waited first of all. In the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
