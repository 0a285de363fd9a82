"""One attempt as its run reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from iop_edge.runtime.attempt import Attempt


def attempt() -> Attempt:
    return Attempt(cast(Any, None), 1, receive_window=cast(Any, None), send_window=cast(Any, None))


@pytest.mark.req("CFG-19")
async def test_a_deadline_is_kept_by_a_loop_that_calls_a_little_early(
    monkeypatch: pytest.MonkeyPatch,
):
    """Some loops round a delay to whole milliseconds, so that it is not over when they call."""
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    calls: list[float] = []

    def early(when: float, callback: Callable[[], None], **more: Any) -> asyncio.TimerHandle:
        calls.append(when)
        return call_at(loop.time() if len(calls) < 3 else when, callback, **more)

    deadline = loop.time() + 0.02
    async with asyncio.timeout(10):
        monkeypatch.setattr(loop, "call_at", early)
        assert not await attempt().has_arrived(deadline)
    assert loop.time() >= deadline
    assert len(calls) >= 3


@pytest.mark.req("CFG-19")
async def test_what_ends_before_the_deadline_is_no_waiting():
    one = attempt()
    waiting = asyncio.ensure_future(one.has_arrived(asyncio.get_running_loop().time() + 60))
    one._receive_window = cast(Any, Closed())
    await asyncio.sleep(0)
    one.on_end(None)
    assert await waiting
    assert await one.has_arrived(None)


class Closed:
    def close(self) -> None:
        pass
