"""When the garbage collector may look at everything there is.

A full collection looks at every container object once and stops all threads meanwhile: some 20 ms
of an idle core with 1,000 nodes connected, several times that on a busy one. A refresh makes many
objects and no cycles, but their number alone would start one, in the middle of an apply and of
everybody's streams. Objects that live as long as the process are worth no look at all.

Nothing here decides what is collected, only when. Young objects are collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1


def settle() -> None:
    """What there is now lives as long as the process: keep the collector from looking at it again.

    To be called once, when everything has been built and nothing has happened yet: what is settled
    is freed by its last reference alone.
    """
    gc.collect()
    gc.freeze()


class FullCollections:
    """Holds full collections back. One of it serves a process, since the collector does."""

    def __init__(self) -> None:
        self._holders = 0
        self._usual = gc.get_threshold()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No full collection begins by itself within the block; one that is due comes after it."""
        if not self._holders:
            self._usual = gc.get_threshold()
            young, middle, _ = self._usual
            gc.set_threshold(young, middle, _NEVER)
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                gc.set_threshold(*self._usual)


full_collections = FullCollections()
