"""Traces at an edge: asked for or not, with the extra or without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iop_edge import app
from iop_edge.app import Edge
from iop_edge.config.load import Loaded, load
from iop_edge.config.sources import SecretUnreadable, SourceFile, Sources
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.tracing import TracedNodeHub
from iop_shared.otlp import OtlpExporter

ASKED_FOR = b'telemetry: { otlp_endpoint: "http://127.0.0.1:4318" }\n'


def _no_secret(path: str) -> object:
    raise SecretUnreadable("does not exist")


def loaded(content: bytes, *, can_trace: bool = True) -> Loaded:
    return load(
        Sources(
            files=(SourceFile("edge.yaml", content),),
            environment={},
            read_secret=_no_secret,  # type: ignore[arg-type]  # it never returns
            fingerprint_key=b"k",
            can_trace=can_trace,
        )
    )


def edge_of(config: Loaded, folder: Path) -> Edge:
    return Edge(config, [folder / "edge.yaml"], b"k")


@pytest.mark.req("OPS-3", "CFG-21")
def test_an_endpoint_without_the_extra_is_a_warning_in_the_check_and_at_start() -> None:
    assert loaded(ASKED_FOR).warnings == ()
    [warning] = loaded(ASKED_FOR, can_trace=False).warnings
    assert (warning.code, warning.path) == ("not_installed", "telemetry.otlp_endpoint")
    assert "iop[otel]" in warning.message
    assert loaded(b"{}", can_trace=False).warnings == ()


@pytest.mark.req("OPS-3")
async def test_an_edge_traces_where_it_is_asked_to_and_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(edge_of(loaded(ASKED_FOR), tmp_path).hub) is TracedNodeHub
    assert type(edge_of(loaded(b"{}"), tmp_path).hub) is NodeHub
    monkeypatch.setattr(app, "can_export", lambda: False)
    assert type(edge_of(loaded(ASKED_FOR), tmp_path).hub) is NodeHub


@pytest.mark.req("OPS-3")
async def test_spans_that_were_lost_are_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = edge_of(loaded(ASKED_FOR), tmp_path)
    monkeypatch.setattr(OtlpExporter, "dropped_spans", 7)
    assert b"iop_edge_dropped_spans_total 7.0" in edge.metrics.exposition()
    without = edge_of(loaded(b"{}"), tmp_path)
    assert b"iop_edge_dropped_spans_total 0.0" in without.metrics.exposition()


@pytest.mark.req("OPS-3")
def test_nothing_of_the_extra_is_imported_before_it_is_used() -> None:
    program = """
import sys
import iop_edge.app, iop_edge.cli.main, iop_node.app, iop_node.cli.main
print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "requests")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr
