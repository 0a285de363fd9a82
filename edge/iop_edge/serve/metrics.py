"""Prometheus metrics of the edge, read from live state when they are asked for.

Nothing is counted on the path of a request: what changes with each run is taken from its usage
record, everything else is read at the scrape. Labels are ids out of the config, never a URL, a
token or anything a caller sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from iop_edge.runtime.usage import UsageRecord
from iop_edge.serve.admin.shapes import EdgeStatus
from iop_edge.serve.http.protocol import AsgiApp
from iop_edge.serve.http.routes import Request, Route, Router

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class StatusSource(Protocol):
    def __call__(self) -> EdgeStatus: ...


class EdgeMetrics:
    """One registry for one edge. `observe` takes each finished run's record."""

    def __init__(self, status: StatusSource) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self._registry = CollectorRegistry()
        self._registry.register(_StatusCollector(status))
        labels = ["model", "provider_id"]
        self._runs = Counter(
            "iop_edge_runs",
            "Runs that have ended, by how they ended",
            [*labels, "end"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "iop_edge_tokens",
            "Tokens that upstreams reported",
            [*labels, "direction"],
            registry=self._registry,
        )
        self._duration = Histogram(
            "iop_edge_run_duration_seconds",
            "Time from a run's start to its end",
            labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first_byte = Histogram(
            "iop_edge_run_first_byte_seconds",
            "Time from a run's start to the first byte of its answer",
            labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._queue_wait = Histogram(
            "iop_edge_queue_wait_seconds",
            "Time that runs waited for a slot",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def observe(self, record: UsageRecord) -> None:
        # Without a provider of the pool the model's name may be any word of a caller: no label.
        provider_id = record.provider_id or ""
        model = record.model if provider_id else ""
        self._runs.labels(model, provider_id, record.end).inc()
        self._duration.labels(model, provider_id).observe(record.duration_ms / 1000)
        self._queue_wait.labels(model).observe(record.queue_ms / 1000)
        if record.first_byte_ms is not None:
            self._first_byte.labels(model, provider_id).observe(record.first_byte_ms / 1000)
        if record.input_tokens:
            self._tokens.labels(model, provider_id, "input").inc(record.input_tokens)
        if record.output_tokens:
            self._tokens.labels(model, provider_id, "output").inc(record.output_tokens)

    def app(self) -> AsgiApp:
        """An ASGI application that answers `GET /metrics`."""
        return Router([Route(method="GET", path="/metrics", handler=self._respond)])

    async def _respond(self, request: Request) -> None:
        content_type = CONTENT_TYPE_LATEST.encode("ascii")
        await request.respond(
            200, generate_latest(self._registry), [(b"content-type", content_type)]
        )


class _StatusCollector(Collector):
    def __init__(self, status: StatusSource) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        # Without it, registering would ask for the status before the edge is up.
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield _gauge("iop_edge_generation", "The generation that the edge runs", status.generation)
        yield _gauge("iop_edge_queue_pending", "Runs that wait for a slot", status.queue.pending)
        yield _gauge("iop_edge_queue_limit", "Runs that may wait", status.queue.max_queue)
        yield _gauge(
            "iop_edge_pending_restart_paths",
            "Config paths that wait for a restart",
            len(status.pending_restart_paths),
        )
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
        for node in status.nodes:
            connected.add_metric([node.node_id], float(node.connected))
            draining.add_metric([node.node_id], len(node.draining_registries))
        yield connected
        yield draining
        labels = ["node_id", "provider_id"]
        capacity = GaugeMetricFamily(
            "iop_edge_provider_capacity", "Slots of the provider; 0 while disabled", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "iop_edge_provider_in_flight", "Slots of the provider in use", labels=labels
        )
        for provider in status.providers:
            capacity.add_metric([provider.node_id, provider.provider_id], provider.capacity)
            in_flight.add_metric([provider.node_id, provider.provider_id], provider.in_flight)
        yield capacity
        yield in_flight


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
