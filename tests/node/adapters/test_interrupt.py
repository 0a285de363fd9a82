from __future__ import annotations

import asyncio

import pytest

from iop_node.adapters.interrupt import Interrupt


async def interrupted(interrupt, begun, error_seen):
    interrupt.arm()
    try:
        begun.set()
        await asyncio.Event().wait()
    except BaseException as error:
        error_seen.append(interrupt.accounts_for(error))
        if not error_seen[0]:
            raise


@pytest.fixture
async def running():
    interrupt, begun, seen = Interrupt(), asyncio.Event(), []
    task = asyncio.create_task(interrupted(interrupt, begun, seen))
    await begun.wait()
    return interrupt, task, seen


async def test_what_it_has_ended_is_its_own(running):
    interrupt, task, seen = running
    interrupt.make()
    interrupt.make()
    await task
    assert seen == [True]
    assert not task.cancelling()


async def test_what_another_has_cancelled_is_not(running):
    _, task, seen = running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [False]


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_another_has_cancelled_as_well_is_not(running, is_first):
    interrupt, task, seen = running
    for end in (interrupt.make, task.cancel) if is_first else (task.cancel, interrupt.make):
        end()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [False]


async def test_an_error_of_the_task_is_not_even_where_it_was_to_be_ended():
    interrupt = Interrupt()
    interrupt.arm()
    assert not interrupt.accounts_for(LookupError())
    assert not interrupt.accounts_for(None)
