"""Spans of a node: one of each attempt, from the edge's frame to the upstream's last byte.

The edge's envelope names the parent, and the upstream is told the node's span as its own (OPS-3).
Spans name ids and codes, and nothing that was asked or answered (SEC-1). Without
`IOP_OTLP_ENDPOINT` nothing here is on the path of an attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import structs

from iop_node.adapters.base import Responder, RunEvent
from iop_node.metrics import Execute
from iop_node.runtime.router import Attempt
from iop_shared.errors import Fault
from iop_shared.tracing import Span, SpanSink, TraceContext, known

HEADER = "traceparent"


class AttemptTraces:
    """Makes the spans of one node. `node_id` is what the edge calls it, empty while unknown."""

    def __init__(self, spans: SpanSink, *, node_id: Callable[[], str]) -> None:
        self._spans = spans
        self._node_id = node_id

    def observing(self, execute: Execute) -> Execute:
        """`execute`, with a span of each attempt whose trace is sampled or begins here."""

        async def observed(attempt: Attempt, out: Responder) -> None:
            work = attempt.work
            told = next((value for name, value in work.headers if name == HEADER), "")
            parent = TraceContext.parse(told)
            context = TraceContext.root() if parent is None else parent.child()
            if not context.is_sampled:
                await execute(attempt, out)
                return
            headers = (
                *(pair for pair in work.headers if pair[0] != HEADER),
                (HEADER, context.traceparent),
            )
            traced = structs.replace(attempt, work=structs.replace(work, headers=headers))
            seen = _SeenStatus(out)
            started_ns = time.time_ns()
            end = "error:internal"
            try:
                await execute(traced, seen)
                end = "completed"
            except Fault as fault:
                end = f"error:{fault.code.value}"
                raise
            except asyncio.CancelledError:
                end = "cancelled"
                raise
            finally:
                self._spans.take(
                    Span(
                        name="node attempt",
                        kind="server",
                        context=context,
                        parent_id="" if parent is None else parent.span_id,
                        started_ns=started_ns,
                        ended_ns=time.time_ns(),
                        attributes=known(
                            run_id=attempt.run_id,
                            attempt=attempt.number,
                            generation=attempt.generation,
                            node_id=self._node_id(),
                            provider_id=attempt.provider_id,
                            adapter=work.adapter,
                            end=end,
                            upstream_status=seen.status,
                        ),
                        is_error=end.startswith("error:") or (seen.status or 0) >= 400,
                    )
                )

        return observed


class _SeenStatus:
    """Passes everything on, and keeps the status of the upstream's answer."""

    __slots__ = ("_out", "status")

    def __init__(self, out: Responder) -> None:
        self._out = out
        self.status: int | None = None

    def started(self) -> None:
        self._out.started()

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self._out.head(status, headers)

    def chunk(self, content: bytes) -> Coroutine[Any, Any, None]:
        return self._out.chunk(content)

    def event(self, event: RunEvent) -> Coroutine[Any, Any, None]:
        return self._out.event(event)
