"""From samples to the figures that are judged. Pure: it knows neither processes nor paper.

Whatever compares two contenders is computed within each round and only then made a median, since a
machine's speed moves more between rounds than within one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from bench.speed.shapes import Sample


class Spread(msgspec.Struct, frozen=True):
    """A median over rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread | None:
    """None where there are no values."""
    found = sorted(values)
    return Spread(median(found), found[0], found[-1]) if found else None


class Round(NamedTuple):
    ours: Sample
    theirs: Sample


def pairs(samples: Sequence[Sample], shape: str, ours: str, theirs: str) -> list[Round]:
    """The two contenders' samples under one shape, round by round."""
    found = {(one.contender, one.round): one for one in samples if one.shape == shape}
    return [
        Round(one, found[theirs, number])
        for (name, number), one in found.items()
        if name == ours and (theirs, number) in found
    ]


def cpu_us(samples: Sequence[Sample], shape: str, contender: str) -> Spread | None:
    """CPU microseconds a request."""
    return spread(one.cpu_us for one in samples if (one.shape, one.contender) == (shape, contender))


def cpu_ratio(samples: Sequence[Sample], shape: str, ours: str, theirs: str) -> Spread | None:
    """Our CPU a request as a multiple of theirs."""
    return spread(a.cpu_us / b.cpu_us for a, b in pairs(samples, shape, ours, theirs) if b.cpu_us)


def added_p50_ms(samples: Sequence[Sample], shape: str, ours: str, base: str) -> Spread | None:
    """By how much our median is later than that of going there directly."""
    return spread(a.p50_ms - b.p50_ms for a, b in pairs(samples, shape, ours, base))


def added_p99_ms(samples: Sequence[Sample], shape: str, ours: str, base: str) -> Spread | None:
    return spread(a.p99_ms - b.p99_ms for a, b in pairs(samples, shape, ours, base))


def added_tail(samples: Sequence[Sample], shape: str, ours: str, base: str) -> Spread | None:
    """The added p99 as a multiple of the added p50."""
    return spread(
        (a.p99_ms - b.p99_ms) / (a.p50_ms - b.p50_ms)
        for a, b in pairs(samples, shape, ours, base)
        if a.p50_ms > b.p50_ms
    )


def added_first_byte_ms(
    samples: Sequence[Sample], shape: str, ours: str, base: str
) -> Spread | None:
    return spread(a.first_byte_ms - b.first_byte_ms for a, b in pairs(samples, shape, ours, base))
