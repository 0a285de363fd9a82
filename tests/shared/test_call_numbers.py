from __future__ import annotations

import pytest

from iop_shared.call_numbers import CallNumbers

Fragments = list[tuple[int | None, str]]


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize(
    ("fragments", "numbers"),
    [
        ([(0, "a"), (0, ""), (1, "b"), (1, ""), (0, "")], [0, 0, 1, 1, 0]),
        ([(None, "a"), (None, ""), (None, "b"), (None, "")], [0, 0, 1, 1]),
        ([(0, "a"), (0, ""), (0, "b"), (0, ""), (0, "b")], [0, 0, 1, 1, 1]),
        ([(0, "a"), (0, "a"), (0, "a")], [0, 0, 0]),
        ([(7, "a"), (-1, "b"), (10**30, "c"), (7, "")], [0, 1, 2, 0]),
        ([(None, ""), (None, ""), (None, "a"), (None, "b")], [0, 0, 0, 1]),
        ([(0, ""), (1, ""), (0, "")], [0, 1, 0]),
    ],
    ids=["usual", "no number", "one number", "always named", "any number", "late name", "no name"],
)
def test_a_fragment_belongs_to_the_call_of_its_number_or_of_its_name(
    fragments: Fragments, numbers: list[int]
) -> None:
    calls = CallNumbers()
    assert [calls.of(index, call_id) for index, call_id in fragments] == numbers
