"""What is made of the samples: medians, ratios within a round, and differences."""

from __future__ import annotations

import pytest

from bench.speed import figures
from bench.speed.figures import Spread
from bench.speed.load import quantile
from bench.speed.shapes import Sample


def sample(
    contender: str, number: int, cpu_us: float, p50_ms: float = 1, p99_ms: float = 2
) -> Sample:
    return Sample(contender, "plain16", number, 100, cpu_us, {}, p50_ms, p99_ms, p50_ms / 2)


def test_a_spread_is_the_median_with_the_lowest_and_the_highest() -> None:
    assert figures.spread([9, 1, 4]) == Spread(4, 1, 9)
    assert figures.spread([4, 2]) == Spread(3, 2, 4)


def test_there_is_no_spread_of_nothing() -> None:
    assert figures.spread([]) is None


def test_a_ratio_is_taken_within_each_round_and_then_made_a_median() -> None:
    # The machine is ten times slower in the last round; the ratio of medians would be 200 / 200.
    ours = [sample("iop", 0, 100), sample("iop", 1, 200), sample("iop", 2, 4000)]
    theirs = [sample("peer", 0, 200), sample("peer", 1, 100), sample("peer", 2, 2000)]
    assert figures.cpu_ratio([*theirs, *ours], "plain16", "iop", "peer") == Spread(2, 0.5, 2)


def test_a_round_that_only_one_of_both_ran_counts_for_nothing() -> None:
    samples = [sample("iop", 0, 100), sample("iop", 1, 900), sample("peer", 0, 50)]
    assert figures.cpu_ratio(samples, "plain16", "iop", "peer") == Spread(2, 2, 2)


def test_other_shapes_and_contenders_that_took_no_part_give_no_figure() -> None:
    samples = [sample("iop", 0, 100), sample("peer", 0, 50)]
    assert figures.cpu_ratio(samples, "paced64", "iop", "peer") is None
    assert figures.cpu_ratio(samples, "plain16", "iop", "nobody") is None
    assert figures.cpu_us(samples, "plain16", "nobody") is None


def test_added_latency_is_the_difference_to_going_there_directly() -> None:
    samples = [sample("iop", 0, 1, 3.0, 10.0), sample("direct", 0, 1, 1.0, 2.0)]
    assert figures.added_p50_ms(samples, "plain16", "iop", "direct") == Spread(2, 2, 2)
    assert figures.added_p99_ms(samples, "plain16", "iop", "direct") == Spread(8, 8, 8)
    assert figures.added_tail(samples, "plain16", "iop", "direct") == Spread(4, 4, 4)
    assert figures.added_first_byte_ms(samples, "plain16", "iop", "direct") == Spread(1, 1, 1)


def test_a_round_in_which_nothing_was_added_has_no_tail_to_compare() -> None:
    samples = [sample("iop", 0, 1, 1.0, 2.0), sample("direct", 0, 1, 1.0, 1.0)]
    assert figures.added_tail(samples, "plain16", "iop", "direct") is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 0), (0.5, 50), (0.99, 99), (1.0, 99)])
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile(range(100), share) == value
