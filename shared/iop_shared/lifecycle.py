"""How a process begins to stop, and how it ends.

The first SIGTERM or SIGINT asks for a drain; a second one ends the process at once with a status
of its own, whatever still runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iop_shared import early_signals

EXIT_SECOND_SIGNAL = 7


@contextmanager
def stop_signals(
    ask_to_drain: Callable[[], None], *, on_hangup: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within the block, route signals of this process: drain, end at once, and SIGHUP.

    Must be entered inside a running loop, in the main thread. `ask_to_drain` is called once. What
    `early_signals` has held back until now is taken too.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            # Nothing may hold this up: no handler, no buffer, no thread.
            os._exit(EXIT_SECOND_SIGNAL)
        asked = True
        ask_to_drain()

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: stop,
        signal.SIGINT: stop,
    }
    if on_hangup is not None:
        handlers[signal.SIGHUP] = on_hangup
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    early_signals.deliver(handlers)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
