from __future__ import annotations

import asyncio

import pytest

from iop_shared.rpc import stalls
from iop_shared.rpc.stalls import StallWatch

pytestmark = pytest.mark.usefixtures("errors")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_TIMEOUT_S", 0.001)


async def test_it_looks_for_as_long_as_there_is_something_to_see() -> None:
    looks = 0
    done = asyncio.Event()

    def look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            done.set()
        return looks < 3

    watch = StallWatch(asyncio.get_running_loop(), look)
    watch.begin()
    watch.begin()
    await done.wait()
    assert looks == 3
    assert watch._timer is None
    watch.begin()
    timer = watch._timer
    watch.end()
    assert timer is not None
    assert timer.cancelled()


async def test_it_does_not_look_before_something_waits() -> None:
    watch = StallWatch(asyncio.get_running_loop(), lambda: pytest.fail("it looked"))
    watch.end()
    assert watch._timer is None
