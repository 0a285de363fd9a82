from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from iop_edge.runtime.undisturbed import SWITCH_INTERVAL_S, Interpreter
from tests.edge.runtime.reload_rig import Edge, with_capacity


@pytest.fixture
def eager() -> Iterator[list[int]]:
    """A collector that looks often; gives the generations that it has looked at."""
    usual, seen = gc.get_threshold(), []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop":
            seen.append(info["generation"])

    # A full collection waits until what is new is a quarter of what is old: other tests' objects
    # must not count as old here.
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(50, 1, 1)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*usual)
    gc.unfreeze()


def make_containers() -> list[list[int]]:
    return [[number] for number in range(100_000)]


def test_no_full_collection_begins_while_they_are_held_and_young_ones_go_on(
    eager: list[int],
) -> None:
    kept = make_containers()
    assert 2 in eager
    with Interpreter().undisturbed():
        eager.clear()
        kept += make_containers()
        assert set(eager) == {0, 1}
    eager.clear()
    kept += make_containers()
    assert 2 in eager


def test_the_last_block_gives_back_what_was_set() -> None:
    usual = gc.get_threshold(), sys.getswitchinterval()
    interpreter = Interpreter()
    first, second = interpreter.undisturbed(), interpreter.undisturbed()
    with first:
        second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S, rel=0.01)
    assert gc.get_threshold() != usual[0]
    second.__exit__(None, None, None)
    assert (gc.get_threshold(), sys.getswitchinterval()) == usual


def test_an_interval_that_is_shorter_already_is_kept() -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        with Interpreter().undisturbed():
            assert sys.getswitchinterval() < 2 * 0.0001
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.req("REF-7")
async def test_a_refresh_leaves_no_cycles_behind() -> None:
    """So that its objects go with their last reference, and waiting to collect costs nothing."""
    edge = Edge()
    await edge.refresh(config=with_capacity(8))
    gc.collect()
    gc.disable()
    try:
        for capacity in (9, 10, 11):
            await edge.refresh(config=with_capacity(capacity))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(one).__name__ for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not kinds & {"EffectiveConfig", "RuntimeSnapshot", "Catalog", "Plan", "RefreshResult"}
    assert not kinds & {"Node", "Provider", "ResourceSpec", "NodeConfigPayload", "Change"}
