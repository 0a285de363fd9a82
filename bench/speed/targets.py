"""What is asked of IOP: each figure with the bound it must keep and the one it aims at.

Pure: a result goes in, judged figures come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from bench.speed import figures
from bench.speed.figures import Spread
from bench.speed.result import Result

Verdict = Literal["aim", "must", "missed", "not measured"]
Unit = Literal["×", "ms", "MB", "KB"]
Measure = Callable[[Result], Spread | None]
_IOP, _DIRECT = "iop", "direct"
_NONE = 1.05
"""No growth, as far as medians of a few rounds can tell."""


class Target(NamedTuple):
    """One figure. A median at most `must` is enough, at most `aim` is what is wanted."""

    row: str
    of: str  # which figure of its row
    measure: Measure
    must: float
    aim: float
    unit: Unit = "×"


class Judged(NamedTuple):
    target: Target
    spread: Spread | None

    @property
    def verdict(self) -> Verdict:
        if self.spread is None:
            return "not measured"
        if self.spread.median <= self.target.aim:
            return "aim"
        return "must" if self.spread.median <= self.target.must else "missed"


def judge(result: Result) -> list[Judged]:
    """Every target with what was found, in the order of the table."""
    return [Judged(target, target.measure(result)) for target in TARGETS]


def _cpu(shape: str, peer: str) -> Measure:
    return lambda result: figures.cpu_ratio(result.samples, shape, _IOP, peer)


def _added(figure: Callable[..., Spread | None], shape: str) -> Measure:
    return lambda result: figure(result.samples, shape, _IOP, _DIRECT)


def _limit(name: str) -> Measure:
    return lambda result: figures.spread(result.limits.get(name, ()))


def _row(row: str, targets: Sequence[tuple[object, ...]]) -> list[Target]:
    return [Target(row, *target) for target in targets]  # type: ignore[arg-type]


_plain, _paced = partial(_cpu, "plain16"), partial(_cpu, "paced64")

TARGETS: list[Target] = [
    *_row(
        "CPU of a plain request, 16 at once, as a multiple of",
        [
            ("LiteLLM", _plain("litellm"), 1 / 40, 1 / 60),
            ("Portkey", _plain("portkey"), 1 / 4, 1 / 5.5),
            ("naive aiohttp", _plain("naive"), 1.3, 0.9),
            ("vllm-router", _plain("vllm-router"), 6.0, 4.0),
            ("the floor", _plain("floor"), 2.0, 1.4),
        ],
    ),
    *_row(
        "CPU of a stream of 50 pieces, 5 ms apart, 64 at once, as a multiple of",
        [
            ("LiteLLM", _paced("litellm"), 1 / 20, 1 / 26),
            ("Portkey", _paced("portkey"), 0.8, 0.65),
            ("naive aiohttp", _paced("naive"), 1.7, 1.35),
            ("the floor", _paced("floor"), 2.0, 1.4),
        ],
    ),
    *_row(
        "Latency added, one at a time",
        [
            ("p50", _added(figures.added_p50_ms, "plain1"), 1.0, 0.5, "ms"),
            ("p99, as a multiple of p50", _added(figures.added_tail, "plain1"), 3.0, 2.0),
        ],
    ),
    *_row(
        "First byte of a stream, added",
        [("16 at once", _added(figures.added_first_byte_ms, "paced16"), 2.0, 1.0, "ms")],
    ),
    *_row(
        "p99 of others beside a caller who reads 1 KB a second",
        [("as a multiple of theirs alone", _limit("slow-reader"), 1.5, 1.2)],
    ),
    *_row(
        "Memory",
        [
            ("an edge with 1,000 idle node sessions", _limit("idle-sessions"), 150.0, 90.0, "MB"),
            ("each of 1,000 open streams", _limit("open-streams"), 40.0, 30.0, "KB"),
        ],
    ),
    *_row(
        "Growth of CPU a request",
        [
            ("1,000 providers instead of 2", _limit("growth-providers"), 1.1, _NONE),
            ("9,900 pending instead of 10", _limit("growth-pending"), 1.2, _NONE),
        ],
    ),
]
