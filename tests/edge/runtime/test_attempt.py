"""One attempt as its run reads it."""

from __future__ import annotations

import asyncio
import sys
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


class Received:
    size = 0

    def received(self, size: int) -> None:
        self.size += size

    def consumed(self, size: int) -> int:
        self.size -= size
        return 0


@pytest.mark.req("NODE-8")
async def test_small_pieces_that_nobody_takes_hold_little_more_than_their_bytes():
    one, window = attempt(), Received()
    one._receive_window = cast(Any, window)
    sent = [bytes([number % 256]) for number in range(20_000)]
    for content in sent:
        one.on_chunk(content)
    held = sum(sys.getsizeof(chunk) for chunk in one._chunks)
    assert held < 2 * len(sent)
    assert await one.next_chunk() == b"".join(sent)
    assert window.size == 0
    one.on_chunk(b"alone")
    assert type(await one.next_chunk()) is bytes


class Closed:
    def close(self) -> None:
        pass
