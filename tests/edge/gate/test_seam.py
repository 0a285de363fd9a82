"""What a continuation says twice is told once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.seam import MAX_OVERLAP, MIN_OVERLAP, Seam


def joined(told: str, *pieces: str) -> str:
    seam = Seam(told)
    return told + "".join(map(seam.feed, pieces)) + seam.end()


@pytest.mark.req("GATE-5")
def test_what_repeats_the_end_of_what_was_told_is_trimmed():
    assert joined("The cat sat on the mat", " sat on the mat and", " slept.") == (
        "The cat sat on the mat and slept."
    )


@pytest.mark.req("GATE-5")
def test_the_longest_overlap_counts_also_where_a_shorter_one_ends_first():
    assert (
        joined("la la la la la la", "la la la la la la, said she") == "la la la la la la, said she"
    )


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(
    ("told", "new", "whole"),
    [
        ("The quick bro", "brown fox", "The quick brown fox"),
        ("I like to", "to swim", "I like to swim"),
        ("the word ", "word was", "the word was"),
        ("at the door", " door and then", "at the door and then"),
        ("and so I", "I think", "and so I think"),
        ("and so I", " I think", "and so I think"),
        ("日本の首都", "首都です", "日本の首都です"),
        ("これは", "はい", "これははい"),
        ("a", "abc", "aabc"),
        ("a", "a cat", "a cat"),
        ("Yes, I ", "Yes, I think so.", "Yes, I think so."),
        ("It costs 1", "15 euros", "It costs 115 euros"),
        ("over", "see", "oversee"),
        ("on the", "theory", "on theory"),
        ("", "anything", "anything"),
    ],
)
def test_the_last_word_is_not_begun_twice_and_chance_agreement_stays(
    told: str, new: str, whole: str
):
    assert joined(told, new) == whole


@pytest.mark.req("GATE-5")
def test_an_answer_that_is_begun_anew_is_trimmed_to_what_is_new():
    told = '{"story": "' + " ".join(f"word{number}" for number in range(300))
    whole = told + ' and an end"}'
    assert joined(told, *(whole[at : at + 7] for at in range(0, len(whole), 7))) == whole


@pytest.mark.req("GATE-5")
def test_text_that_goes_on_is_held_no_longer_than_it_agrees():
    seam = Seam("and then the wolf came to the door")
    assert seam.feed("the ") == ""
    assert seam.feed("house") == "the house"
    assert seam.is_closed
    assert seam.feed(" again") == " again"


@settings(deadline=None)
@given(st.text(alphabet="abc ", max_size=500), st.text(alphabet="abc ", max_size=500), st.data())
@pytest.mark.req("GATE-5")
def test_however_it_is_cut_the_new_text_loses_a_beginning_that_was_told_and_nothing_else(
    told: str, new: str, data: st.DataObject
):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(new)), max_size=6)))
    pieces = [new[a:b] for a, b in zip([0, *cuts], [*cuts, len(new)], strict=True)]
    seam = Seam(told)
    came = "".join(map(seam.feed, pieces)) + seam.end()
    assert new.endswith(came)
    trimmed = new[: len(new) - len(came)]
    assert told.endswith(trimmed)
    assert len(trimmed) == seam.trimmed <= MAX_OVERLAP
    for longer in range(max(MIN_OVERLAP, len(trimmed) + 1), min(len(told), len(new), MAX_OVERLAP)):
        assert not told.endswith(new[:longer])
