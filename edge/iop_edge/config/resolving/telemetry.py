"""Whether the traces that a config asks for can be sent from here."""

from __future__ import annotations

from iop_edge.config.document import Document
from iop_edge.config.report import Report
from iop_edge.config.sources import Sources


def check_telemetry(document: Document, sources: Sources, report: Report) -> None:
    """Warn of an endpoint that nothing will be sent to: an edge runs as well without traces."""
    section = document.telemetry
    if section is None or section.otlp_endpoint is None or sources.can_trace:
        return
    report.warning(
        "not_installed",
        "the extra `iop[otel]` is not installed here, so no traces are sent",
        ("telemetry", "otlp_endpoint"),
    )
