from __future__ import annotations

import pytest

from iop_shared.call_numbers import CallNumbers

Fragments = list[tuple[int | None, str, str]]


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize(
    ("fragments", "numbers"),
    [
        ([(0, "a", "f"), (0, "", ""), (1, "b", "g"), (1, "", ""), (0, "", "")], [0, 0, 1, 1, 0]),
        ([(None, "a", "f"), (None, "", ""), (None, "b", "f"), (None, "", "")], [0, 0, 1, 1]),
        ([(None, "", "f"), (None, "", ""), (None, "", "f")], [0, 0, 1]),
        ([(0, "a", "f"), (0, "", ""), (0, "b", "f"), (0, "", ""), (0, "b", "")], [0, 0, 1, 1, 1]),
        ([(0, "a", "f"), (0, "b", "f"), (0, "a", ""), (0, "b", "")], [0, 1, 0, 1]),
        ([(0, "a", "f"), (0, "a", "f"), (0, "a", "f")], [0, 0, 0]),
        ([(0, "", "f"), (0, "", "f"), (0, "", "f")], [0, 0, 0]),
        ([(0, "a", "f"), (0, "b", ""), (0, "c", ""), (1, "d", "g"), (1, "e", "")], [0, 0, 0, 1, 1]),
        ([(7, "a", "f"), (-1, "b", "f"), (10**30, "c", "f"), (7, "", "")], [0, 1, 2, 0]),
        ([(0, "", ""), (1, "", ""), (0, "", "")], [0, 1, 0]),
        ([(None, "", ""), (None, "", "f"), (None, "a", "")], [0, 0, 0]),
    ],
    ids=[
        "usual", "no number", "no number or id", "one number", "taking turns", "always named",
        "always a function", "an id a fragment", "any number", "no name", "late name",
    ],
)  # fmt: skip
def test_a_fragment_belongs_to_the_call_of_its_id_or_its_number(
    fragments: Fragments, numbers: list[int]
) -> None:
    calls = CallNumbers()
    assert [calls.of(*fragment) for fragment in fragments] == numbers
