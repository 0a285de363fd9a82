"""Spans of an edge: one of each run, and one below it of each attempt that was sent to a node.

A run's trace begins where its first attempt is opened: the caller's context is taken up, or a new
trace begun, and from then on the node is told the attempt's span as its parent (OPS-3). All else is
taken from what is known when an attempt or a run is over. Without a `telemetry.otlp_endpoint`
nothing of this exists. Spans name ids and codes; of a caller's own words they hold none (SEC-1).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from iop.runtime_pb2 import AttemptOpen, EdgeFrame
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.node_hub import NodeHub, PoolEvents
from iop_edge.runtime.usage import FinishedRun
from iop_shared.ids import NodeId
from iop_shared.session.flow import WindowBudget
from iop_shared.tracing import Span, SpanSink, TraceContext, known


class RunTraces:
    """What is known of the traces of runs that are under way, and their spans at the end.

    `has_model` says whether a name is one of the config's: no other is an attribute.
    """

    def __init__(self, spans: SpanSink, *, has_model: Callable[[str], bool]) -> None:
        self._spans = spans
        self._has_model = has_model
        self._open: dict[str, _RunTrace] = {}

    @property
    def open_traces(self) -> int:
        """Runs that have been traced and have not ended."""
        return len(self._open)

    def opening(self, node_id: NodeId, opening: AttemptOpen) -> Callable[[Attempt], None] | None:
        """Make the attempt's span the parent of what its node does.

        Returns what is to be called with the attempt as it ends; None where the caller's trace is
        not sampled, which then goes on as it came.
        """
        trace = self._open.get(opening.run_id)
        if trace is None:
            trace = self._open[opening.run_id] = _RunTrace(opening.traceparent)
        if not trace.context.is_sampled:
            return None
        context = trace.context.child()
        opening.traceparent = context.traceparent
        started_ns = time.time_ns()
        parent_id = trace.context.span_id
        facts = known(
            run_id=opening.run_id,
            attempt=opening.attempt,
            generation=opening.generation,
            node_id=node_id,
            provider_id=opening.provider_id,
        )

        def ended(attempt: Attempt) -> None:
            status, end = attempt.status, attempt.end or ""
            self._spans.take(
                Span(
                    name="attempt",
                    kind="client",
                    context=context,
                    parent_id=parent_id,
                    started_ns=started_ns,
                    ended_ns=time.time_ns(),
                    attributes={**facts, **known(end=end, upstream_status=status)},
                    is_error=end.startswith("error:") or (status or 0) >= 400,
                )
            )

        return ended

    def finished(self, finished: FinishedRun) -> None:
        """Tell of a run that is over, whether or not any node had to do with it."""
        record = finished.record
        trace = self._open.pop(record.run_id, None) or _RunTrace(finished.traceparent)
        if not trace.context.is_sampled:
            return
        # To the millisecond, and never later than it was: no attempt begins before its run.
        started = datetime.fromisoformat(record.started_at)
        self._spans.take(
            Span(
                name="run",
                kind="server",
                context=trace.context,
                parent_id=trace.caller_id,
                started_ns=round(started.timestamp() * 1e3) * 1_000_000,
                ended_ns=time.time_ns(),
                attributes=known(
                    run_id=record.run_id,
                    request_id=record.request_id,
                    model=record.model if self._has_model(record.model) else None,
                    provider_id=record.provider_id,
                    node_id=record.node_id,
                    generation=record.generation,
                    attempts=record.attempts,
                    end=record.end,
                    input_tokens=record.input_tokens,
                    output_tokens=record.output_tokens,
                ),
                is_error=record.end.startswith("error:"),
            )
        )


class _RunTrace:
    """The span that a run has, below the caller's where the caller has one."""

    __slots__ = ("caller_id", "context")

    def __init__(self, traceparent: str) -> None:
        caller = TraceContext.parse(traceparent)
        self.caller_id = "" if caller is None else caller.span_id
        self.context = TraceContext.root() if caller is None else caller.child()


class TracedNodeHub(NodeHub):
    """A hub whose attempts are traced. Whatever else it does is as without."""

    def __init__(
        self,
        traces: RunTraces,
        *,
        boot_id: str,
        version: str,
        pool: PoolEvents,
        budget: WindowBudget,
    ) -> None:
        super().__init__(boot_id=boot_id, version=version, pool=pool, budget=budget)
        self._traces = traces

    def open_attempt(self, node_id: NodeId, frame: EdgeFrame, body: bytes) -> Attempt:
        ended = self._traces.opening(node_id, frame.attempt_open)
        attempt = super().open_attempt(node_id, frame, body)
        attempt.tell_end = ended
        return attempt
