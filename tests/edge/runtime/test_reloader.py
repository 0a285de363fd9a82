from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from iop_edge.pool.demand import Demand
from iop_edge.refresh.receipt import NodeReport, RefreshResult
from iop_edge.runtime import failpoints
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.node_hub import NodeHub, Outcome
from iop_edge.runtime.refresh_report import CANDIDATE_MISMATCH, GENERATION_MISMATCH
from iop_edge.runtime.reloader import HISTORY_LENGTH, PUSH_TIMEOUT_S, RefreshRequest
from iop_edge.runtime.sources import read_sources
from iop_shared.ids import ModelId, NodeId, RunId
from iop_shared.session.flow import WindowBudget
from iop_shared.session.liveness import HEARTBEAT_INTERVAL_S, SILENCE_LIMIT_S
from tests.edge.runtime.reload_rig import Edge, lab, node, with_capacity


@pytest.fixture
async def edge() -> Edge:
    return Edge()


def with_listen(config: dict[str, Any], listen: str = "127.0.0.1:6001") -> dict[str, Any]:
    return {**config, "server": {"listen": listen}}


Edit = Callable[[dict[str, Any]], None]


def set_at(path: Sequence[Any], value: Any) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        place: Any = config
        for step in path[:-1]:
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
        place[path[-1]] = value

    return edit


def outcomes(result: RefreshResult) -> dict[str, str]:
    return {node.node_id: node.outcome for node in result.nodes}


# --- what an apply does -----------------------------------------------------------------------


@pytest.mark.req("REF-1", "REF-3", "REF-7", "REF-8")
async def test_a_live_change_takes_effect_and_is_pushed_to_the_node_it_concerns(
    edge: Edge,
) -> None:
    result = await edge.refresh(config=with_capacity(8))
    assert result.status == "applied"
    assert (result.generation.before, result.generation.after) == (1, 2)
    assert result.live_paths == ("nodes[gpu-a].providers[p-a].capacity",)
    assert outcomes(result) == {"gpu-a": "acknowledged", "gpu-b": "unchanged"}
    assert edge.store.current.generation == 2
    assert edge.store.current.config.nodes[0].providers[0].capacity == 8
    assert edge.admission.catalog is edge.store.current.catalog
    assert edge.nodes.pushes == [{"gpu-a": 2}]
    assert edge.nodes.desired[NodeId("gpu-a")].providers[0].capacity == 8
    assert edge.store.current.config_digest == result.candidate_digest


@pytest.mark.req("REF-8", "REF-3")
async def test_a_change_that_is_the_edges_own_is_pushed_to_nobody(edge: Edge) -> None:
    config = lab()
    config["models"][0]["context_window_tokens"] = 8192
    config["provider_pool"] = {"max_queue": 3}
    config["nodes"][0]["providers"][0]["enabled"] = False
    result = await edge.refresh(config=config)
    assert result.status == "applied"
    assert edge.nodes.pushes == []
    assert edge.admission.policy.max_queue == 3
    assert outcomes(result) == {"gpu-a": "unchanged", "gpu-b": "unchanged"}


@pytest.mark.req("REF-1", "REF-2")
async def test_a_dry_run_says_what_an_apply_would_do_and_does_nothing(edge: Edge) -> None:
    before = edge.store.current
    dry = await edge.refresh("dry_run", with_capacity(8))
    assert edge.store.current is before
    assert edge.admission.replacements == 0
    assert edge.nodes.pushes == []
    assert outcomes(dry) == {"gpu-a": "would_send", "gpu-b": "unchanged"}
    assert dry.generation.before == dry.generation.after == 1
    wet = await edge.refresh()
    for name in ("status", "changes", "live_paths", "changed_nodes", "candidate_digest"):
        assert getattr(wet, name) == getattr(dry, name)


@pytest.mark.req("REF-8")
async def test_equal_meaning_is_no_change_and_no_push(edge: Edge) -> None:
    config = lab()
    config["nodes"].reverse()
    config["models"].reverse()
    config["nodes"][0]["providers"][0] |= {"priority": 0, "enabled": True, "health": "unknown"}
    config["provider_pool"] = {"queue_timeout_ms": 30000, "max_queue": 16}
    config["long_context_threshold_tokens"] = 100000
    edge.disk.content = b"# a comment\n" + json.dumps(dict(reversed(config.items()))).encode()
    result = await edge.refresh()
    assert (result.status, result.changes) == ("applied", ())
    assert result.generation.after == edge.store.current.generation == 2
    assert edge.nodes.pushes == []
    assert {one.generation for one in edge.nodes.desired.values()} == {1}


@pytest.mark.req("REF-8", "REF-9")
async def test_a_nodes_desired_generation_is_the_one_of_its_last_change(edge: Edge) -> None:
    await edge.refresh(config=with_capacity(5))
    await edge.refresh(config=with_capacity(5))
    both = with_capacity(5)
    both["nodes"][1]["providers"][0]["capacity"] = 9
    await edge.refresh(config=both)
    assert edge.store.current.generation == 4
    assert {name: one.generation for name, one in edge.nodes.desired.items()} == {
        "gpu-a": 2,
        "gpu-b": 4,
    }


# --- what it refuses --------------------------------------------------------------------------


@pytest.mark.req("REF-4", "REF-7", "REF-12")
async def test_one_restart_change_holds_every_live_change_back(edge: Edge) -> None:
    before = edge.store.current
    result = await edge.refresh(config=with_listen(with_capacity(8)))
    assert result.status == "restart_required"
    assert result.restart_required_paths == ("server.listen",)
    assert result.live_paths == ("nodes[gpu-a].providers[p-a].capacity",)
    assert result.generation.before == result.generation.after == 1
    assert edge.store.current is before
    assert edge.admission.replacements == 0
    assert edge.nodes.pushes == []
    assert outcomes(result) == {"gpu-a": "unchanged", "gpu-b": "unchanged"}


@pytest.mark.req("REF-5")
async def test_a_bad_file_changes_nothing_and_a_mended_one_works(edge: Edge) -> None:
    original = edge.disk.content
    before = edge.store.current
    bad = with_capacity(8)
    bad["protocol_profiles"] = {"mine": {"driver": "telepathy"}}
    rejected = await edge.refresh(config=bad)
    assert rejected.status == "rejected"
    assert rejected.errors
    assert all(error.path and error.file == "edge.yaml" and error.line for error in rejected.errors)
    assert edge.store.current is before
    assert edge.reloader.last_error is not None
    assert edge.reloader.last_error.errors == rejected.errors

    edge.disk.content = original
    restored = await edge.refresh()
    assert (restored.status, restored.changes) == ("applied", ())
    assert edge.reloader.last_error is None

    mended = await edge.refresh(config=with_capacity(8))
    assert (mended.status, mended.generation.after) == ("applied", 3)


@pytest.mark.req("REF-5")
async def test_a_file_that_cannot_be_read_is_rejected(edge: Edge) -> None:
    before = edge.store.current

    edge.reloader._read_sources = partial(
        read_sources, [Path("/nowhere/edge.yaml")], fingerprint_key=b"k"
    )
    result = await edge.refresh()
    assert result.status == "rejected"
    assert result.errors[0].file == "/nowhere/edge.yaml"
    assert edge.store.current is before


@pytest.mark.req("REF-5")
async def test_an_apply_that_fails_before_the_swap_is_rejected_and_changes_nothing(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = edge.store.current
    monkeypatch.setattr(failpoints, "reach", raising_at("apply.before_swap"))
    result = await edge.refresh(config=with_capacity(8))
    assert (result.status, result.errors[0].code) == ("rejected", "apply_failed")
    assert "FailpointReached" in result.errors[0].message
    assert edge.store.current is before
    assert edge.admission.replacements == 0


@pytest.mark.req("REF-7")
async def test_a_failure_after_the_swap_is_told_and_not_called_a_rejection(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "reach", raising_at("apply.after_swap"))
    result = await edge.refresh(config=with_capacity(8))
    assert (result.status, result.generation.after) == ("applied", 2)
    assert result.errors[0].code == "internal"
    assert "FailpointReached" in result.errors[0].message
    assert outcomes(result) == {"gpu-a": "timed_out", "gpu-b": "unchanged"}
    assert result.nodes[0].generation == 1  # which it still runs
    assert edge.admission.catalog is edge.store.current.catalog


def raising_at(place: str) -> Callable[[str], None]:
    reach = failpoints.reach
    return lambda reached: reach(reached, {place: "raise"})


# --- what a change of the file means ----------------------------------------------------------


def everything() -> dict[str, Any]:
    """A config in which much can be changed."""
    config = lab()
    config["openai"] = {
        "provider_id": "lab",
        "model_routes": [
            {"id": "r", "model": "old", "adapter": "main", "target": "t", "node": "gpu-a"}
        ],
        "principal_tokens": [
            {"token_ref": "ci", "token_hash_sha256": "a" * 64, "principal_ref": "team"}
        ],
        "stream_evidence_gate": {"filters": [{"filter": "repeat_guard"}]},
    }
    config["protocol_profiles"] = {"mine": {"base": "vllm"}}
    first = config["nodes"][0]
    for key in ("spare", "other"):
        first["adapters"].append(
            {"key": key, "type": "openai_compat", "base_url": "http://127.0.0.1:7001"}
        )
    first["providers"].append(
        {
            "id": "direct",
            "type": "openai_compat",
            "category": "api",
            "base_url": "http://127.0.0.1:7000",
            "models": ["small"],
            "capacity": 1,
        }
    )
    first["providers"].append(
        {
            "id": "profiled",
            "type": "vllm",
            "category": "local_inference",
            "adapter": "spare",
            "profile": "mine",
            "models": ["small"],
            "capacity": 1,
        }
    )
    return config


NODE = ("nodes", 0)
PROVIDER = (*NODE, "providers", 0)
DIRECT = (*NODE, "providers", 1)
ADAPTER = (*NODE, "adapters", 0)
OPENAI = ("openai",)
AT_P = "nodes[gpu-a].providers[p-a]"


@pytest.mark.req("REF-3")
@pytest.mark.parametrize(
    ("path", "value", "live_path"),
    [
        (("long_context_threshold_tokens",), 5, "long_context_threshold_tokens"),
        (("provider_pool",), {"max_queue": 3}, "provider_pool.max_queue"),
        (("provider_pool",), {"queue_timeout_ms": 0}, "provider_pool.queue_timeout_ms"),
        ((*PROVIDER, "capacity"), 9, f"{AT_P}.capacity"),
        ((*PROVIDER, "long_context_capacity"), 0, f"{AT_P}.long_context_capacity"),
        ((*PROVIDER, "total_context_tokens"), 9, f"{AT_P}.total_context_tokens"),
        ((*PROVIDER, "priority"), 9, f"{AT_P}.priority"),
        ((*PROVIDER, "enabled"), False, f"{AT_P}.enabled"),
        ((*DIRECT, "enabled"), False, "nodes[gpu-a].providers[direct].enabled"),
        ((*NODE, "runtime"), {"concurrency": 9}, "nodes[gpu-a].runtime.concurrency"),
        (("models", 0, "display_name"), "S", "models[smart].display_name"),
        (("models", 0, "context_window_tokens"), 9, "models[smart].context_window_tokens"),
        (("models", 0, "default_max_tokens"), 9, "models[smart].default_max_tokens"),
        (("models", 0, "usage_attribution"), "model_group", "models[smart].usage_attribution"),
        (("models", 0, "providers"), {"p-b": "small"}, "models[smart].providers[p-a]"),
        (("models", 1), {"id": "other2", "providers": {"p-b": "small"}}, "models[other2]"),
    ],
)
async def test_a_live_field_of_the_file_is_applied(
    path: Sequence[Any], value: Any, live_path: str
) -> None:
    config = everything()
    edge = Edge(config)
    set_at(path, value)(config)
    result = await edge.refresh(config=config)
    assert (result.status, result.errors) == ("applied", ())
    assert live_path in result.live_paths
    assert result.restart_required_paths == ()


@pytest.mark.req("REF-4")
@pytest.mark.parametrize(
    ("path", "value", "restart_path"),
    [
        (("edge", "id"), "edge-2", "edge.id"),
        (("server",), {"drain_deadline_ms": 5}, "server.drain_deadline_ms"),
        (("bootstrap",), {"listen": "127.0.0.1:6001"}, "bootstrap.listen"),
        (("admin",), {"listen": "127.0.0.1:6001"}, "admin.listen"),
        (("logging",), {"level": "debug"}, "logging.level"),
        (("metrics",), {"listen": "127.0.0.1:6001"}, "metrics.listen"),
        (("console",), {"listen": "127.0.0.1:6001"}, "console.listen"),
        (("control_plane",), {"url": "http://x.example"}, "control_plane.url"),
        (("a2a",), {"listen": "127.0.0.1:6001"}, "a2a.listen"),
        ((*OPENAI, "enabled"), True, "openai.enabled"),
        ((*OPENAI, "provider_id"), "other", "openai.provider_id"),
        ((*OPENAI, "model_routes", 0, "provider_id"), "x", "openai.model_routes[r].provider_id"),
        (
            (*OPENAI, "principal_tokens", 0, "principal_alias"),
            "CI",
            "openai.principal_tokens[ci].principal_alias",
        ),
        ((*OPENAI, "principal_tokens"), [], "openai.principal_tokens[ci]"),
        (
            (*OPENAI, "stream_evidence_gate", "filters", 0, "timeout_ms"),
            9,
            "openai.stream_evidence_gate.filters[repeat_guard].timeout_ms",
        ),
        (("protocol_profiles", "mine", "base_url"), "http://x", "protocol_profiles[mine].base_url"),
        (("protocol_profiles", "new"), {"base": "vllm"}, "protocol_profiles[new]"),
        ((*NODE, "alias"), "rack", "nodes[gpu-a].alias"),
        ((*NODE, "agent_kind"), "gpu", "nodes[gpu-a].agent_kind"),
        ((*NODE, "token"), {"sha256": "b" * 64}, "nodes[gpu-a].token"),
        (("nodes",), [*everything()["nodes"], node("c")], "nodes[gpu-c]"),
        ((*ADAPTER, "base_url"), "http://x", "nodes[gpu-a].adapters[main].base_url"),
        ((*ADAPTER, "idle_timeout_ms"), 9, "nodes[gpu-a].adapters[main].idle_timeout_ms"),
        ((*ADAPTER, "headers"), {}, "nodes[gpu-a].adapters[main].headers[Authorization]"),
        ((*NODE, "providers", 2, "id"), "p-z", "nodes[gpu-a].providers[p-z]"),
        ((*PROVIDER, "category"), "local_inference", f"{AT_P}.category"),
        ((*PROVIDER, "adapter"), "other", f"{AT_P}.adapter"),
        ((*PROVIDER, "models"), ["small", "more"], f"{AT_P}.models"),
        ((*PROVIDER, "health"), "degraded", f"{AT_P}.health"),
        ((*PROVIDER, "lifecycle_capabilities"), ["load"], f"{AT_P}.lifecycle_capabilities"),
        (
            (*NODE, "providers", 2, "profile"),
            "sglang",
            "nodes[gpu-a].providers[profiled].profile",
        ),
        ((*DIRECT, "base_url"), "http://x", "nodes[gpu-a].adapters[direct].base_url"),
        (
            (*DIRECT, "request_timeout_ms"),
            9,
            "nodes[gpu-a].adapters[direct].request_timeout_ms",
        ),
        ((*DIRECT, "headers"), {"X-A": "b"}, "nodes[gpu-a].adapters[direct].headers[X-A]"),
        ((*DIRECT, "provider"), "label", "nodes[gpu-a].adapters[direct].provider_label"),
    ],
)
async def test_a_restart_field_of_the_file_holds_the_apply_back(
    path: Sequence[Any], value: Any, restart_path: str
) -> None:
    config = everything()
    edge = Edge(config)
    before = edge.store.current
    set_at(path, value)(config)
    result = await edge.refresh(config=config)
    assert (result.status, result.errors) == ("restart_required", ())
    assert restart_path in result.restart_required_paths
    assert edge.store.current is before


@pytest.mark.req("CFG-8", "REF-3")
async def test_legacy_queue_values_are_live_through_the_promoted_policy_alone() -> None:
    config = lab()
    for each in config["nodes"]:
        each["providers"][0]["max_queue"] = 5
    edge = Edge(config)
    for each in config["nodes"]:
        each["providers"][0]["max_queue"] = 6
    promoted = await edge.refresh(config=config)
    assert promoted.live_paths == ("provider_pool.max_queue",)
    assert edge.admission.policy.max_queue == 6

    config["provider_pool"] = {"max_queue": 6}
    assert (await edge.refresh(config=config)).changes == ()
    config["nodes"][0]["providers"][0]["max_queue"] = 99
    assert (await edge.refresh(config=config)).changes == ()


# --- nodes ------------------------------------------------------------------------------------


@pytest.mark.req("REF-9")
async def test_a_node_that_refuses_leaves_the_apply_applied_and_lags_visibly(edge: Edge) -> None:
    edge.nodes.outcomes[NodeId("gpu-b")] = "refused"
    config = with_capacity(8)
    config["nodes"][1]["providers"][0]["capacity"] = 8
    result = await edge.refresh(config=config)
    assert result.status == "applied"
    assert outcomes(result) == {"gpu-a": "acknowledged", "gpu-b": "refused"}
    by_id = {one.node_id: one for one in result.nodes}
    assert (by_id[NodeId("gpu-a")].generation, by_id[NodeId("gpu-b")].generation) == (2, 1)

    again = await edge.refresh()
    assert edge.nodes.pushes == [{"gpu-a": 2, "gpu-b": 2}]
    lagging = {one.node_id: one for one in again.nodes}[NodeId("gpu-b")]
    assert (lagging.outcome, lagging.generation) == ("unchanged", 1)
    assert lagging.detail is not None
    assert "refused" in lagging.detail


@pytest.mark.req("REF-9")
@pytest.mark.parametrize("outcome", ["timed_out", "not_connected"])
async def test_a_node_that_does_not_answer_is_reported(edge: Edge, outcome: Outcome) -> None:
    edge.nodes.outcomes[NodeId("gpu-a")] = outcome
    result = await edge.refresh(config=with_capacity(8))
    assert result.status == "applied"
    assert outcomes(result)["gpu-a"] == outcome


@pytest.mark.req("REF-9")
def test_a_node_that_stays_silent_times_out_before_it_counts_as_lost() -> None:
    # Its last sign of life may be as old as one heartbeat when it is sent something.
    assert PUSH_TIMEOUT_S + HEARTBEAT_INTERVAL_S < SILENCE_LIMIT_S


@pytest.mark.req("REF-9")
async def test_each_node_is_heard_as_it_answers_and_only_those_that_were_sent_something(
    edge: Edge,
) -> None:
    heard: list[NodeReport] = []
    edge.disk.write(with_capacity(8))
    result = await edge.reloader.refresh(RefreshRequest(mode="apply"), on_node=heard.append)
    assert [one.node_id for one in heard] == ["gpu-a"]
    assert heard[0] in result.nodes


@pytest.mark.req("REF-10")
async def test_a_directory_that_is_swapped_whole_is_seen_whole(tmp_path: Path) -> None:
    edge = Edge()
    for version, capacity in (("v1", 8), ("v2", 9)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "edge.yaml").write_text(json.dumps(with_capacity(capacity)))
    live = tmp_path / "live"
    live.symlink_to("v1")
    edge.reloader._read_sources = lambda: structs.replace(
        edge.disk.read(), files=read_sources([live / "edge.yaml"], fingerprint_key=b"k").files
    )
    assert (await edge.refresh()).changes[0].new == 8
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(live)
    assert (await edge.refresh()).changes[0].new == 9


# --- order and races --------------------------------------------------------------------------


@pytest.mark.req("REF-10")
async def test_the_refresh_that_waits_is_judged_against_what_then_runs(edge: Edge) -> None:
    edge.nodes.may_answer.clear()
    edge.disk.write(with_capacity(8))
    first = asyncio.create_task(edge.refresh())
    await edge.nodes.pushing.wait()
    second = asyncio.create_task(edge.refresh())
    dry = asyncio.create_task(edge.refresh("dry_run"))
    edge.nodes.may_answer.set()
    results = await asyncio.gather(first, second, dry)
    assert [len(result.changes) for result in results] == [1, 0, 0]
    assert [result.generation.before for result in results] == [1, 2, 3]
    assert edge.nodes.pushes == [{"gpu-a": 2}]


@pytest.mark.req("REF-10")
async def test_what_was_validated_is_what_is_applied(edge: Edge) -> None:
    edge.disk.write(with_capacity(8))

    def change_behind_the_readers_back() -> None:
        edge.disk.write(with_capacity(2))

    edge.disk.after_read = change_behind_the_readers_back
    result = await edge.refresh()
    assert edge.disk.reads == 1
    assert edge.store.current.config.nodes[0].providers[0].capacity == 8
    assert result.changes[0].new == 8


@pytest.mark.req("REF-10")
async def test_an_apply_can_demand_the_candidate_of_its_dry_run(edge: Edge) -> None:
    dry = await edge.refresh("dry_run", with_capacity(8))
    edge.disk.write(with_capacity(9))
    refused = await edge.refresh(if_candidate=dry.candidate_digest)
    assert (refused.status, refused.errors[0].code) == ("rejected", CANDIDATE_MISMATCH)
    assert edge.store.current.generation == 1
    edge.disk.write(with_capacity(8))
    applied = await edge.refresh(if_candidate=dry.candidate_digest, if_generation=1)
    assert applied.status == "applied"
    assert edge.reloader.last_error is None


@pytest.mark.req("REF-10")
async def test_an_apply_can_demand_the_generation_it_is_based_on(edge: Edge) -> None:
    await edge.refresh()
    refused = await edge.refresh(config=with_capacity(8), if_generation=1)
    assert (refused.status, refused.errors[0].code) == ("rejected", GENERATION_MISMATCH)
    assert edge.store.current.generation == 2
    assert edge.disk.reads == 1


@pytest.mark.req("REF-7")
async def test_a_caller_that_hangs_up_leaves_no_half_apply(edge: Edge) -> None:
    edge.nodes.may_answer.clear()
    edge.disk.write(with_capacity(8))
    caller = asyncio.create_task(edge.refresh())
    await edge.nodes.pushing.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    edge.nodes.may_answer.set()
    await edge.reloader.drain()
    (record,) = edge.reloader.history()
    assert outcomes(record.result) == {"gpu-a": "acknowledged", "gpu-b": "unchanged"}


@pytest.mark.req("REF-7")
async def test_nobody_sees_parts_of_two_generations(edge: Edge) -> None:
    seen: set[tuple[int, int, bool, bool]] = set()
    is_over = asyncio.Event()

    async def watch() -> None:
        while not is_over.is_set():
            current = edge.store.current
            capacity = current.config.nodes[0].providers[0].capacity
            seen.add(
                (
                    capacity,
                    edge.nodes.desired[NodeId("gpu-a")].providers[0].capacity,
                    edge.admission.catalog is current.catalog,
                    edge.admission.policy is current.config.provider_pool
                    or edge.admission.replacements == 0,
                )
            )
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    for capacity in range(5, 12):
        await edge.refresh(config=with_capacity(capacity))
    is_over.set()
    await watcher
    assert {capacity for capacity, *_ in seen} == set(range(4, 12))
    assert all(one == other and same and policy for one, other, same, policy in seen)


# --- what stays visible -----------------------------------------------------------------------


@pytest.mark.req("REF-12")
async def test_pending_restart_paths_stay_until_a_candidate_without_them_is_applied(
    edge: Edge,
) -> None:
    await edge.refresh(config=with_listen(lab()))
    assert edge.reloader.pending_restart_paths == ("server.listen",)
    await edge.refresh("dry_run", lab())
    await edge.refresh(config={"no_such_key": 1})
    await edge.refresh(config=lab(), if_generation=99)
    assert edge.reloader.pending_restart_paths == ("server.listen",)
    await edge.refresh(config=lab())
    assert edge.reloader.pending_restart_paths == ()


@pytest.mark.req("REF-5")
async def test_a_dry_run_and_an_unmet_demand_leave_the_last_error_alone(edge: Edge) -> None:
    await edge.refresh("dry_run", {"no_such_key": 1})
    assert edge.reloader.last_error is None
    await edge.refresh("apply", {"no_such_key": 1})
    await edge.refresh("dry_run", lab())
    await edge.refresh("apply", lab(), if_generation=99)
    assert edge.reloader.last_error is not None


@pytest.mark.req("REF-4", "REF-12", "SEC-1")
async def test_a_secret_that_changed_needs_a_restart_and_is_shown_nowhere(edge: Edge) -> None:
    edge.disk.secrets["/run/secrets/upstream"] = "canary-new"
    edge.disk.secrets["/run/secrets/a"] = "canary-new-token-0123456789abcdef01234567"
    result = await edge.refresh()
    assert result.status == "restart_required"
    assert result.restart_required_paths == (
        "nodes[gpu-a].adapters[main].headers[Authorization].value",
        "nodes[gpu-a].token",
        "nodes[gpu-b].adapters[main].headers[Authorization].value",
    )
    assert b"canary" not in msgspec.json.encode(result)


@pytest.mark.req("REF-1")
async def test_the_history_holds_the_latest_refreshes_newest_first(edge: Edge) -> None:
    await asyncio.wait_for(edge.reloader.start(RefreshRequest(mode="apply"), origin="sighup"), 10)
    for _ in range(HISTORY_LENGTH):
        await edge.refresh("dry_run")
    history = edge.reloader.history()
    assert len(history) == HISTORY_LENGTH
    assert {record.origin for record in history} == {"admin"}
    await asyncio.wait_for(edge.reloader.start(RefreshRequest(mode="apply"), origin="sighup"), 10)
    assert edge.reloader.history()[0].origin == "sighup"


@pytest.mark.req("SEC-1")
async def test_sighup_logs_the_receipt_without_values(edge: Edge) -> None:
    edge.disk.secrets["/run/secrets/upstream"] = "canary-new"
    edge.disk.write(with_listen(with_capacity(8), "127.0.0.1:6007"))
    with capture_logs() as logged:
        await edge.reloader.start(RefreshRequest(mode="apply"), origin="sighup")
    (line,) = (entry for entry in logged if entry["event"] == "refresh")
    assert (line["origin"], line["status"], line["log_level"]) == (
        "sighup",
        "restart_required",
        "warning",
    )
    assert "server.listen" in line["restart_required_paths"]
    assert line["live_paths"] == ("nodes[gpu-a].providers[p-a].capacity",)
    assert "canary" not in str(logged)
    assert "6007" not in str(logged)


# --- with the real hub ------------------------------------------------------------------------


@pytest.mark.req("REF-9")
async def test_a_node_that_is_away_is_told_apart_and_is_to_get_the_new_payload() -> None:
    edge = Edge()
    hub = NodeHub(boot_id="b", version="1", pool=NoPool(), budget=WindowBudget())
    hub.set_desired(edge.nodes.desired)
    edge.reloader._nodes = hub
    dry = await edge.refresh("dry_run", with_capacity(8))
    assert outcomes(dry) == {"gpu-a": "would_send", "gpu-b": "unchanged"}
    assert dry.nodes[0].detail == "not connected: sent when it connects"
    wet = await edge.refresh()
    assert (wet.status, outcomes(wet)) == (
        "applied",
        {"gpu-a": "not_connected", "gpu-b": "unchanged"},
    )
    assert {view.node_id: view.desired for view in hub.views()} == {"gpu-a": 2, "gpu-b": 1}


class NoPool:
    def node_connected(self, node_id: NodeId) -> None:
        raise AssertionError("nobody connects")

    def node_lost(self, node_id: NodeId) -> None:
        raise AssertionError("nobody was there")


# --- with the real pool -----------------------------------------------------------------------


@pytest.mark.req("POOL-7")
async def test_a_shrunk_provider_cancels_nothing_and_admits_nothing_until_it_has_drained() -> None:
    edge = Edge(only_a(4))
    dispatcher = dispatcher_of(edge)
    leases = [(await dispatcher.acquire(RunId(f"r{n}"), DEMAND)).lease for n in range(4)]
    await edge.refresh(config=only_a(2))
    await edge.refresh()
    waiter = asyncio.create_task(dispatcher.acquire(RunId("w1"), DEMAND))
    other = asyncio.create_task(dispatcher.acquire(RunId("w2"), DEMAND))
    await asyncio.sleep(0)
    dispatcher.release(leases.pop())
    dispatcher.release(leases.pop())
    await asyncio.sleep(0)
    assert not waiter.done()
    assert (await edge.refresh(config=only_a(3))).status == "applied"
    await waiter
    assert not other.done()
    assert dispatcher.lease_count == 3
    other.cancel()
    dispatcher.close()


@pytest.mark.req("POOL-7", "POOL-8")
async def test_a_provider_disabled_under_a_run_keeps_its_lease_and_takes_no_other() -> None:
    edge = Edge(only_a(4))
    dispatcher = dispatcher_of(edge)
    lease = (await dispatcher.acquire(RunId("r1"), DEMAND)).lease
    config = only_a(4)
    config["nodes"][0]["providers"][0]["enabled"] = False
    result = await edge.refresh(config=config)
    assert result.live_paths == ("nodes[gpu-a].providers[p-a].enabled",)
    assert edge.nodes.pushes == []
    load_of_a = next(iter(dispatcher.loads().values()))
    assert (load_of_a.status, load_of_a.health, load_of_a.capacity, load_of_a.in_flight) == (
        "disabled",
        "disabled",
        0,
        1,
    )
    dispatcher.release(lease)
    assert dispatcher.lease_count == 0
    dispatcher.close()


DEMAND = Demand(model=ModelId("smart"), operation="chat_completions")


def only_a(capacity: int) -> dict[str, Any]:
    config = with_capacity(capacity)
    config["models"] = [{"id": "smart", "providers": {"p-a": "small"}}]
    return config


def dispatcher_of(edge: Edge) -> Dispatcher:
    """A real dispatcher in the place of the recorder, with both nodes connected."""
    current = edge.store.current
    dispatcher = Dispatcher(current.catalog, current.config.provider_pool)
    dispatcher.node_connected(NodeId("gpu-a"))
    edge.reloader._admission = dispatcher
    return dispatcher


# --- properties -------------------------------------------------------------------------------

LIVE_EDITS: list[Edit] = [
    set_at(["nodes", 0, "providers", 0, "capacity"], 7),
    set_at(["nodes", 1, "providers", 0, "enabled"], False),
    set_at(["nodes", 1, "runtime", "concurrency"], 3),
    set_at(["models", 0, "display_name"], "Smart"),
    set_at(["models", 0, "providers"], {"p-b": "small"}),
    set_at(["provider_pool", "max_queue"], 5),
    set_at(["long_context_threshold_tokens"], 50_000),
]
OTHER_EDITS: list[Edit] = [
    set_at(["server", "listen"], "127.0.0.1:6001"),
    set_at(["nodes", 0, "alias"], "rack"),
    set_at(["nodes", 0, "providers", 0, "capacity"], 0),
    set_at(["no_such_key"], 1),
    set_at(["models", 0, "providers"], {"p-nobody": "small"}),
]


@given(edits=st.lists(st.sampled_from(LIVE_EDITS), max_size=4))
@settings(max_examples=25, deadline=None)
@pytest.mark.req("REF-7")
def test_there_and_back_again_gives_the_effective_config_of_before(edits: list[Edit]) -> None:
    asyncio.run(there_and_back(edits))


async def there_and_back(edits: list[Edit]) -> None:
    edge = Edge()
    before = edge.store.current.config
    config = lab()
    for edit in edits:
        edit(config)
    there = await edge.refresh(config=config)
    back = await edge.refresh(config=lab())
    assert (there.status, back.status) == ("applied", "applied")
    assert edge.store.current.config == before
    assert [(one.path, one.old, one.new) for one in there.changes] == [
        (one.path, one.new, one.old) for one in back.changes
    ]


@given(
    live=st.lists(st.sampled_from(LIVE_EDITS), max_size=3),
    others=st.lists(st.sampled_from(OTHER_EDITS), min_size=1, max_size=3),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.req("REF-5", "REF-7")
def test_what_is_not_applied_leaves_the_very_snapshot(live: list[Edit], others: list[Edit]) -> None:
    asyncio.run(nothing_changes([*live, *others]))


async def nothing_changes(edits: list[Edit]) -> None:
    edge = Edge()
    before = edge.store.current
    desired = copy.copy(edge.nodes.desired)
    config = lab()
    for edit in edits:
        edit(config)
    result = await edge.refresh(config=config)
    assert result.status in ("rejected", "restart_required")
    assert edge.store.current is before
    assert edge.nodes.desired == desired
    assert edge.admission.replacements == 0
