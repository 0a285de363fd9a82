"""What is counted of runs, in the form in which a scrape reads it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from iop_edge.runtime.usage import UsageRecord
from iop_edge.serve.run_totals import RunTotals
from tests.edge.serve.metrics_rig import finished


def record(**fields: Any) -> UsageRecord:
    return finished(**fields).record


def exposition(totals: RunTotals) -> list[str]:
    registry = CollectorRegistry()
    registry.register(totals)
    return generate_latest(registry).decode().splitlines()


@pytest.mark.req("OPS-3")
def test_a_duration_counts_in_every_bucket_from_its_own_on_bounds_included() -> None:
    totals = RunTotals()
    for milliseconds in (0.0, 5.0, 5.1, 20.0, 700_000.0):
        totals.observe(record(duration_ms=milliseconds), "m")
    run = 'iop_edge_run_duration_seconds_bucket{le="%s",model="m",provider_id="p1"} %s'
    lines = exposition(totals)
    for bound, count in (("0.005", 2), ("0.02", 4), ("0.05", 4), ("600.0", 4), ("+Inf", 5)):
        assert run % (bound, float(count)) in lines
    assert 'iop_edge_run_duration_seconds_count{model="m",provider_id="p1"} 5.0' in lines


@pytest.mark.req("OPS-3")
def test_models_and_providers_are_counted_apart() -> None:
    totals = RunTotals()
    totals.observe(record(provider_id="p1", queue_ms=10.0), "m")
    totals.observe(record(provider_id="p2", queue_ms=10.0), "m")
    totals.observe(record(provider_id=None, queue_ms=10.0), "n")
    lines = exposition(totals)
    for labels in ('model="m",provider_id="p1"', 'model="m",provider_id="p2"'):
        assert f'iop_edge_runs_total{{end="completed",{labels}}} 1.0' in lines
    assert 'iop_edge_runs_total{end="completed",model="n",provider_id=""} 1.0' in lines
    assert 'iop_edge_queue_wait_seconds_count{model="m"} 2.0' in lines


@pytest.mark.req("OPS-3")
def test_what_was_never_known_is_not_counted() -> None:
    totals = RunTotals()
    nothing = record(input_tokens=None, output_tokens=0, first_byte_ms=None, usage_source="none")
    totals.observe(nothing, "m")
    lines = exposition(totals)
    for name in ("iop_edge_tokens_total{", "iop_edge_run_first_byte_seconds_count{"):
        assert not [line for line in lines if line.startswith(name)]


@pytest.mark.req("OPS-3")
def test_every_family_is_described_before_there_is_anything_in_it() -> None:
    described = {line.split()[2] for line in exposition(RunTotals()) if line.startswith("# TYPE")}
    assert described == {
        "iop_edge_runs_total",
        "iop_edge_run_retries_total",
        "iop_edge_tokens_total",
        "iop_edge_run_duration_seconds",
        "iop_edge_run_first_byte_seconds",
        "iop_edge_queue_wait_seconds",
    }
