"""A collector for tests: takes OTLP over HTTP, keeps what it got, or misbehaves as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

Mood = Literal["takes", "refuses", "hangs"]
ANSWER_CANARY = "collector answer canary"


class Seen(Struct, frozen=True, kw_only=True):
    """One span as the collector understood it. Ids in hex."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    is_error: bool
    attributes: dict[str, Any]


class Collector:
    """Listens on a port of 127.0.0.1 within `running`. All that it was sent is in `received`."""

    def __init__(self) -> None:
        self.mood: Mood = "takes"
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self._changed = threading.Condition()
        self._calm = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._calm.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    @property
    def spans(self) -> list[Seen]:
        return [
            _seen(resource.resource.attributes, span)
            for _, _, content in self.received
            for resource in ExportTraceServiceRequest.FromString(content).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, requests: int, within_s: float = 20.0) -> None:
        """Until so many requests have come. Not to be called on a loop. AssertionError if not."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.received) >= requests, within_s)
        assert came, f"{len(self.received)} of {requests} requests within {within_s} s"

    def wait_for_spans(self, *names: str, within_s: float = 20.0) -> list[Seen]:
        """All spans, as soon as there is one of each of these names for each time it is given."""
        wanted = sorted(names)
        with self._changed:
            came = self._changed.wait_for(
                lambda: sorted(span.name for span in self.spans) == wanted, within_s
            )
        assert came, f"{[span.name for span in self.spans]}, and not {wanted}, within {within_s} s"
        return self.spans

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                mood = collector.mood
                with collector._changed:
                    collector.received.append((self.path, dict(self.headers.items()), content))
                    collector._changed.notify_all()
                if mood == "hangs":
                    collector._calm.wait(60)
                    return
                self.send_response(200 if mood == "takes" else 400)
                self.end_headers()
                if mood == "refuses":
                    self.wfile.write(ANSWER_CANARY.encode())

            def log_message(self, *arguments: object) -> None:
                """Nothing on the terminal."""

        return Handler


def _seen(resource: Any, span: WireSpan) -> Seen:
    return Seen(
        service=_attributes(resource)["service.name"],
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
