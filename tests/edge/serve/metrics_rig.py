"""An edge that listens nowhere, what its metrics say, and Prometheus' own opinion of that."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from iop_edge.app import Edge
from iop_edge.config.load import load
from iop_edge.runtime.sources import read_sources
from iop_edge.runtime.usage import FinishedRun, UsageRecord

ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
openai:
  enabled: true
  provider_id: lab
  adapter: local
  target: anything
  model_routes: [{ id: old, model: routed, adapter: local, target: old }]
models:
  - { id: smart, providers: { p1: served } }
nodes:
  - id: n1
    token: { sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" }
    adapters: [{ key: local, type: openai_compat, base_url: "http://127.0.0.1:9" }]
    providers:
      - id: p1
        type: vllm
        category: local_inference
        adapter: local
        models: [served]
        capacity: 3
"""


def edge_at(folder: Path) -> Edge:
    """An edge of this config. To be called within a running loop."""
    path = folder / "edge.yaml"
    path.write_text(CONFIG)
    key = os.urandom(32)
    return Edge(load(read_sources([path], fingerprint_key=key)), [path], key)


def finished(**fields: Any) -> FinishedRun:
    known: dict[str, Any] = {
        "run_id": "run_1",
        "request_id": "req_1",
        "started_at": "2026-08-02T10:00:00.000+00:00",
        "model": "smart",
        "token_ref": None,
        "principal_ref": None,
        "attribution": None,
        "provider_id": "p1",
        "node_id": "n1",
        "target": "served",
        "generation": 1,
        "input_tokens": 5,
        "output_tokens": 7,
        "usage_source": "reported",
        "attempts": 1,
        "repaired": False,
        "end": "completed",
        "queue_ms": 40.0,
        "first_byte_ms": 300.0,
        "duration_ms": 2000.0,
    }
    return FinishedRun(record=UsageRecord(**{**known, **fields}), decisions=())


def families(edge: Edge) -> dict[str, Metric]:
    """Everything that a scrape would hold, by family."""
    text = edge.metrics.exposition().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(edge: Edge, name: str, **labels: str) -> float | None:
    """One sample, or None where there is none with these labels."""
    for family in families(edge).values():
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def promtool(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run Prometheus' checker. Skips the test where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    return subprocess.run([program, *arguments], input=stdin, capture_output=True, check=False)
