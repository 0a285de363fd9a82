"""The parts of the detector of repetition, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.gate.distant import DistantPast
from iop_edge.gate.fingerprint import fingerprint
from iop_edge.gate.numbering import NUMBER, Numbering
from iop_edge.gate.stretch import worth
from iop_edge.gate.texture import Texture, texture

KEY = b"a key for tests"


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize(
    ("text", "levelled"),
    [
        ("1. So\n12. So", "#. So\n##. So"),
        ("  - 3) and 4", "  - #) and 4"),
        ("Step 7: look", "Step #: look"),
        ("**Schritt 7:** los", "**Schritt #:** los"),
        ("第3步", "第#步"),
        ("Room 7: look", "Room 7: look"),
        ("2024-01-02", "####-01-02"),
        ("so 1. and\n\n9", "so 1. and\n\n#"),
    ],
)
def test_a_number_that_opens_a_line_is_levelled_and_no_other(text: str, levelled: str) -> None:
    assert Numbering().levelled(text) == levelled.replace("#", NUMBER)


@pytest.mark.req("GATE-4")
@given(st.text("1 9.\n-*Step a"), st.integers(0, 40))
def test_numbering_does_not_depend_on_the_cut(text: str, cut: int) -> None:
    whole = Numbering().levelled(text)
    numbering = Numbering()
    assert numbering.levelled(text[:cut]) + numbering.levelled(text[cut:]) == whole
    assert len(whole) == len(text)


@pytest.mark.req("GATE-4")
@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("I will check the file again. ", "prose"),
        ("我需要再次检查这个文件。", "prose"),
        ("ฉันจะตรวจสอบไฟล์นี้อีกครั้ง ", "prose"),
        ("मुझे रिपोर्ट को फिर से देखना होगा। ", "prose"),
        ("🎉🎊✨🥳", "prose"),
        ("- Add some compost around the roses.\n", "verse"),
        ("carry me over the hill\nif you won't carry me, no one will\n", "verse"),
        ("    assert blend('red', 'red') == 'red'\n", "code"),
        ('  {"kind": "grass", "walkable": true},\n', "code"),
        ("| TBD  | TBD   | TBD | Open   |\n", "code"),
        ("<td></td>", "code"),
        ("-", "figures"),
        ("0, 0, 0,\n", "figures"),
        ("CAG", "figures"),
        ("ff ff ff ff ff ff ff ff ff ff ff ff  ................\n", "figures"),
        (f"{NUMBER}{NUMBER}\n", "numbers"),
        ("", "figures"),
    ],
)
def test_a_unit_is_told_by_its_look(unit: str, expected: Texture) -> None:
    assert texture(unit) == expected


@pytest.mark.req("GATE-4")
@given(st.text(min_size=1, max_size=40), st.integers(0, 40))
def test_a_fingerprint_is_that_of_the_loop_and_not_of_its_cut(unit: str, turn: int) -> None:
    turn %= len(unit)
    assert fingerprint(unit[turn:] + unit[:turn], KEY) == fingerprint(unit, KEY)


@pytest.mark.req("GATE-4")
def test_a_fingerprint_tells_units_and_keys_apart() -> None:
    named = {fingerprint("yes ", KEY), fingerprint("no ", KEY), fingerprint("yes ", b"other")}
    assert len(named) == 3
    assert fingerprint("\ud800", KEY)


@pytest.mark.req("GATE-4")
def test_what_is_new_weighs_by_what_it_says() -> None:
    assert [worth(said) for said in ("", " \n", NUMBER, "word", "7")] == [0, 0, 0, 4, 3]


@pytest.mark.req("GATE-4")
def test_the_distant_past_knows_how_far_back_it_was_and_forgets_what_is_too_far() -> None:
    unit = "".join(chr(0x4E00 + at) for at in range(5003))
    for gap, lag in ((0, 5003), (9000, 14003), (20_000, 0)):
        text = unit + "".join(chr(0xAC00 + at % 11000) for at in range(gap)) + unit
        distant = DistantPast(2000)
        lags = set()
        while distant.due <= len(text):
            distant.read(text, 0)
            lags.add(distant.lag)
        assert lags - {0, 11000} == ({lag} if lag else set())
        assert len(distant._at_of) <= 513


@pytest.mark.req("GATE-4")
def test_what_is_distant_by_a_character_is_known_and_what_is_nearer_is_not() -> None:
    text = "".join(chr(0x4E00 + at) for at in range(300)) * 2
    for nearest, lag in ((299, 300), (300, 0)):
        distant = DistantPast(nearest)
        while distant.due < len(text):
            distant.read(text, 0)
        assert distant.lag == lag


@pytest.mark.req("GATE-4")
def test_the_distant_past_is_the_same_however_much_text_is_still_at_hand() -> None:
    text = "".join(chr(0x4E00 + at) for at in range(5003)) * 2
    whole, last = DistantPast(1000), DistantPast(1000)
    while whole.due <= len(text):
        at = whole.due
        for until in range(at - at % 300, at, 100):
            last.remember(text[: until + 1], 0, until)
        begins = at - 300
        last.read(text[begins : at + 7], begins)
        whole.read(text, 0)
        assert (whole.lag, whole.length, whole.due) == (last.lag, last.length, last.due)
    assert whole.lag == 5003
