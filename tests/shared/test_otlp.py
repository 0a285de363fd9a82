"""Spans on their way out, to a collector that takes them, is away, refuses, or hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from iop_shared import otlp
from iop_shared.otlp import OtlpExporter, traces_url
from iop_shared.tracing import Span, TraceContext
from tests.shared.otlp_rig import ANSWER_CANARY, Collector

STOP_DEADLINE_S = 20.0
"""Far beyond any bound of the exporter's own: a stop that waits for a collector would miss it."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as collector:
        yield collector


@pytest.fixture
def no_collector() -> str:
    """An address where nothing listens."""
    with Collector().running() as gone:
        pass
    return gone.url


def span(name: str = "run", **fields: Any) -> Span:
    made: dict[str, Any] = {
        "kind": "server",
        "context": TraceContext.root(),
        "parent_id": "",
        "started_ns": 1_000,
        "ended_ns": 2_000,
        "attributes": {},
        "is_error": False,
    }
    return Span(name=name, **made | fields)


def exporter(url: str, **bounds: Any) -> OtlpExporter:
    bounds = {"export_timeout_s": 1.0, "flush_deadline_s": 0.2} | bounds
    return OtlpExporter(url, service="iop-edge", instance_id="e1", **bounds)


@pytest.mark.req("OPS-3")
async def test_a_span_arrives_as_it_was_and_says_whose_it_is(collector: Collector) -> None:
    run = span(attributes={"iop.run_id": "run_1", "iop.attempts": 2}, is_error=True)
    attempt = span("attempt", kind="client", context=run.context.child(), parent_id="0" * 15 + "7")
    async with exporter(f"{collector.url}/", flush_deadline_s=STOP_DEADLINE_S) as sending:
        sending.take(run)
        sending.take(attempt)
    first, second = collector.spans
    assert (first.trace_id, first.span_id) == (run.context.trace_id, run.context.span_id)
    assert (first.name, first.kind, first.parent_id) == ("run", "server", "")
    assert (first.started_ns, first.ended_ns, first.is_error) == (1_000, 2_000, True)
    assert first.attributes == {"iop.run_id": "run_1", "iop.attempts": 2}
    assert (second.trace_id, second.kind, second.is_error) == (first.trace_id, "client", False)
    assert (second.service, second.parent_id) == ("iop-edge", "0" * 15 + "7")
    assert [path for path, _, _ in collector.received] == ["/v1/traces"]
    assert sending.dropped_spans == 0


@pytest.mark.req("OPS-3")
async def test_what_waits_goes_out_together_and_a_full_batch_at_once(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_INTERVAL_S", 3600)
    async with exporter(collector.url, flush_deadline_s=STOP_DEADLINE_S) as sending:
        for _ in range(otlp.BATCH_SPANS):
            sending.take(span())
        await asyncio.to_thread(collector.wait_for, 1)
        sending.take(span("last"))
    assert len(collector.spans) == otlp.BATCH_SPANS + 1
    assert collector.spans[-1].name == "last"
    assert len(collector.received) == 2


@pytest.mark.req("OPS-3")
async def test_a_collector_that_is_away_costs_spans_and_holds_up_nothing(
    no_collector: str,
) -> None:
    with capture_logs() as lines:
        async with asyncio.timeout(STOP_DEADLINE_S), exporter(no_collector) as sending:
            for _ in range(3):
                sending.take(span())
    assert ("trace_spans_dropped", 3) in [(line["event"], line.get("dropped")) for line in lines]


@pytest.mark.req("OPS-3")
async def test_behind_a_collector_that_hangs_the_queue_is_bounded_and_the_stop_as_well(
    collector: Collector,
) -> None:
    collector.mood = "hangs"
    with capture_logs() as lines:
        async with asyncio.timeout(STOP_DEADLINE_S):
            async with exporter(collector.url, queue_spans=4, export_timeout_s=30) as sending:
                sending.take(span())
                await asyncio.to_thread(collector.wait_for, 1)
                for _ in range(10):
                    sending.take(span())
                assert sending.dropped_spans == 6
    assert lines[-1] == {
        "component": "tracing",
        "event": "trace_spans_dropped",
        "log_level": "warning",
        "dropped": 11,
        "exported": 0,
    }
    [left] = [thread for thread in threading.enumerate() if thread.name == "otlp"]
    assert left.daemon


@pytest.mark.req("OPS-3", "SEC-1")
async def test_a_refusal_and_its_end_are_told_once_without_what_the_collector_says(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "BATCH_SPANS", 1)
    collector.mood = "refuses"
    with capture_logs() as lines:
        async with exporter(collector.url, flush_deadline_s=STOP_DEADLINE_S) as sending:
            for number in (1, 2):
                sending.take(span())
                await asyncio.to_thread(collector.wait_for, number)
            async with asyncio.timeout(STOP_DEADLINE_S):
                while sending.dropped_spans < 2:
                    await asyncio.sleep(0.001)
            collector.mood = "takes"
            sending.take(span())
    assert [line["event"] for line in lines] == [
        "trace_export_failed",
        "trace_export_recovered",
        "trace_spans_dropped",
    ]
    assert len(collector.spans) == 3
    assert ANSWER_CANARY not in f"{lines}{caplog.text}"


@pytest.mark.req("OPS-3")
async def test_a_span_that_cannot_be_encoded_is_lost_alone(collector: Collector) -> None:
    with capture_logs() as lines:
        async with exporter(collector.url, flush_deadline_s=STOP_DEADLINE_S) as sending:
            sending.take(span(context=TraceContext("no hex", "at all")))
            async with asyncio.timeout(STOP_DEADLINE_S):
                while sending.dropped_spans < 1:
                    await asyncio.sleep(0.001)
            sending.take(span("good"))
    assert [seen.name for seen in collector.spans] == ["good"]
    assert "trace_export_broken" in [line["event"] for line in lines]


@pytest.mark.req("OPS-3", "SEC-1")
async def test_the_standard_variables_hold_and_no_header_of_theirs_is_told(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=canary-of-the-collector,junk")
    with capture_logs() as lines:
        async with exporter(collector.url, flush_deadline_s=STOP_DEADLINE_S) as sending:
            sending.take(span())
    [(_, headers, _)] = collector.received
    assert headers["x-api-key"] == "canary-of-the-collector"
    assert "canary" not in f"{lines}"
    assert "canary" not in caplog.text


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://c.example/otlp/", "https://c.example/otlp/v1/traces"),
        ("https://c.example/v1/traces", "https://c.example/v1/traces"),
        ("https://c.example/v1/traces/", "https://c.example/v1/traces"),
    ],
)
def test_an_endpoint_is_a_base_or_the_whole_address(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
