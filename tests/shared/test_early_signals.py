"""A signal that comes too early is taken late, and not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from iop_shared import early_signals

TAKES_WHAT_CAME_EARLY = """
import asyncio, os, signal
from iop_shared import early_signals
from iop_shared.lifecycle import stop_signals

async def main():
    asked, told_anew = asyncio.Event(), asyncio.Event()
    with early_signals.held(signal.SIGTERM, signal.SIGHUP):
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert {signal.SIGTERM, signal.SIGHUP} <= signal.sigpending()
        with stop_signals(asked.set, on_hangup=told_anew.set):
            async with asyncio.timeout(10):
                await asked.wait()
                await told_anew.wait()

asyncio.run(main())
print("both were taken")
"""


@pytest.mark.req("OPS-3")
def test_a_signal_that_was_held_back_asks_to_drain_as_soon_as_somebody_listens() -> None:
    # In a process of its own: in one with threads that hold nothing back, it goes to one of them.
    command = [sys.executable, "-c", TAKES_WHAT_CAME_EARLY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "both were taken\n"), ended.stderr


@pytest.mark.req("OPS-3")
def test_nothing_is_held_back_behind_the_block() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with early_signals.held(signal.SIGTERM):
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
