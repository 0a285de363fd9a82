"""What is counted of runs that have ended, for a scrape to read.

Every run is counted, so counting is plain: the totals of one model on one provider are found once,
and are numbers that only the loop's own thread changes. They become Prometheus' families at the
scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from iop_edge.runtime.usage import UsageRecord

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_BOUNDS = (*map(floatToGoString, _SECONDS), "+Inf")
_RUN = ("model", "provider_id")
_UPSTREAM_STATUS = "error:upstream_"


class _Durations:
    """How many there were up to each of `_SECONDS`, and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum_s = 0.0

    def add(self, milliseconds: float) -> None:
        seconds = milliseconds / 1000
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum_s += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        buckets = list(zip(_BOUNDS, accumulate(self.counts), strict=True))
        family.add_metric(labels, buckets, self.sum_s)


class _Totals:
    """Of one model on one provider."""

    __slots__ = ("ends", "first_byte", "retries", "run", "tokens")

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.retries = 0
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.run = _Durations()
        self.first_byte: _Durations | None = None


class RunTotals(Collector):
    """Counts runs. Whoever calls `observe` answers for the labels: their values are bounded."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._waits: dict[str, _Durations] = {}

    def observe(self, record: UsageRecord, model: str) -> None:
        """Count a run that has ended under this name of its model."""
        key = (model, record.provider_id or "")
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = _Totals()
            self._waits.setdefault(model, _Durations())
        totals.ends[_end(record.end)] += 1
        totals.run.add(record.duration_ms)
        self._waits[model].add(record.queue_ms)
        if record.attempts > 1:
            totals.retries += record.attempts - 1
        if record.first_byte_ms is not None:
            if totals.first_byte is None:
                totals.first_byte = _Durations()
            totals.first_byte.add(record.first_byte_ms)
        source = record.usage_source
        if record.input_tokens:
            totals.tokens["input", source] += record.input_tokens
        if record.output_tokens:
            totals.tokens["output", source] += record.output_tokens

    def describe(self) -> list[Metric]:
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        runs = CounterMetricFamily(
            "iop_edge_runs", "Runs that have ended, by how they ended", labels=[*_RUN, "end"]
        )
        retries = CounterMetricFamily(
            "iop_edge_run_retries", "Attempts beyond the first of their run", labels=_RUN
        )
        tokens = CounterMetricFamily(
            "iop_edge_tokens",
            "Tokens of runs that have ended, reported by the upstream or estimated",
            labels=[*_RUN, "direction", "source"],
        )
        duration = HistogramMetricFamily(
            "iop_edge_run_duration_seconds", "Time from a run's start to its end", labels=_RUN
        )
        first_byte = HistogramMetricFamily(
            "iop_edge_run_first_byte_seconds",
            "Time from a run's start to the first byte of its answer; of a stream, the first token",
            labels=_RUN,
        )
        for run, totals in self._totals.items():
            for end, count in totals.ends.items():
                runs.add_metric([*run, end], count)
            for kind, count in totals.tokens.items():
                tokens.add_metric([*run, *kind], count)
            if totals.retries:
                retries.add_metric(run, totals.retries)
            totals.run.add_to(duration, run)
            if totals.first_byte is not None:
                totals.first_byte.add_to(first_byte, run)
        waits = HistogramMetricFamily(
            "iop_edge_queue_wait_seconds", "Time that runs waited for a slot", labels=["model"]
        )
        for model, waited in self._waits.items():
            waited.add_to(waits, [model])
        yield from (runs, retries, tokens, duration, first_byte, waits)


def _end(end: str) -> str:
    """How a run ended, out of a closed set: an upstream's status counts by its class."""
    status = end.removeprefix(_UPSTREAM_STATUS)
    return f"{_UPSTREAM_STATUS}{status[0]}xx" if status != end and status.isdigit() else end
