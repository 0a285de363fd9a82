"""A signal that comes too early is taken late, and not lost."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from iop_shared import early_signals
from iop_shared.lifecycle import stop_signals


@pytest.mark.req("OPS-3")
async def test_a_signal_that_was_held_back_asks_to_drain_as_soon_as_somebody_listens() -> None:
    asked, told_anew = asyncio.Event(), asyncio.Event()
    with early_signals.held(signal.SIGTERM, signal.SIGHUP):
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert {signal.SIGTERM, signal.SIGHUP} <= signal.sigpending()
        with stop_signals(asked.set, on_hangup=told_anew.set):
            async with asyncio.timeout(10):
                await asked.wait()
                await told_anew.wait()


@pytest.mark.req("OPS-3")
def test_nothing_is_held_back_behind_the_block() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with early_signals.held(signal.SIGTERM):
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
