"""Prometheus metrics of the edge (OPS-3): counted as runs and refreshes end, or read at the scrape.

Nothing is counted while a request runs: what changes with each run is taken from its usage record,
everything else is read from live state when it is asked for. Every label's values are bounded: ids
out of the config, and words of closed sets. Never a URL, a token, or anything that a caller sent
(SEC-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Protocol, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from iop_edge.gate.report import GateReport
from iop_edge.refresh.receipt import Mode, Outcome, RefreshRecord, Status
from iop_edge.runtime.node_hub import NodeView
from iop_edge.runtime.usage import FinishedRun
from iop_edge.serve.admin.shapes import EdgeStatus, Readiness
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.routes import Route, Router
from iop_edge.serve.run_totals import RunTotals
from iop_shared.errors import Code


class EdgeViews(Protocol):
    """What is read at a scrape, and the one question that bounds the label `model`."""

    def status(self) -> EdgeStatus: ...
    def readiness(self) -> Readiness: ...
    def node_views(self) -> Sequence[NodeView]: ...
    def active_runs(self) -> int: ...
    def dropped_spans(self) -> int: ...
    def has_model(self, name: str) -> bool:
        """The config names this model. False for any other word of a caller."""
        ...


class EdgeMetrics:
    """One registry for one edge.

    `observe` takes each finished run, `observe_refresh` each refresh's.
    """

    def __init__(self, views: EdgeViews) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self._views = views
        self._registry = registry = CollectorRegistry()
        registry.register(_LiveCollector(views))
        ProcessCollector(namespace="iop_edge", registry=registry)
        self._runs = RunTotals()
        registry.register(self._runs)
        self._refreshes = Counter(
            "iop_edge_refreshes",
            "Refreshes of the config, by mode and result",
            ["mode", "status"],
            registry=registry,
        )
        self._answers = Counter(
            "iop_edge_refresh_node_answers",
            "What became of the applied refreshes on each node",
            ["outcome"],
            registry=registry,
        )
        self._refusals = Counter(
            "iop_edge_refused_requests",
            "Callers' requests that were refused before they became a run, by code",
            ["code"],
            registry=registry,
        )
        self._matches = Counter(
            "iop_edge_gate_matches",
            "What the stream evidence gate's filters have found",
            ["filter", "enforcement"],
            registry=registry,
        )
        self._recoveries = Counter(
            "iop_edge_gate_recoveries",
            "Recoveries within runs, by strategy, by what they answered to and by how they ended",
            ["strategy", "cause", "outcome"],
            registry=registry,
        )
        self._unrepaired = Counter(
            "iop_edge_gate_unrepaired_runs",
            "Runs that went past the gate from their start, by reason",
            ["reason"],
            registry=registry,
        )
        # There before the first of each, so that an increase from nothing is seen as one.
        for mode in get_args(Mode):
            for status in get_args(Status):
                self._refreshes.labels(mode, status)
        for outcome in get_args(Outcome):
            self._answers.labels(outcome)

    def observe(self, finished: FinishedRun) -> None:
        """Count a run that has ended, and what the gate did in it."""
        record = finished.record
        self._runs.observe(record, record.model if self._views.has_model(record.model) else "")
        if finished.gate is not None:
            self._observe_gate(finished.gate)

    def _observe_gate(self, gate: GateReport) -> None:
        for match in gate.matches:
            self._matches.labels(match.filter, match.enforcement).inc()
        for recovery in gate.recoveries:
            self._recoveries.labels(recovery.strategy, recovery.cause, recovery.outcome).inc()
        if gate.unrepaired is not None:
            self._unrepaired.labels(gate.unrepaired).inc()

    def observe_refusal(self, code: Code) -> None:
        """Count a request that was refused before it became a run."""
        self._refusals.labels(code.value).inc()

    def observe_refresh(self, record: RefreshRecord) -> None:
        """Count a refresh that has ended, whoever asked for it."""
        result = record.result
        if result.mode is None:
            return
        self._refreshes.labels(result.mode, result.status).inc()
        if result.mode == "apply" and result.status == "applied":
            for node in result.nodes:
                self._answers.labels(node.outcome).inc()

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def router(self) -> Router:
        """Answers `GET /metrics`."""
        return Router([Route(method="GET", path="/metrics", handler=self._respond)])

    async def _respond(self, request: Request) -> None:
        content_type = CONTENT_TYPE_LATEST.encode("ascii")
        await request.respond(200, self.exposition(), [(b"content-type", content_type)])


class _LiveCollector(Collector):
    def __init__(self, views: EdgeViews) -> None:
        self._views = views

    def describe(self) -> list[Metric]:
        # Without it, registering would ask for the status before the edge is up.
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._views.status()
        build = GaugeMetricFamily(
            "iop_edge_build_info", "1, with the edge's version as a label", labels=["version"]
        )
        build.add_metric([version("iop")], 1)
        yield build
        yield _gauge(
            "iop_edge_ready",
            "1 while the edge takes new runs; 0 while it starts or drains",
            self._views.readiness().ready,
        )
        yield _gauge("iop_edge_generation", "The generation that the edge runs", status.generation)
        yield _gauge(
            "iop_edge_last_apply_rejected",
            "1 where the latest apply was rejected",
            status.last_error is not None,
        )
        yield _gauge(
            "iop_edge_pending_restart_paths",
            "Config paths that wait for a restart",
            len(status.pending_restart_paths),
        )
        yield _gauge(
            "iop_edge_active_runs",
            "Runs that have begun and not ended, those in the queue included",
            self._views.active_runs(),
        )
        dropped = CounterMetricFamily(
            "iop_edge_dropped_spans", "Spans that no collector took in time"
        )
        dropped.add_metric([], self._views.dropped_spans())
        yield dropped
        queue = status.queue
        yield _gauge("iop_edge_queue_pending", "Runs that wait for a slot", queue.pending)
        yield _gauge("iop_edge_queue_limit", "Runs that may wait", queue.max_queue)
        yield _gauge(
            "iop_edge_queue_oldest_seconds",
            "How long the oldest of them has waited",
            (queue.oldest_ms or 0) / 1000,
        )
        yield from _nodes(status, self._views.node_views())
        yield from _providers(status)


def _nodes(status: EdgeStatus, views: Sequence[NodeView]) -> Iterator[Metric]:
    connected = GaugeMetricFamily(
        "iop_edge_node_connected",
        "1 where the node's providers are candidates",
        labels=["node_id"],
    )
    draining = GaugeMetricFamily(
        "iop_edge_node_draining_registries",
        "Replaced registries of the node that still finish runs",
        labels=["node_id"],
    )
    generation = GaugeMetricFamily(
        "iop_edge_node_generation",
        "The generation that a node is to run, was sent, acknowledged, and runs",
        labels=["node_id", "fact"],
    )
    dropped = CounterMetricFamily(
        "iop_edge_node_dropped_frames",
        "Frames of the node that came too late or were not understood, and were ignored",
        labels=["node_id", "reason"],
    )
    for node in status.nodes:
        connected.add_metric([node.node_id], node.connected)
        draining.add_metric([node.node_id], len(node.draining_registries))
        for fact in ("desired", "sent", "acknowledged", "effective"):
            known = getattr(node.generation, fact)
            if known is not None:
                generation.add_metric([node.node_id, fact], known)
    for view in views:
        for reason, frames in sorted(view.dropped_frames.items()):
            dropped.add_metric([view.node_id, reason], frames)
    yield from (connected, draining, generation, dropped)


def _providers(status: EdgeStatus) -> Iterator[Metric]:
    labels = ["node_id", "provider_id"]
    capacity = GaugeMetricFamily(
        "iop_edge_provider_capacity", "Slots of the provider; 0 while disabled", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "iop_edge_provider_in_flight", "Slots of the provider in use", labels=labels
    )
    usable = GaugeMetricFamily(
        "iop_edge_provider_usable",
        "1 where the provider may be given runs as soon as it has a free slot",
        labels=labels,
    )
    for provider in status.providers:
        ids = [provider.node_id, provider.provider_id]
        capacity.add_metric(ids, provider.capacity)
        in_flight.add_metric(ids, provider.in_flight)
        usable.add_metric(ids, provider.status in ("available", "busy"))
    yield from (capacity, in_flight, usable)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
