"""Ends what one task does, from outside, and tells that from every other cancellation.

As `asyncio.timeout` does it, but it costs nothing until it is used, and never awaits.
"""

from __future__ import annotations

import asyncio


class Interrupt:
    """Armed by the task that is to be interrupted."""

    __slots__ = ("_cancelling", "_is_made", "_task")

    def arm(self) -> None:
        """From now on `make` interrupts this task."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be interrupted"
        self._task: asyncio.Task[object] = task
        self._cancelling = task.cancelling()
        self._is_made = False

    def make(self) -> None:
        """Interrupt. A second time changes nothing."""
        if not self._is_made:
            self._is_made = True
            self._task.cancel()

    def accounts_for(self, error: BaseException | None) -> bool:
        """Whether `error` came of this, and nobody else has cancelled the task. Asked once, by the
        task, at the end of what could be interrupted."""
        if not self._is_made:
            return False
        is_the_only_one = self._task.uncancel() <= self._cancelling
        return is_the_only_one and isinstance(error, asyncio.CancelledError)
