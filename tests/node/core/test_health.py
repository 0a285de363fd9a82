from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.core.health import (
    COOLING_DOWN,
    FAST_FAILURES,
    FIRST_COOLDOWN_S,
    HEALTHY,
    LONGEST_COOLDOWN_S,
    Reading,
    UpstreamHealth,
)

pytestmark = pytest.mark.req("NODE-10")

COOLING = Reading("unavailable", COOLING_DOWN)
SLOW = Reading("degraded", "http_404")
DOWN = Reading("unavailable", "http_503")


def health(probe_failures: int = 3) -> UpstreamHealth:
    return UpstreamHealth(probe_failures, lambda: 1.0)


def failed(upstream: UpstreamHealth, times: int, now: float = 0.0) -> UpstreamHealth:
    for _ in range(times):
        upstream.call_failed_fast(now)
    return upstream


class TestProbes:
    def test_one_bad_probe_changes_nothing_and_enough_in_a_row_do(self):
        upstream = health(probe_failures=3)
        upstream.probed(DOWN)
        upstream.probed(DOWN)
        assert upstream.reading(0.0) == HEALTHY
        upstream.probed(SLOW)
        assert upstream.reading(0.0) == SLOW, "the last one says how it is"

    def test_a_good_probe_clears_at_once_and_counting_begins_anew(self):
        upstream = health(probe_failures=2)
        upstream.probed(DOWN)
        upstream.probed(HEALTHY)
        upstream.probed(DOWN)
        assert upstream.reading(0.0) == HEALTHY
        upstream.probed(DOWN)
        upstream.probed(HEALTHY)
        assert upstream.reading(0.0) == HEALTHY

    def test_calls_do_not_clear_what_probes_found(self):
        upstream = health(probe_failures=1)
        upstream.probed(DOWN)
        upstream.call_answered()
        assert upstream.reading(0.0) == DOWN


class TestCoolingDown:
    def test_begins_with_enough_fast_failures_in_a_row(self):
        upstream = failed(health(), FAST_FAILURES - 1)
        assert upstream.reading(0.0) == HEALTHY
        failed(upstream, 1)
        assert upstream.reading(0.0) == COOLING
        assert upstream.next_change(0.0) == FIRST_COOLDOWN_S

    def test_is_over_with_time_alone(self):
        upstream = failed(health(), FAST_FAILURES)
        assert upstream.reading(FIRST_COOLDOWN_S) == HEALTHY
        assert upstream.next_change(FIRST_COOLDOWN_S) is None

    def test_an_answer_in_between_begins_the_count_anew(self):
        upstream = failed(health(), FAST_FAILURES - 1)
        upstream.call_answered()
        failed(upstream, FAST_FAILURES - 1)
        assert upstream.reading(0.0) == HEALTHY

    def test_the_next_failure_after_it_cools_down_twice_as_long(self):
        upstream = failed(health(), FAST_FAILURES)
        failed(upstream, 1, now=FIRST_COOLDOWN_S)
        assert upstream.reading(FIRST_COOLDOWN_S) == COOLING
        assert upstream.next_change(FIRST_COOLDOWN_S) == 3 * FIRST_COOLDOWN_S

    def test_the_next_answer_after_it_clears_everything(self):
        upstream = failed(health(), FAST_FAILURES)
        upstream.call_answered()
        assert upstream.reading(0.0) == HEALTHY
        failed(upstream, FAST_FAILURES - 1)
        assert upstream.reading(0.0) == HEALTHY
        failed(upstream, 1)
        assert upstream.next_change(0.0) == FIRST_COOLDOWN_S

    def test_calls_that_were_under_way_when_it_began_do_not_prolong_it(self):
        upstream = failed(health(), FAST_FAILURES + 50)
        assert upstream.next_change(0.0) == FIRST_COOLDOWN_S

    def test_a_worse_probe_does_not_hide_it_nor_it_a_worse_probe(self):
        upstream = failed(health(probe_failures=1), FAST_FAILURES)
        upstream.probed(SLOW)
        assert upstream.reading(0.0) == COOLING
        assert upstream.reading(FIRST_COOLDOWN_S) == SLOW


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["answered", "failed", "good", "slow", "down"]), st.floats(0, 100)
        )
    )
)
def test_no_history_keeps_an_upstream_down_that_probes_well_and_is_left_alone(steps):
    upstream, now = health(probe_failures=2), 0.0
    for step, passes in steps:
        now += passes
        match step:
            case "answered":
                upstream.call_answered()
            case "failed":
                upstream.call_failed_fast(now)
            case "good":
                upstream.probed(HEALTHY)
            case "slow":
                upstream.probed(SLOW)
            case "down":
                upstream.probed(DOWN)
        change = upstream.next_change(now)
        assert change is None or now < change <= now + LONGEST_COOLDOWN_S
    upstream.probed(HEALTHY)
    assert upstream.reading(now + LONGEST_COOLDOWN_S) == HEALTHY
