from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from iop_node import app
from iop_node.health import StateFile


class CountedStateFile(StateFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.renewals = 0
        self.was_renewed = asyncio.Event()

    def renew(self) -> None:
        super().renew()
        self.renewals += 1
        if self.renewals == 3:
            self.was_renewed.set()


@pytest.mark.req("OPS-3")
async def test_the_word_of_a_node_is_renewed_for_as_long_as_its_loop_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "RENEWAL_INTERVAL_S", 0.001)
    state = CountedStateFile(tmp_path / "state")
    others = asyncio.all_tasks()
    async with asyncio.timeout(5), app._renewing(state):
        await state.was_renewed.wait()
        renewing = asyncio.all_tasks() - others
    done, _ = await asyncio.wait(renewing, timeout=5)
    assert done == renewing
