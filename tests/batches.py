"""Reading a session's end without a transport: its batches, one after the other."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from iop_shared.session_end import SessionEnd

Batch = TypeVar("Batch")


async def next_batch(end: SessionEnd[object, object, Batch]) -> Batch | None:
    """What waits, as soon as something does; None once the session is over and all is taken."""
    something = asyncio.Event()
    end.attach(something.set)
    while (batch := end.take_batch()) is None and end.is_open:
        something.clear()
        await something.wait()
    return batch
