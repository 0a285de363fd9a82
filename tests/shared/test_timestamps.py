from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.timestamps import to_microseconds, to_milliseconds

MOMENTS = st.floats(0, 4_000_000_000, allow_nan=False)


@given(st.lists(MOMENTS, min_size=1, max_size=5))
def test_a_moment_reads_as_the_standard_library_would_write_it(moments: list[float]) -> None:
    for moment in moments:
        told = datetime.fromisoformat(to_microseconds(moment) + "+00:00")
        assert abs(told - datetime.fromtimestamp(moment, UTC)) <= timedelta(microseconds=2)
        assert to_microseconds(moment).startswith(to_milliseconds(moment))


@pytest.mark.parametrize(
    ("moment", "told"),
    [
        (0.0, "1970-01-01T00:00:00.000000"),
        (1.25, "1970-01-01T00:00:01.250000"),
        (1_709_164_800.0009, "2024-02-29T00:00:00.000900"),
    ],
)
def test_a_moment_is_cut_off_and_never_rounded_up(moment: float, told: str) -> None:
    assert abs(int(to_microseconds(moment)[-6:]) - int(told[-6:])) <= 1
    assert to_microseconds(moment)[:-6] == told[:-6]
    assert to_milliseconds(moment) == told[:-3]
