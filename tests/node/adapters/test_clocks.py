from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from iop_node.adapters.clocks import Alarm, CallClocks
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_shared.errors import Code, Fault


def clocks(deadline_s: float | None = None, **limits: float) -> CallClocks:
    return CallClocks(UpstreamSpec(base_url="http://h", **limits), Alarm(), deadline_s)


@contextlib.contextmanager
def scope(running: CallClocks) -> Iterator[None]:
    """As the client does it."""
    running.start()
    try:
        yield
    except BaseException as error:
        running.end(error)
        raise
    running.end(None)


async def code_of(running: CallClocks, *phases: str) -> Code:
    with pytest.raises(Fault) as timed_out, scope(running):
        for phase in phases:
            getattr(running, phase)()
        await asyncio.Event().wait()
    return timed_out.value.code


@pytest.mark.parametrize(
    ("phase", "limit", "code"),
    [
        ("connecting", "connect_timeout_s", Code.UPSTREAM_CONNECT_TIMEOUT),
        ("awaiting_first_byte", "first_byte_timeout_s", Code.UPSTREAM_FIRST_BYTE_TIMEOUT),
        ("awaiting_next_byte", "idle_timeout_s", Code.UPSTREAM_IDLE_TIMEOUT),
    ],
)
async def test_each_phase_has_its_own_limit_and_code(phase, limit, code):
    assert await code_of(clocks(**{limit: 0.01}), phase) is code


async def test_the_last_phase_begun_is_the_one_that_counts():
    running = clocks(connect_timeout_s=0.01, first_byte_timeout_s=0.02)
    assert await code_of(running, "connecting", "awaiting_first_byte") is (
        Code.UPSTREAM_FIRST_BYTE_TIMEOUT
    )


async def test_a_pause_stops_every_phase_and_never_the_total():
    running = clocks(connect_timeout_s=0.01, total_timeout_s=0.03)
    assert await code_of(running, "connecting", "pause") is Code.UPSTREAM_TOTAL_TIMEOUT


@pytest.mark.parametrize(("deadline_s", "total_s"), [(0.01, 60.0), (60.0, 0.01), (None, 0.01)])
async def test_the_shorter_of_deadline_and_total_counts(deadline_s, total_s):
    running = clocks(deadline_s, total_timeout_s=total_s)
    assert await code_of(running, "awaiting_first_byte") is Code.UPSTREAM_TOTAL_TIMEOUT


async def test_a_cancellation_from_outside_stays_one():
    begun = asyncio.Event()

    async def body() -> None:
        running = clocks()
        with scope(running):
            running.connecting()
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_body_is_not_taken_for_a_timeout():
    with pytest.raises(LookupError), scope(clocks()):
        raise LookupError


async def pass_the_limit() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


@pytest.mark.parametrize("end", ["stopped", "left"])
async def test_a_phase_that_begins_after_the_end_is_no_timeout(end):
    """A request body may still be on its way when the answer is complete."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    running = clocks(first_byte_timeout_s=0.001)
    with scope(running):
        if end == "stopped":
            running.stop()
            running.awaiting_first_byte()
            await pass_the_limit()
    running.awaiting_first_byte()
    await pass_the_limit()
    assert not errors
