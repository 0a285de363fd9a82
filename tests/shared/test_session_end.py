"""What both ends do alike, on each of the loops that the processes and the tests run on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
import uvloop

from iop.runtime_pb2 import Heartbeat
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import Chunk
from iop_shared.session_end import SessionEnd
from tests.batches import next_batch


class PlainEnd(SessionEnd[Heartbeat, Heartbeat, list[Heartbeat | Chunk]]):
    def __init__(self, interval_s: float, silence_limit_s: float) -> None:
        now = asyncio.get_running_loop().time()
        super().__init__(1, Liveness(now, interval_s, silence_limit_s))
        self.over = asyncio.Event()
        self.ticks = 0

    def _batch(self, items: Iterable[Heartbeat | Chunk]) -> list[Heartbeat | Chunk]:
        return list(items)

    def _heartbeat(self, heartbeat: Heartbeat) -> Heartbeat:
        return heartbeat

    def _receive(self, frame: Heartbeat) -> None:
        self._answer_beat(frame)

    def _closed(self, reason: str) -> None:
        self.over.set()

    def _ticked(self) -> None:
        self.ticks += 1


@pytest.mark.req("NODE-6")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_end_beats_while_nothing_is_said_and_gives_a_silent_peer_up(run: object) -> None:
    faults: list[dict[str, object]] = []

    async def play() -> tuple[int, str | None]:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        end = PlainEnd(interval_s=0.01, silence_limit_s=0.1)
        async with asyncio.timeout(5):
            beats = 0
            while await next_batch(end) is not None:
                beats += 1
            await end.over.wait()
        return beats, end.close_reason

    beats, reason = run(play())  # type: ignore[operator]  # either loop's own
    assert beats >= 2
    assert reason is not None
    assert reason.startswith("silent for")
    assert faults == []


async def test_an_end_that_is_too_busy_to_beat_ticks_all_the_same() -> None:
    """What a node reports now and then must not wait until it has nothing else to say."""
    end = PlainEnd(interval_s=0.02, silence_limit_s=3600.0)
    async with asyncio.timeout(5):
        while end.ticks < 3:
            end.send_frame(1, Heartbeat(sequence=7))
            batch = await next_batch(end)
            assert batch is not None
            await asyncio.sleep(0)
    end.close("the test is over")
