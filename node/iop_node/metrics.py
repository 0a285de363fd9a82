"""Prometheus metrics of a node, on a listener of its own (`IOP_NODE_METRICS`).

What is counted is counted where an attempt begins and ends; everything else is read from live
state when it is asked for. Labels are ids out of the edge's config and stable codes, never a URL,
a token or anything a caller sent. Without the listener nothing here is on the path of an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from iop_node.adapters.base import Responder, RunEvent
from iop_node.identity import SettingsInvalid
from iop_node.runtime.router import Attempt
from iop_node.scrape import answering
from iop_shared import logs
from iop_shared.errors import Fault

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_log = logs.get("metrics")

Execute = Callable[[Attempt, Responder], Awaitable[None]]


class NodeState(Struct, frozen=True, kw_only=True):
    """What a scrape shows of this moment. `session` and `generation` are 0 where there is none."""

    is_connected: bool
    session: int
    generation: int
    active_runs: int
    draining_registries: int
    dropped_frames: Mapping[str, int]
    dropped_spans: int = 0


class NodeMetrics:
    """One registry for one node."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self._registry = CollectorRegistry()
        self._attempts = Counter(
            "iop_node_attempts",
            "Attempts that have ended, by how they ended",
            ["adapter", "end"],
            registry=self._registry,
        )
        self._first_byte = Histogram(
            "iop_node_upstream_first_byte_seconds",
            "Time from the first byte of a request to the first of its answer, at the upstream",
            ["adapter"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def observing(self, execute: Execute) -> Execute:
        """`execute`, with each attempt counted and its upstream's first byte timed."""

        async def observed(attempt: Attempt, out: Responder) -> None:
            adapter = attempt.work.adapter
            timed = _TimedResponder(out, self._first_byte.labels(adapter).observe)
            end = "error:internal"
            try:
                await execute(attempt, timed)
                end = "completed"
            except Fault as fault:
                end = f"error:{fault.code.value}"
                raise
            except asyncio.CancelledError:
                end = "cancelled"
                raise
            finally:
                self._attempts.labels(adapter, end).inc()

        return observed

    @asynccontextmanager
    async def serving(
        self, address: str | None, state: Callable[[], NodeState]
    ) -> AsyncIterator[None]:
        """Answer `GET /metrics` at `host:port` within the block; nothing where there is no address.

        Raises SettingsInvalid where it cannot be listened on.
        """
        if address is None:
            yield
            return
        self._registry.register(_StateCollector(state))
        host, _, port = address.rpartition(":")
        async with AsyncExitStack() as stack:
            try:
                bound = await stack.enter_async_context(
                    answering(host.strip("[]"), int(port), "/metrics", self._scrape)
                )
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise SettingsInvalid(
                    f"IOP_NODE_METRICS: {address} cannot be listened on ({reason})"
                ) from None
            _log.info("metrics_ready", address=f"{host}:{bound}")
            yield

    def _scrape(self) -> tuple[str, bytes]:
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)


class _TimedResponder:
    """Passes everything on, and tells once how long the upstream took to begin its answer."""

    __slots__ = ("_begun_at", "_observe", "_out")

    def __init__(self, out: Responder, observe: Callable[[float], None]) -> None:
        self._out = out
        self._observe = observe
        self._begun_at: float | None = None

    def started(self) -> None:
        self._begun_at = asyncio.get_running_loop().time()
        self._out.started()

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self._answer_begins()
        self._out.head(status, headers)

    def chunk(self, content: bytes) -> Coroutine[Any, Any, None]:
        return self._out.chunk(content)

    def event(self, event: RunEvent) -> Coroutine[Any, Any, None]:
        self._answer_begins()
        return self._out.event(event)

    def _answer_begins(self) -> None:
        if self._begun_at is not None:
            self._observe(asyncio.get_running_loop().time() - self._begun_at)
            self._begun_at = None


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], NodeState]) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        # Without it, registering would ask for a state before there is one.
        return []

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        yield _gauge(
            "iop_node_connected",
            "1 while a session is open and a payload of it acknowledged",
            float(state.is_connected),
        )
        yield _gauge("iop_node_session", "The session's number at the edge", state.session)
        yield _gauge(
            "iop_node_effective_generation",
            "The edge's generation of the registry that takes new runs",
            state.generation,
        )
        yield _gauge("iop_node_active_runs", "Runs under way", state.active_runs)
        yield _gauge(
            "iop_node_draining_registries",
            "Replaced registries that still finish runs",
            state.draining_registries,
        )
        dropped = CounterMetricFamily(
            "iop_node_dropped_frames", "Frames of the edge that meant nothing", labels=["reason"]
        )
        for reason, count in sorted(state.dropped_frames.items()):
            dropped.add_metric([reason], count)
        yield dropped
        spans = CounterMetricFamily(
            "iop_node_dropped_spans", "Spans that no collector took in time"
        )
        spans.add_metric([], state.dropped_spans)
        yield spans


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
