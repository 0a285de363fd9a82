"""The detector of degenerate repetition: what it promises for any text and any cutting."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.repeat import UNSEEN_START, Loop, RepeatGuard

BOUND = 500
BEFORE = "Let me think about how the pump is wired and what happens when the relay opens. "


def guard(bound: int = BOUND) -> RepeatGuard:
    return RepeatGuard(bound, key=b"a key for tests")


def read(text: str, pieces: int = 4, bound: int = BOUND) -> tuple[RepeatGuard, Loop | None]:
    reading = guard(bound)
    for at in range(0, len(text), pieces):
        loop = reading.feed(text[at : at + pieces])
        if loop is not None:
            return reading, loop
    return reading, None


LOOPING_UNITS = [
    "yes ",
    "I will check the file again. ",
    "我需要再次检查这个文件。",
    "سأتحقق من الملف مرة أخرى. ",
    "ฉันจะตรวจสอบไฟล์นี้อีกครั้ง ",
    "🎉🎊✨🥳",
    "The valve was shut, so the pump ran dry. It was the relay that had failed first. ",
]


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize("unit", LOOPING_UNITS)
def test_a_loop_is_cut_where_its_first_occurrence_ends(unit: str) -> None:
    reading, loop = read(BEFORE + unit * 400)
    assert loop is not None
    first_ends = len(BEFORE) + len(unit)
    assert first_ends - 2 <= loop.kept <= first_ends + UNSEEN_START
    assert loop.period == len(unit)
    assert loop.count >= 3
    assert reading.seen - loop.kept <= BOUND
    assert reading.cleared == loop.kept


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Texts that repeat themselves now and then, and the pieces they come in."""
    words = draw(st.lists(st.sampled_from([*LOOPING_UNITS, BEFORE, "\n", "1. ", "x", "| - |\n"])))
    repeated = draw(st.lists(st.integers(1, 40), min_size=len(words), max_size=len(words)))
    text = "".join(word * times for word, times in zip(words, repeated, strict=True))
    cuts = sorted(set(draw(st.lists(st.integers(0, len(text)), max_size=20))) | {0, len(text)})
    return text, [text[a:b] for a, b in pairwise(cuts)]


@pytest.mark.req("GATE-4")
@settings(max_examples=60, deadline=None)
@given(texts_in_pieces())
def test_how_a_text_was_cut_makes_no_difference(given_: tuple[str, list[str]]) -> None:
    text, pieces = given_
    by_character, loop = read(text, pieces=1)
    cut = guard()
    assert [found for piece in pieces if (found := cut.feed(piece)) is not None] == (
        [] if loop is None else [loop]
    )
    assert cut.cleared == by_character.cleared


@pytest.mark.req("GATE-4")
@settings(max_examples=60, deadline=None)
@given(texts_in_pieces(), st.integers(1, 600))
def test_what_is_held_stays_within_the_bound_and_what_was_cleared_stays_so(
    given_: tuple[str, list[str]], bound: int
) -> None:
    reading = guard(bound)
    cleared = 0
    for piece in given_[1]:
        loop = reading.feed(piece)
        assert cleared <= reading.cleared <= reading.seen
        cleared = reading.cleared
        if loop is not None:
            break
        assert reading.seen - cleared <= bound
