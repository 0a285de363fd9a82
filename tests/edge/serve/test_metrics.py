"""What a scrape holds: the counted, the live, and nothing of a caller's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from iop.runtime_pb2 import Hello, NodeBatch, NodeFrame, ProtocolRange
from iop_edge.app import Edge
from iop_edge.gate.report import GateReport, Match, RecoveryReport
from iop_edge.runtime.reloader import RefreshRequest
from iop_shared.ids import NodeId
from tests.edge.serve.metrics_rig import (
    CONFIG,
    ROOT,
    edge_at,
    families,
    finished,
    promtool,
    value,
)

DASHBOARD = ROOT / "deploy" / "grafana" / "iop.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"


@pytest.fixture
async def edge(tmp_path: Path) -> Edge:
    return edge_at(tmp_path)


@pytest.mark.req("OPS-3")
async def test_every_name_says_whose_it_is(edge: Edge) -> None:
    edge.ledger.record(finished())
    assert [name for name in families(edge) if not name.startswith("iop_edge_")] == []


@pytest.mark.req("OPS-3")
async def test_a_finished_run_is_counted_with_its_waits_and_tokens(edge: Edge) -> None:
    edge.ledger.record(finished(attempts=3))
    run = {"model": "smart", "provider_id": "p1"}
    assert value(edge, "iop_edge_runs_total", **run, end="completed") == 1
    assert value(edge, "iop_edge_run_retries_total", **run) == 2
    assert value(edge, "iop_edge_run_duration_seconds_sum", **run) == 2.0
    assert value(edge, "iop_edge_run_first_byte_seconds_sum", **run) == 0.3
    assert value(edge, "iop_edge_queue_wait_seconds_sum", model="smart") == 0.04
    reported = {**run, "source": "reported"}
    assert value(edge, "iop_edge_tokens_total", **reported, direction="input") == 5
    assert value(edge, "iop_edge_tokens_total", **reported, direction="output") == 7


@pytest.mark.req("OPS-3")
async def test_what_lives_is_read_at_the_scrape(edge: Edge) -> None:
    assert value(edge, "iop_edge_ready") == 0
    assert value(edge, "iop_edge_generation") == 1
    assert value(edge, "iop_edge_queue_pending") == 0
    assert value(edge, "iop_edge_queue_limit") == 16
    assert value(edge, "iop_edge_active_runs") == 0
    assert value(edge, "iop_edge_node_connected", node_id="n1") == 0
    assert value(edge, "iop_edge_node_draining_registries", node_id="n1") == 0
    assert value(edge, "iop_edge_node_generation", node_id="n1", fact="desired") == 1
    assert value(edge, "iop_edge_node_generation", node_id="n1", fact="effective") is None
    provider = {"node_id": "n1", "provider_id": "p1"}
    assert value(edge, "iop_edge_provider_capacity", **provider) == 3
    assert value(edge, "iop_edge_provider_in_flight", **provider) == 0
    assert value(edge, "iop_edge_provider_usable", **provider) == 0


@pytest.mark.req("OPS-3")
async def test_refreshes_are_counted_by_what_came_of_them(edge: Edge, tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"

    async def apply(text: str) -> None:
        file.write_text(text)
        await edge.reloader.refresh(RefreshRequest(mode="apply"))

    await apply(CONFIG.replace("capacity: 3", "capacity: 4"))
    await apply(CONFIG.replace("type: vllm", "type: sglang"))
    await apply("nonsense: true")
    await edge.reloader.refresh(RefreshRequest(mode="dry_run"))
    counted = {
        (sample.labels["mode"], sample.labels["status"]): sample.value
        for sample in families(edge)["iop_edge_refreshes"].samples
    }
    assert counted == {
        ("apply", "applied"): 1,
        ("apply", "restart_required"): 1,
        ("apply", "rejected"): 1,
        ("dry_run", "applied"): 0,
        ("dry_run", "restart_required"): 0,
        ("dry_run", "rejected"): 1,
    }
    assert value(edge, "iop_edge_refresh_node_answers_total", outcome="not_connected") == 1
    assert value(edge, "iop_edge_generation") == 2
    assert value(edge, "iop_edge_last_apply_rejected") == 1
    assert value(edge, "iop_edge_provider_capacity", node_id="n1", provider_id="p1") == 4


@pytest.mark.req("OPS-3")
async def test_frames_that_were_dropped_are_counted_over_all_sessions_of_a_node(
    edge: Edge,
) -> None:
    hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="one", version="0")
    for _ in range(2):
        session = await edge.hub.join(NodeId("n1"), hello)
        session.receive(NodeBatch(session_epoch=session.epoch + 7, frames=[NodeFrame()]))
        session.receive(NodeBatch(session_epoch=session.epoch, frames=[NodeFrame()]))
        session.close("over")
        session.receive(NodeBatch(session_epoch=session.epoch, frames=[NodeFrame()]))
    dropped = {
        sample.labels["reason"]: sample.value
        for sample in families(edge)["iop_edge_node_dropped_frames"].samples
    }
    assert dropped == {"old_epoch": 2, "unknown": 2, "after_close": 2}


@pytest.mark.req("SEC-1", "OPS-3")
async def test_a_callers_words_never_become_labels(edge: Edge) -> None:
    edge.ledger.record(finished(model="routed", provider_id=None))
    before = edge.metrics.exposition().count(b"\n")
    edge.ledger.record(finished(model="word-0", provider_id=None))
    once = edge.metrics.exposition().count(b"\n")
    for number in range(1, 50):
        edge.ledger.record(
            finished(
                model=f'word-{number}"\n{{',
                provider_id=None,
                run_id=f"run-word-{number}",
                request_id=f"word-{number}",
                token_ref=f"word-{number}",
                target=f"word-{number}",
            )
        )
    text = edge.metrics.exposition()
    assert b"word-" not in text
    assert before < once == text.count(b"\n")
    assert value(edge, "iop_edge_queue_wait_seconds_count", model="") == 50
    assert value(edge, "iop_edge_queue_wait_seconds_count", model="routed") == 1


@pytest.mark.req("OPS-3")
async def test_an_upstreams_status_is_counted_by_its_class(edge: Edge) -> None:
    for status in (500, 503, 529, 404):
        edge.ledger.record(finished(end=f"error:upstream_{status}"))
    edge.ledger.record(finished(end="error:upstream_closed"))
    ends = {
        sample.labels["end"]: sample.value for sample in families(edge)["iop_edge_runs"].samples
    }
    assert ends == {
        "error:upstream_5xx": 3,
        "error:upstream_4xx": 1,
        "error:upstream_closed": 1,
    }


@pytest.mark.req("OPS-3", "GATE-4")
async def test_what_the_gate_found_and_did_is_counted_by_filter_strategy_and_outcome(
    edge: Edge,
) -> None:
    match = Match(
        filter="repeat_guard", enforcement="blocking", attempt=1, channel="content", offset=40,
        period=20, count=3, fingerprint="f" * 16,
    )  # fmt: skip
    recovery = RecoveryReport(
        strategy="continuation_repair",
        cause="repetition",
        attempt=1,
        released_chars=40,
        outcome="recovered",
    )
    gate = GateReport(matches=(match,), recoveries=(recovery,))
    edge.ledger.record(replace(finished(repaired=True), gate=gate))
    edge.ledger.record(replace(finished(), gate=GateReport(unrepaired="several_choices")))
    found = {"filter": "repeat_guard", "enforcement": "blocking"}
    assert value(edge, "iop_edge_gate_matches_total", **found) == 1
    done = {"strategy": "continuation_repair", "cause": "repetition", "outcome": "recovered"}
    assert value(edge, "iop_edge_gate_recoveries_total", **done) == 1
    assert value(edge, "iop_edge_gate_unrepaired_runs_total", reason="several_choices") == 1


@pytest.mark.req("OPS-3")
async def test_prometheus_finds_nothing_to_complain_of(edge: Edge) -> None:
    edge.ledger.record(finished())
    checked = promtool("check", "metrics", stdin=edge.metrics.exposition())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def expressions() -> list[str]:
    def walk(node: Any) -> list[str]:
        if isinstance(node, dict):
            found = [text for text in (node.get("expr"), node.get("query")) if text]
            return [text for text in found if isinstance(text, str)] + walk(list(node.values()))
        return [text for one in node for text in walk(one)] if isinstance(node, list) else []

    return walk(json.loads(DASHBOARD.read_text(encoding="utf-8")))


def alerting() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("asking", [expressions, alerting])
async def test_dashboard_and_alerts_ask_only_for_what_there_is(
    edge: Edge, asking: Callable[[], list[str]]
) -> None:
    edge.ledger.record(finished(attempts=2))
    there = {sample.name for family in families(edge).values() for sample in family.samples}
    asked = {name for text in asking() for name in re.findall(r"\biop_\w+", text)}
    assert len(asked) > 5
    assert asked - there - {"iop_edge_node_dropped_frames_total"} == set()


@pytest.mark.req("OPS-3")
def test_the_questions_of_dashboard_and_alerts_can_be_asked(tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
        if not text.startswith("label_values")
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for rules_file in (file, ALERTS):
        checked = promtool("check", "rules", str(rules_file))
        assert checked.returncode == 0, checked.stderr.decode()
