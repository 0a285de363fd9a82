"""A caller who hangs up frees the slot and closes the upstream connection within a second.

The second is the deadline of each wait, not something that is measured.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from e2e_harness import HANG_UP_DEADLINE_S, Edge, Upstream, chat, prompt

pytestmark = pytest.mark.e2e


@pytest.mark.req("NODE-7", "POOL-6")
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_caller_who_hangs_up_before_the_first_byte_closes_the_upstream(
    edge: Edge, upstream: Upstream, stream: bool
) -> None:
    tag = f"silent-{stream}"
    await upstream.plan(tag, hold_before_head=True)
    async with edge.call(chat("one", prompt(tag), stream=stream)) as call:
        await upstream.seen(tag, "held")
        call.hang_up()
        await upstream.seen(tag, "closed", within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)


@pytest.mark.req("NODE-7", "POOL-6")
async def test_a_caller_who_hangs_up_mid_stream_closes_the_upstream(
    edge: Edge, upstream: Upstream
) -> None:
    await upstream.plan("mid", hold_after=3)
    async with edge.call(chat("one", prompt("mid"), stream=True)) as call:
        await upstream.seen("mid", "held")
        await call.until(b"data: ")
        call.hang_up()
        await upstream.seen("mid", "closed", within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)


@pytest.mark.req("NODE-7", "POOL-5", "POOL-6")
async def test_a_caller_who_hangs_up_while_queued_leaves_the_queue_and_never_runs(
    edge: Edge, upstream: Upstream
) -> None:
    await upstream.plan("holder", hold_after=1)
    async with edge.call(chat("one", prompt("holder"), stream=True)) as holder:
        await upstream.seen("holder", "held")
        async with edge.call(chat("one", prompt("waiter"), stream=True)) as waiter:
            await edge.until(lambda status: status["queue"]["pending"] == 1)
            waiter.hang_up()
            await edge.until(
                lambda status: status["queue"]["pending"] == 0, within_s=HANG_UP_DEADLINE_S
            )
        await upstream.release("holder")
        assert b"[DONE]" in await holder.rest()
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)
    assert not await upstream.seen_so_far("waiter", "opened")


@pytest.mark.req("POOL-6")
async def test_thirty_callers_who_hang_up_give_back_thirty_slots(
    edge: Edge, upstream: Upstream
) -> None:
    await upstream.plan("many", hold_before_head=True)
    async with AsyncExitStack() as calls_end:
        calls = [
            await calls_end.enter_async_context(
                edge.call(chat("pair", prompt("many", str(i)), stream=i % 2 == 0))
            )
            for i in range(30)
        ]
        await upstream.seen("many", "held", count=30)
        for call in calls:
            call.hang_up()
        await upstream.seen("many", "closed", count=30, within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)
