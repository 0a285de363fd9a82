"""The detector of degenerate repetition: what it promises for any text and any cutting."""

from __future__ import annotations

import random
import sys
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.repeat import UNSEEN_START, Loop, RepeatGuard

BOUND = 500
BEFORE = "Let me think about how the pump is wired and what happens when the relay opens. "
LOOPING_UNITS = [
    "yes ",
    "I will check the file again. ",
    "我需要再次检查这个文件。",
    "سأتحقق من الملف مرة أخرى. ",
    "ฉันจะตรวจสอบไฟล์นี้อีกครั้ง ",
    "🎉🎊✨🥳",
    "The valve was shut, so the pump ran dry. It was the relay that had failed first. ",
]


def guard(bound: int = BOUND) -> RepeatGuard:
    return RepeatGuard(bound, key=b"a key for tests")


def read(text: str, pieces: int = 4, bound: int = BOUND) -> tuple[RepeatGuard, Loop | None]:
    reading = guard(bound)
    for at in range(0, len(text), pieces):
        loop = reading.feed(text[at : at + pieces])
        if loop is not None:
            return reading, loop
    return reading, None


def babble(length: int, seed: int) -> str:
    """Words that no language has, so that hardly any comes twice."""
    dice = random.Random(seed)
    text = ""
    while len(text) < length:
        text += "".join(dice.choices("bcdfghklmnprstvaeiou", k=dice.randrange(2, 9)))
        text += dice.choice((" ", " ", " ", ", ", ". "))
    return text[: length - 1] + " "


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


@pytest.mark.req("GATE-4")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.integers(4, 320), st.integers(0, 10**6), st.integers(1, 9))
def test_any_unit_after_any_text_is_found_before_the_second_occurrence_is_read(
    before: int, length: int, seed: int, pieces: int
) -> None:
    opening = babble(before, seed) if before else ""
    unit = babble(length, seed + 1)
    reading = guard()
    text = opening + unit * (2000 // length)
    released = 0
    loop = None
    for at in range(0, len(text), pieces):
        loop = reading.feed(text[at : at + pieces])
        released = reading.cleared
        if loop is not None:
            break
    assert loop is not None
    assert loop.period == length
    assert len(opening) + length - 4 <= loop.kept <= len(opening) + length + UNSEEN_START
    assert released == loop.kept


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize("length", [600, 1200, 3000, 9000])
def test_a_unit_longer_than_the_bound_is_found_before_its_third_occurrence_is_read(
    length: int,
) -> None:
    _, loop = read(BEFORE + babble(length, 1) * 4)
    assert loop is not None
    assert loop.period == length
    assert loop.kept <= len(BEFORE) + 2 * length + UNSEEN_START


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize("length", [100, 300, 600, 1200, 3000, 9000])
def test_what_is_quoted_in_full_once_is_no_loop(length: int) -> None:
    text = babble(length, 2)
    reading, loop = read(BEFORE + text + text + babble(3000, 3))
    assert loop is None
    assert reading.cleared == reading.seen


@pytest.mark.req("GATE-4")
def test_text_that_does_not_repeat_itself_passes_at_once() -> None:
    reading = guard()
    for character in babble(5000, 4):
        reading.feed(character)
        assert reading.cleared == reading.seen


@pytest.mark.req("GATE-4")
def test_what_began_to_repeat_is_held_until_it_reads_differently() -> None:
    sentence = "The valve was shut, so the pump ran dry. "
    reading = guard()
    reading.feed(BEFORE + sentence + sentence)
    held_from = reading.cleared
    assert held_from <= len(BEFORE + sentence) + UNSEEN_START < reading.seen
    reading.feed("So I opened it again, and waited.")
    assert reading.cleared == reading.seen


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize(
    "filler", ["-", " ", "=-", "\n", "0", "0 ", ". ", "| ", "AAAA", "─", "█", "\t", "_", "CAG"]
)
def test_rules_indentation_figures_and_codes_are_neither_loops_nor_held(filler: str) -> None:
    reading = guard()
    text = BEFORE + "\n" + filler * (5000 // len(filler))
    for at in range(0, len(text), 4):
        assert reading.feed(text[at : at + 4]) is None
        assert reading.seen - reading.cleared <= 24
    reading.feed("\nAnd on it goes.")
    assert reading.cleared == reading.seen


@pytest.mark.req("GATE-4")
def test_even_figures_are_a_loop_if_they_never_end() -> None:
    _, loop = read(BEFORE + "0" * 20_000)
    assert loop is not None
    assert loop.period == 1


@pytest.mark.req("GATE-4")
def test_a_list_that_differs_in_its_numbers_alone_is_a_loop() -> None:
    first = "1. Check the configuration file.\n"
    items = "".join(f"{n}. Check the configuration file.\n" for n in range(2, 200))
    _, loop = read(BEFORE + "\n" + first + items)
    assert loop is not None
    assert loop.kept <= len(BEFORE) + 1 + len(first) + UNSEEN_START


@pytest.mark.req("GATE-4")
def test_lines_that_differ_in_another_number_are_no_loop() -> None:
    assert read("".join(f"I have counted {n} sheep so far.\n" for n in range(1, 400)))[1] is None


@pytest.mark.req("GATE-4")
def test_after_a_loop_the_guard_is_done() -> None:
    reading, loop = read(BEFORE + "yes " * 400)
    assert loop is not None
    seen = reading.seen
    assert reading.feed("no " * 400) is None
    assert (reading.seen, reading.cleared) == (seen + 1200, loop.kept)


@pytest.mark.req("GATE-4")
def test_one_loop_bears_one_fingerprint_wherever_it_was_cut_and_none_under_another_key() -> None:
    unit = "I will check the file again. "
    seen = {read(before + unit * 40)[1] for before in ("", "So: ", BEFORE)}
    assert len({loop.fingerprint for loop in seen if loop is not None}) == 1
    elsewhere = RepeatGuard(BOUND, key=b"another key")
    loop = elsewhere.feed(BEFORE + unit * 40)
    assert loop is not None
    assert loop.fingerprint not in {one.fingerprint for one in seen if one is not None}
    assert len(loop.fingerprint) == 16


@pytest.mark.req("GATE-4", "SEC-1")
def test_nothing_that_it_reports_holds_any_text() -> None:
    reading, loop = read(BEFORE + "marmalade canary " * 60)
    assert loop is not None
    for told in (repr(loop), repr(reading), str(reading)):
        assert "canary" not in told
        assert "marmalade" not in told


@pytest.mark.req("GATE-4")
def test_what_it_keeps_of_a_long_text_is_bounded() -> None:
    text = babble(2**18, 5)
    reading = guard()
    reading.feed(text[: 2**16])
    tracemalloc.start()
    try:
        for at in range(2**16, len(text), 256):
            reading.feed(text[at : at + 256])
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 128 * 1024
    assert sys.getsizeof(reading._past) < 6 * BOUND


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Texts that repeat themselves now and then, and the pieces they come in."""
    units = [*LOOPING_UNITS, BEFORE, "\n", "1. ", "2) So ", "x", "| - |\n", "9", babble(700, 6)]
    words = draw(st.lists(st.sampled_from(units), max_size=12))
    repeated = draw(st.lists(st.integers(1, 20), min_size=len(words), max_size=len(words)))
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
@pytest.mark.parametrize("pieces", [1, 3, 64, 10**6])
def test_how_a_long_paragraph_that_loops_was_cut_makes_no_difference(pieces: int) -> None:
    text = BEFORE + babble(3001, 7) * 4
    assert read(text, pieces)[1] == read(text)[1] is not None


@pytest.mark.req("GATE-4")
@settings(max_examples=60, deadline=None)
@given(texts_in_pieces(), st.one_of(st.integers(1, 600), st.just(1_000_000)))
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
