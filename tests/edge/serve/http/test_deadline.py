"""The lazy deadline, on a clock that the test moves."""

import asyncio
from collections.abc import Callable
from typing import Any

from iop_edge.serve.http.deadline import Deadline


class Timer:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """As much of a loop as a deadline needs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.missed: list[float] = []
        loop: Any = self
        self.deadline = Deadline(loop, lambda: self.missed.append(self.now))

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, callback))
        return self.timers[-1]

    def advance(self, to: float) -> None:
        while due := [t for t in self.timers if not t.is_cancelled and t.at <= to]:
            timer = min(due, key=lambda each: each.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.callback()
        self.now = to


def test_a_deadline_is_missed_once_and_on_time() -> None:
    clock = Clock()
    clock.deadline.within(5)
    clock.advance(4.9)
    assert clock.missed == []
    clock.advance(100)
    assert clock.missed == [5]
    assert not clock.deadline.is_set


def test_a_deadline_that_is_put_off_sets_no_further_timer_until_the_first_fires() -> None:
    clock = Clock()
    clock.deadline.within(5)
    for now in (1, 2, 3, 4):
        clock.advance(now)
        clock.deadline.within(5)
    assert len(clock.timers) == 1
    clock.advance(8.9)
    assert clock.missed == []
    clock.advance(9)
    assert clock.missed == [9]


def test_a_deadline_that_is_brought_forward_is_missed_earlier() -> None:
    clock = Clock()
    clock.deadline.within(75)
    clock.deadline.within(10)
    clock.advance(10)
    assert clock.missed == [10]


def test_a_deadline_that_is_cleared_or_closed_is_never_missed() -> None:
    clock = Clock()
    clock.deadline.within(5)
    clock.deadline.clear()
    clock.advance(50)
    clock.deadline.within(5)
    clock.deadline.close()
    clock.advance(100)
    assert clock.missed == []
    assert all(timer.is_cancelled for timer in clock.timers)


async def test_it_works_on_a_real_loop() -> None:
    missed = asyncio.Event()
    Deadline(asyncio.get_running_loop(), missed.set).within(0.001)
    async with asyncio.timeout(5):
        await missed.wait()
