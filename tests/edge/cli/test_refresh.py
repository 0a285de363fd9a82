from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from iop_edge.cli.health import health
from iop_edge.cli.refresh import refresh
from iop_edge.cli.status import status
from iop_edge.refresh.receipt import (
    ChangeReport,
    ErrorReport,
    GenerationStep,
    Mode,
    NodeReport,
    Outcome,
    RefreshResult,
    Status,
    rejection,
)
from iop_shared.ids import Generation, NodeId


class ScriptedEdge:
    """An admin listener that gives one answer, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.content_type = "application/json"
        self.body = b"{}"
        self.asked: list[tuple[str, str, Any]] = []
        edge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                edge.asked.append((self.path, self.headers["content-type"], json.loads(body)))
                self.do_answer()

            def do_GET(self) -> None:
                edge.asked.append((self.path, "", None))
                self.do_answer()

            def do_answer(self) -> None:
                self.send_response(edge.status)
                self.send_header("content-type", edge.content_type)
                self.end_headers()
                self.wfile.write(edge.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def answers(self, document: Any, status: int = 200) -> None:
        self.status = status
        self.body = msgspec.json.encode(document)

    def streams(self, *lines: Any) -> None:
        self.content_type = "application/x-ndjson"
        self.body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@pytest.fixture
def edge() -> Iterator[ScriptedEdge]:
    edge = ScriptedEdge()
    thread = threading.Thread(target=edge.server.serve_forever, args=(0.01,))
    thread.start()
    yield edge
    edge.server.shutdown()
    edge.server.server_close()
    thread.join()


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as claimed:
        claimed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{claimed.getsockname()[1]}"


def result(
    status: Status = "applied",
    mode: Mode = "apply",
    *,
    outcome: Outcome | None = None,
    has_changes: bool = True,
) -> RefreshResult:
    change = ChangeReport(
        path="nodes[gpu-a].providers[p].capacity",
        reload="restart" if status == "restart_required" else "live",
        old=8,
        new=12,
        reason="It is bound." if status == "restart_required" else None,
    )
    after = Generation(8) if (status, mode) == ("applied", "apply") else Generation(7)
    nodes = () if outcome is None else (NodeReport(node_id=NodeId("gpu-a"), outcome=outcome),)
    return RefreshResult(
        status=status,
        mode=mode,
        generation=GenerationStep(before=Generation(7), after=after),
        candidate_digest="sha256:00",
        changes=(change,) if has_changes else (),
        restart_required_paths=(change.path,) if status == "restart_required" else (),
        nodes=nodes,
    )


def run(edge: ScriptedEdge, *arguments: str) -> Result:
    return CliRunner().invoke(refresh, ["--admin", edge.address, *arguments])


REJECTED = rejection(
    [
        ErrorReport(
            code="unknown_provider",
            path="models[smart].providers",
            file="edge.yaml",
            line=41,
            column=7,
            message="no such provider",
        )
    ],
    mode="apply",
    running=Generation(7),
    omitted=3,
)


@pytest.mark.req("REF-1")
@pytest.mark.parametrize(
    ("answer", "http_status", "arguments", "exit_code"),
    [
        (result(), 200, (), 0),
        (result(has_changes=False), 200, (), 0),
        (result(outcome="not_connected"), 200, (), 0),
        (result(outcome="refused"), 200, (), 8),
        (result(outcome="timed_out"), 200, (), 8),
        (structs.replace(result(), errors=REJECTED.errors), 200, (), 8),
        (result("restart_required"), 409, (), 4),
        (REJECTED, 422, (), 1),
        (REJECTED, 412, (), 1),
        (REJECTED, 403, (), 1),
        (result(mode="dry_run", outcome="would_send"), 200, ("--dry-run",), 3),
        (result(mode="dry_run", has_changes=False), 200, ("--dry-run",), 0),
        (result("restart_required", "dry_run"), 200, ("--dry-run",), 4),
    ],
)
def test_the_exit_status_says_what_became_of_it(
    edge: ScriptedEdge,
    answer: RefreshResult,
    http_status: int,
    arguments: tuple[str, ...],
    exit_code: int,
) -> None:
    edge.answers(answer, http_status)
    ran = run(edge, *arguments)
    assert ran.exit_code == exit_code
    mode = "dry_run" if arguments else "apply"
    assert edge.asked == [("/refresh", "application/json", {"mode": mode})]


@pytest.mark.req("REF-12")
def test_changes_are_shown_with_both_values_and_the_reason(edge: ScriptedEdge) -> None:
    edge.answers(result("restart_required"), 409)
    lines = run(edge).stdout.splitlines()
    assert lines == [
        "restart nodes[gpu-a].providers[p].capacity: 8 → 12",
        "        It is bound.",
        "restart required: 1 path needs one; nothing applied, generation 7 goes on",
    ]


@pytest.mark.req("REF-9")
def test_each_node_has_a_line_as_it_answers_and_only_one(edge: ScriptedEdge) -> None:
    whole = result(outcome="refused")
    node = structs.replace(whole.nodes[0], generation=Generation(7), detail="no_ca: missing")
    edge.streams({"node": node}, {"result": structs.replace(whole, nodes=(node,))})
    ran = run(edge)
    assert ran.exit_code == 8
    lines = ran.stdout.splitlines()
    assert lines[0] == "node    gpu-a: refused (runs generation 7): no_ca: missing"
    assert lines[-1] == "applied: 1 change, generation 7 → 8"
    assert sum("gpu-a:" in line for line in lines) == 1


@pytest.mark.req("REF-5")
def test_errors_are_shown_with_their_place_and_the_rest_is_counted(edge: ScriptedEdge) -> None:
    edge.answers(REJECTED, 422)
    lines = run(edge).stdout.splitlines()
    assert lines == [
        "edge.yaml:41:7: unknown_provider: models[smart].providers: no such provider",
        "… and 3 more",
        "rejected: nothing has changed, generation 7 goes on",
    ]


@pytest.mark.req("REF-2")
def test_json_is_the_result_as_the_edge_gave_it(edge: ScriptedEdge) -> None:
    whole = result(outcome="acknowledged")
    edge.streams({"node": whole.nodes[0]}, {"result": whole})
    ran = run(edge, "--json")
    assert json.loads(ran.stdout) == json.loads(msgspec.json.encode(whole))


@pytest.mark.req("REF-1")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_an_edge_that_is_not_there_is_said_clearly(nobody: str, arguments: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(refresh, ["--admin", nobody, *arguments])
    assert ran.exit_code == 5
    assert f"not reachable at {nobody}" in ran.stderr
    assert "iop-edge serve" in ran.stderr
    if arguments:
        assert json.loads(ran.stdout)["error"]["code"] == "unreachable"


@pytest.mark.req("REF-1")
def test_an_edge_that_goes_away_between_two_nodes_is_not_reachable() -> None:
    """Its answer breaks off between two chunks, without the one that ends it."""
    line = msgspec.json.encode({"node": result(outcome="acknowledged").nodes[0]}) + b"\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
    chunk = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(line), line)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                while b"apply" not in connection.recv(65536):
                    pass
                connection.sendall(head + chunk)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ran = CliRunner().invoke(refresh, ["--admin", address])
        thread.join()
    assert ran.exit_code == 5
    assert "gpu-a: acknowledged" in ran.stdout
    assert "went away" in ran.stderr


def test_what_answers_but_is_no_edge_is_said(edge: ScriptedEdge) -> None:
    for body in (b"<html>", b"[]", b'{"status": "applied"}', b""):
        edge.body = body
        ran = run(edge)
        assert ran.exit_code == 1
        assert "edge" in ran.stderr
        assert "Traceback" not in ran.output


# --- where the edge is found ------------------------------------------------------------------


@pytest.mark.req("REF-1")
def test_the_address_comes_from_the_config_however_invalid_it_is(
    edge: ScriptedEdge, tmp_path: Path
) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(f"admin: {{ listen: {edge.address} }}\nno_such_key: 1\nnodes: 7\n")
    edge.answers(REJECTED, 422)
    ran = CliRunner().invoke(refresh, ["--config", str(file)], env={"IOP_EDGE_ADMIN": ""})
    assert ran.exit_code == 1
    assert len(edge.asked) == 1


def test_the_environment_stands_over_the_config_and_the_option_over_both(
    edge: ScriptedEdge, nobody: str, tmp_path: Path
) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(f"admin: {{ listen: {nobody} }}\n")
    edge.answers(result())
    environment = {"IOP_EDGE_ADMIN": edge.address, "IOP_EDGE_CONFIG": str(file)}
    assert CliRunner().invoke(refresh, [], env=environment).exit_code == 0
    environment["IOP_EDGE_ADMIN"] = nobody
    assert CliRunner().invoke(refresh, ["--admin", edge.address], env=environment).exit_code == 0


def test_the_later_of_several_configs_says_the_address(
    edge: ScriptedEdge, nobody: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(f"admin: {{ listen: {nobody} }}\n")
    second.write_text("admin: { listen: '${ADMIN_HOST:-127.0.0.1}:${ADMIN_PORT}' }\n")
    third = tmp_path / "c.yaml"
    third.write_text("admin: null\n")
    edge.answers(result())
    arguments = [f"--config={file}" for file in (first, second, third)]
    port = edge.address.partition(":")[2]
    ran = CliRunner().invoke(refresh, arguments, env={"ADMIN_PORT": port, "IOP_EDGE_ADMIN": ""})
    assert ran.exit_code == 0


def test_a_config_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    file = str(tmp_path / "nowhere.yaml")
    ran = CliRunner().invoke(refresh, ["--config", file], env={"IOP_EDGE_ADMIN": ""})
    assert ran.exit_code == 2
    assert "nowhere.yaml" in ran.stderr


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:", "127.0.0.1:99999", "http://x/y:1", "h:²", "..:80"]
)
@pytest.mark.parametrize("command", [refresh, status, health])
def test_an_address_that_is_none_is_a_usage_error(command: Any, address: str) -> None:
    ran = CliRunner().invoke(command, ["--admin", address])
    assert ran.exit_code == 2
    assert "host:port" in ran.stderr


# --- health -----------------------------------------------------------------------------------


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    ("http_status", "waiting_for", "exit_code"), [(200, [], 0), (503, ["listeners"], 1)]
)
def test_health_is_readiness(
    edge: ScriptedEdge, http_status: int, waiting_for: list[str], exit_code: int
) -> None:
    edge.answers({"ready": not waiting_for, "waiting_for": waiting_for}, http_status)
    ran = CliRunner().invoke(health, ["--admin", edge.address])
    assert ran.exit_code == exit_code
    assert edge.asked == [("/readyz", "", None)]
    assert all(name in ran.stdout for name in waiting_for)


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"ready": "yes"}', b"", b"[" * 100_000])
def test_another_program_at_the_address_is_not_taken_for_a_ready_edge(
    edge: ScriptedEdge, body: bytes
) -> None:
    edge.status, edge.body = 200, body
    ran = CliRunner().invoke(health, ["--admin", edge.address])
    assert ran.exit_code == 1
    assert "no edge" in ran.stdout


@pytest.mark.req("REF-1")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_exit_status_is_that_of_the_refresh_even_where_nobody_reads_on(
    edge: ScriptedEdge, flags: tuple[str, ...]
) -> None:
    edge.answers(result(outcome="refused"))
    reading, writing = os.pipe()
    os.close(reading)
    command = [
        sys.executable,
        "-c",
        "from iop_edge.cli.main import main; main()",
        "config",
        "refresh",
    ]
    ran = subprocess.run(
        [*command, "--admin", edge.address, *flags], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (8, b"")


@pytest.mark.req("OPS-3")
def test_an_answer_without_a_document_is_no_edge(edge: ScriptedEdge) -> None:
    edge.streams()
    for command in (health, status, refresh):
        ran = CliRunner().invoke(command, ["--admin", edge.address])
        assert ran.exit_code == 1
        assert "no edge" in ran.output


def test_a_socket_that_cannot_be_there_is_not_reachable() -> None:
    ran = CliRunner().invoke(refresh, ["--admin", f"unix:/{'x' * 200}"])
    assert ran.exit_code == 5
    assert "path too long" in ran.stderr


@pytest.mark.req("OPS-3")
def test_health_of_an_edge_that_is_not_there_is_one(nobody: str) -> None:
    ran = CliRunner().invoke(health, ["--admin", nobody, "--json"])
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["ready"] is False
