"""Spans on their way to a collector: OTLP over HTTP, from a thread of its own (OPS-3).

Whoever ends a span puts it into a bounded queue and goes on. A thread sends what waits, in batches;
what does not fit, and what the collector would not take in time, is dropped and counted. So a
collector that is away, slow or mad costs spans, and nothing else. Needs the extra `iop[otel]`;
without an exporter nothing of it is imported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

from iop_shared import logs
from iop_shared.tracing import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

QUEUE_SPANS = 4096
BATCH_SPANS = 64
"""A batch is put into words within a few milliseconds, for which other threads may have to wait."""

EXPORT_INTERVAL_S = 1.0
EXPORT_TIMEOUT_S = 10.0
FLUSH_DEADLINE_S = 2.0
"""How long a stop waits for the spans that are left."""

_TRACES_PATH = "/v1/traces"

_log = logs.get("tracing")


def traces_url(endpoint: str) -> str:
    """Where traces go for this endpoint, which is a collector's base or the whole URL already."""
    url = urlsplit(endpoint)
    path = url.path.rstrip("/")
    if not path.endswith(_TRACES_PATH):
        path += _TRACES_PATH
    return urlunsplit(url._replace(path=path))


class OtlpExporter:
    """Takes spans within its async context, and sends them to one collector.

    Leaving the context sends what waits, for `FLUSH_DEADLINE_S` at most. Raises ImportError where
    the extra is not installed. What the standard variables `OTEL_EXPORTER_OTLP_HEADERS`,
    `…_CERTIFICATE` and `…_COMPRESSION` say holds; so do `OTEL_RESOURCE_ATTRIBUTES`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        service: str,
        instance_id: str,
        queue_spans: int = QUEUE_SPANS,
        export_timeout_s: float = EXPORT_TIMEOUT_S,
        flush_deadline_s: float = FLUSH_DEADLINE_S,
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        # It would quote what a collector answers; what matters is told below, once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._exporter: SpanExporter = OTLPSpanExporter(
            traces_url(endpoint), timeout=export_timeout_s
        )
        self._resource = Resource.create(
            {
                "service.name": service,
                "service.version": version("iop"),
                "service.instance.id": instance_id,
            }
        )
        self._queue: deque[Span] = deque()
        self._queue_spans = queue_spans
        self._flush_deadline_s = flush_deadline_s
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_left = False
        self._is_failing = False
        # Each is written by one thread alone: the loop's, and the exporter's.
        self._offered_spans = 0
        self._refused_spans = 0
        self._lost_spans = 0
        self._exported_spans = 0
        # Nothing that hangs in it may keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="otlp", daemon=True)

    @property
    def dropped_spans(self) -> int:
        """Spans that are lost: there was no room, or the collector would not take them."""
        return self._refused_spans + self._lost_spans

    def take(self, span: Span) -> None:
        """SpanSink: from the loop's thread alone."""
        self._offered_spans += 1
        waiting = len(self._queue)
        if waiting >= self._queue_spans or self._is_stopping:
            self._refused_spans += 1
            return
        self._queue.append(span)
        if waiting + 1 >= BATCH_SPANS:
            self._wake.set()

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, self._flush_deadline_s)
        if self._thread.is_alive():
            # It gives up where it waits to try again; where it waits for an answer it is left.
            self._is_left = True
            self._queue.clear()
            self._exporter.shutdown()
        dropped = self._offered_spans - self._exported_spans
        if dropped:
            _log.warning("trace_spans_dropped", dropped=dropped, exported=self._exported_spans)

    # -- in its own thread ---------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            self._wake.wait(EXPORT_INTERVAL_S)
            self._wake.clear()
            while batch := self._take_batch():
                self._export(batch)
            if self._is_stopping and not self._queue:
                self._exporter.shutdown()
                return

    def _take_batch(self) -> list[Span]:
        batch: list[Span] = []
        while len(batch) < BATCH_SPANS:
            try:
                batch.append(self._queue.popleft())
            except IndexError:
                break
        return batch

    def _export(self, batch: list[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._readable(span) for span in batch])
            is_taken = result is SpanExportResult.SUCCESS
        except Exception:
            # A thread that ends here would never send again.
            _log.exception("trace_export_broken")
            is_taken = False
        if is_taken:
            self._exported_spans += len(batch)
        else:
            self._lost_spans += len(batch)
        if is_taken == self._is_failing and not self._is_left:
            self._is_failing = not is_taken
            if is_taken:
                _log.warning("trace_export_recovered", dropped=self.dropped_spans)
            else:
                _log.warning(
                    "trace_export_failed", text="the collector takes no spans; it is tried again"
                )

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        trace_id = int(span.context.trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED)
        parent = None
        if span.parent_id:
            parent = SpanContext(
                trace_id,
                int(span.parent_id, 16),
                is_remote=span.kind == "server",
                trace_flags=flags,
            )
        return ReadableSpan(
            span.name,
            SpanContext(
                trace_id, int(span.context.span_id, 16), is_remote=False, trace_flags=flags
            ),
            parent,
            self._resource,
            dict(span.attributes),
            kind=SpanKind.SERVER if span.kind == "server" else SpanKind.CLIENT,
            status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
            start_time=span.started_ns,
            end_time=span.ended_ns,
        )
