"""How well repetition is found, on texts that were written for it; half of them held out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iop_edge.gate.repeat import UNSEEN_START, Loop, RepeatGuard

if TYPE_CHECKING:
    from types import ModuleType

BOUND = 500
MISSED_AT_MOST = 1


def _load() -> ModuleType:
    path = Path(__file__).parent / "repeat_examples" / "examples.py"
    spec = importlib.util.spec_from_file_location("repeat_examples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


EXAMPLES = _load().examples()


def found(text: str) -> Loop | None:
    reading = RepeatGuard(BOUND, key=b"a key for tests")
    return next((loop for piece in pieces(text) if (loop := reading.feed(piece))), None)


def pieces(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def test_there_are_enough_examples_of_both_kinds_in_both_halves() -> None:
    for held_out in (True, False):
        half = [one for one in EXAMPLES if one.is_held_out == held_out]
        assert sum(one.is_loop for one in half) >= 40
        assert sum(not one.is_loop for one in half) >= 40


@pytest.mark.req("GATE-4")
def test_no_innocent_text_is_taken_for_a_loop() -> None:
    innocent = [one for one in EXAMPLES if not one.is_loop]
    assert [(one.kind, one.name) for one in innocent if found(one.text) is not None] == []


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize("held_out", [True, False])
def test_hardly_a_loop_is_missed(held_out: bool) -> None:
    loops = [one for one in EXAMPLES if one.is_loop and one.is_held_out == held_out]
    missed = [(one.kind, one.name) for one in loops if found(one.text) is None]
    assert len(missed) <= MISSED_AT_MOST, missed


@pytest.mark.req("GATE-4")
def test_of_an_exact_loop_no_more_is_read_than_its_first_occurrence_and_a_few_characters() -> None:
    for one in EXAMPLES:
        if one.kind == "same" and one.name != "english long paragraph":
            loop = found(one.text)
            assert loop is not None
            assert loop.kept <= one.first_ends + UNSEEN_START, one.name
