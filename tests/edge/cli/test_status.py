from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from iop_edge.cli.status import status
from iop_edge.pool.pool import QueueStatus
from iop_edge.refresh.receipt import ErrorReport, LastError
from iop_edge.serve.admin.shapes import (
    DrainingRegistry,
    EdgeStatus,
    GenerationFacts,
    ModelStatus,
    NodeStatus,
    ProviderStatus,
)
from iop_shared.ids import Generation, ModelId, NodeId, ProviderId

SEVEN, EIGHT = Generation(7), Generation(8)

BUSY = EdgeStatus(
    generation=EIGHT,
    started_at=datetime(2026, 1, 2, tzinfo=UTC),
    config_digest="sha256:0123456789abcdef",
    last_error=LastError(
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        candidate_digest=None,
        errors=(ErrorReport(code="unknown_key", path="nodes[gpu-a]", message="no such key"),),
        omitted=0,
    ),
    pending_restart_paths=("server.listen",),
    queue=QueueStatus(pending=3, max_queue=16, oldest_ms=1250.0),
    nodes=(
        NodeStatus(
            node_id=NodeId("gpu-a"),
            alias=None,
            agent_kind="node",
            concurrency=0,
            connected=True,
            state="connected",
            session=4,
            generation=GenerationFacts(
                desired=EIGHT, sent=EIGHT, acknowledged=SEVEN, effective=SEVEN
            ),
            last_failure="no_ca: missing",
            active_runs=2,
            draining_registries=(
                DrainingRegistry(generation=SEVEN, active_runs=1, deadline_ms=1000),
            ),
        ),
    ),
    providers=(
        ProviderStatus(
            provider_id=ProviderId("p"),
            node_id=NodeId("gpu-a"),
            status="busy",
            health="healthy",
            capacity=8,
            in_flight=8,
            long_context_capacity=2,
            long_in_flight=1,
            priority=10,
        ),
    ),
    models=(
        ModelStatus(
            model_id=ModelId("my [bold]model"),
            display_name=None,
            providers=(ProviderId("p"), ProviderId("q")),
            available_providers=1,
            context_window_tokens=None,
        ),
    ),
)

IDLE = EdgeStatus(
    generation=Generation(1),
    started_at=datetime(2026, 1, 2, tzinfo=UTC),
    config_digest="sha256:0123456789abcdef",
    last_error=None,
    pending_restart_paths=(),
    queue=QueueStatus(pending=0, max_queue=16, oldest_ms=None),
    nodes=(),
    providers=(),
    models=(),
)


class ScriptedEdge:
    """Gives its answers one after another, and then breaks off."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        edge = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/status"
                if not edge.answers:
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(msgspec.json.encode(edge.answers.pop(0)))

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def edge() -> Iterator[ScriptedEdge]:
    edge = ScriptedEdge()
    thread = threading.Thread(target=edge.server.serve_forever, args=(0.01,))
    thread.start()
    yield edge
    edge.server.shutdown()
    edge.server.server_close()
    thread.join()


@pytest.mark.req("REF-9", "REF-12", "POOL-8")
def test_status_is_plain_lines_where_there_is_no_terminal(edge: ScriptedEdge) -> None:
    edge.answers = [BUSY]
    ran = CliRunner().invoke(status, ["--admin", edge.address])
    assert ran.exit_code == 0
    assert ran.stdout.splitlines() == [
        "generation 8  sha256:0123456789ab…",
        "queue 3 of 16, the oldest for 1.2 s",
        "restart needed for server.listen",
        "the last apply was rejected (2026-01-02 03:04:05)",
        "  unknown_key: nodes[gpu-a]: no such key",
        (
            'node gpu-a state=connected runs="2 +1 draining" generation="7 (wants 8)"'
            ' failure="no_ca: missing"'
        ),
        "provider p node=gpu-a status=busy health=healthy slots=8/8 long=1/2 priority=10",
        'model "my [bold]model" usable=1/2 providers="p, q"',
    ]


def test_an_edge_without_nodes_and_models_says_so(edge: ScriptedEdge) -> None:
    edge.answers = [IDLE]
    ran = CliRunner().invoke(status, ["--admin", edge.address])
    assert ran.stdout.splitlines() == [
        "generation 1  sha256:0123456789ab…",
        "queue 0 of 16",
        "no nodes are configured",
        "no models are configured",
    ]


def test_on_a_terminal_it_is_tables(edge: ScriptedEdge) -> None:
    edge.answers = [BUSY]
    terminal = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": "120"}
    ran = CliRunner().invoke(status, ["--admin", edge.address], env=terminal)
    assert ran.exit_code == 0
    assert "PROVIDER" in ran.stdout
    assert "my [bold]model" in ran.stdout


def test_json_is_the_document_as_the_edge_gave_it(edge: ScriptedEdge) -> None:
    edge.answers = [BUSY]
    ran = CliRunner().invoke(status, ["--admin", edge.address, "--json"])
    assert json.loads(ran.stdout) == json.loads(msgspec.json.encode(BUSY))


def test_watching_shows_it_anew_until_the_edge_is_gone(edge: ScriptedEdge) -> None:
    edge.answers = [IDLE, BUSY]
    arguments = ["--admin", edge.address, "--watch", "--interval", "0.1", "--json"]
    ran = CliRunner().invoke(status, arguments)
    assert ran.exit_code == 5
    *shown, last = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["generation"] for one in shown] == [1, 8]
    assert last["error"]["code"] == "unreachable"
    assert "not reachable" in ran.stderr


@pytest.mark.parametrize("document", [{"hello": "world"}, {"error": {"code": "host_refused"}}, []])
@pytest.mark.parametrize("flags", [(), ("--json",), ("--watch",)])
def test_what_is_no_status_is_said(
    edge: ScriptedEdge, document: Any, flags: tuple[str, ...]
) -> None:
    edge.answers = [document]
    ran = CliRunner().invoke(status, ["--admin", edge.address, *flags])
    assert ran.exit_code == 1
    assert "no edge" in ran.stderr
    assert ("no_answer" in ran.stdout) == ("--json" in flags)
