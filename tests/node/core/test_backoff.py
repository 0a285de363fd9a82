from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.core.backoff import Backoff


@pytest.mark.req("NODE-6")
def test_the_ceiling_doubles_until_the_cap():
    backoff = Backoff(lambda: 1.0, first_s=0.5, cap_s=4.0)
    assert [backoff.next_delay_s() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert backoff.failures == 6


def test_a_success_begins_anew():
    backoff = Backoff(lambda: 1.0, first_s=0.5, cap_s=4.0)
    for _ in range(3):
        backoff.next_delay_s()
    backoff.reset()
    assert (backoff.failures, backoff.next_delay_s()) == (0, 0.5)


@given(
    draws=st.lists(st.floats(0, 1, exclude_max=True), max_size=2000),
    first_s=st.floats(0.001, 10),
    times=st.floats(1, 1000),
)
def test_no_delay_is_zero_or_above_the_cap_however_often_it_fails(draws, first_s, times):
    drawn = iter(draws)
    cap_s = first_s * times
    backoff = Backoff(lambda: next(drawn), first_s=first_s, cap_s=cap_s)
    for _ in draws:
        assert 0 < backoff.next_delay_s() <= cap_s


def test_two_nodes_that_draw_differently_come_back_at_different_moments():
    early, late = Backoff(lambda: 0.0), Backoff(lambda: 0.9)
    assert early.next_delay_s() < late.next_delay_s()


@pytest.mark.parametrize(
    "bounds", [{"first_s": 0}, {"first_s": 2, "cap_s": 1}, {"factor": 0.5}, {"first_s": -1}]
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(ValueError):
        Backoff(lambda: 0.0, **bounds)
