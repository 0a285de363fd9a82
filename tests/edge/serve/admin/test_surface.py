from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.usage import RunReport
from iop_edge.serve.admin.shapes import Readiness
from iop_edge.serve.admin.surface import ADMIN_LIMITS, AdminSurface
from iop_edge.serve.http.listener import HttpListener
from iop_shared.ids import NodeId
from tests.edge.runtime.reload_rig import Edge, lab, with_capacity
from tests.edge.serve.rig import Answer, RawClient

COLLECTIONS = (
    "changes",
    "live_paths",
    "restart_required_paths",
    "changed_nodes",
    "changed_providers",
    "changed_models",
    "nodes",
    "errors",
)


class Runs:
    def __init__(self) -> None:
        self.limits: list[int] = []

    def latest(self, limit: int) -> list[RunReport]:
        self.limits.append(limit)
        return []


class Admin:
    """An admin surface over a real listener, a real reloader and a real pool."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.edge = Edge()
        self.runs = Runs()
        self.waiting_for: tuple[str, ...] = ()
        current = self.edge.store.current
        self.pool = Dispatcher(current.catalog, current.config.provider_pool)
        self.surface = AdminSurface(
            reloader=self.edge.reloader,
            snapshots=self.edge.store,
            nodes=self.edge.nodes,
            pool=self.pool,
            runs=self.runs,
            readiness=lambda: Readiness(ready=not self.waiting_for, waiting_for=self.waiting_for),
            started_at=datetime(2026, 1, 2, tzinfo=UTC),
            is_unix=address.startswith("unix:"),
        )
        self.listener = HttpListener(
            self.surface,
            address,
            limits=ADMIN_LIMITS,
            cancels_when_caller_leaves=False,
            render=self.surface.render,
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RawClient]:
        address = self.listener.address
        if address.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield RawClient(reader, writer)
        finally:
            writer.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        async with self.connection() as client:
            return await client.ask(self.request(method, path, body, headers))

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        sent = {"host": self.listener.address, "content-length": str(len(body))}
        if method == "POST":
            sent["content-type"] = "application/json"
        sent |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items() if v), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    async def refresh(self, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await self.ask("POST", "/refresh", body, headers)


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    admin = Admin()
    async with admin.listener:
        yield admin


def result(answer: Answer) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer.body)
    assert all(isinstance(document[name], list) for name in COLLECTIONS)
    return document


def is_rejected(answer: Answer, status: int, code: str) -> bool:
    document = result(answer)
    (error,) = document["errors"]
    return (answer.status, document["status"], error["code"]) == (status, "rejected", code)


# --- POST /refresh ----------------------------------------------------------------------------


@pytest.mark.req("REF-1", "REF-2")
async def test_dry_run_and_apply_are_answered_in_one_shape(admin: Admin) -> None:
    admin.edge.disk.write(with_capacity(8))
    dry = await admin.refresh({"mode": "dry_run"})
    assert (dry.status, result(dry)["status"], result(dry)["mode"]) == (200, "applied", "dry_run")
    assert result(dry)["generation"] == {"before": 1, "after": 1}
    wet = await admin.refresh({"mode": "apply", "if_generation": 1})
    assert (wet.status, result(wet)["generation"]) == (200, {"before": 1, "after": 2})
    assert result(wet).keys() == result(dry).keys()
    assert result(wet)["nodes"][0] == {
        "node_id": "gpu-a",
        "outcome": "acknowledged",
        "generation": 2,
        "detail": None,
    }


@pytest.mark.req("REF-2", "REF-7")
async def test_a_needed_restart_is_409_for_an_apply_and_200_for_a_dry_run(admin: Admin) -> None:
    admin.edge.disk.write({**lab(), "server": {"listen": "127.0.0.1:6001"}})
    assert (await admin.refresh({"mode": "dry_run"})).status == 200
    applied = await admin.refresh({"mode": "apply"})
    assert (applied.status, result(applied)["status"]) == (409, "restart_required")
    status = json.loads((await admin.ask("GET", "/status")).body)
    assert status["pending_restart_paths"] == ["server.listen"]


@pytest.mark.req("REF-5")
async def test_a_candidate_that_does_not_load_is_422_and_the_last_error_stays_visible(
    admin: Admin,
) -> None:
    admin.edge.disk.write({**lab(), "no_such_key": 1})
    answer = await admin.refresh({"mode": "apply"})
    assert (answer.status, result(answer)["status"]) == (422, "rejected")
    status = json.loads((await admin.ask("GET", "/status")).body)
    assert status["last_error"]["errors"] == result(answer)["errors"]
    assert status["generation"] == 1


@pytest.mark.req("REF-10")
@pytest.mark.parametrize("demand", [{"if_generation": 7}, {"if_candidate": "sha256:00"}])
async def test_an_unmet_demand_is_412(admin: Admin, demand: dict[str, Any]) -> None:
    answer = await admin.refresh({"mode": "apply", **demand})
    assert (answer.status, result(answer)["status"]) == (412, "rejected")


@pytest.mark.req("REF-1")
@pytest.mark.parametrize("mode", ["", "Apply", "force", "dry-run"])
async def test_any_other_mode_is_rejected(admin: Admin, mode: str) -> None:
    assert is_rejected(await admin.refresh({"mode": mode}), 422, "invalid_mode")
    assert admin.edge.disk.reads == 0


@pytest.mark.req("REF-1")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"apply",
        b"null",
        b"[]",
        b"{}",
        b'{"mode": 1}',
        b'{"mode": null}',
        b'{"mode": "apply", "force": "canary"}',
        b'{"mode": "apply", "if_generation": "canary"}',
        b'{"mode": "apply", "if_generation": 1.5}',
        b'{"mode": "apply", "if_candidate": 7}',
        b'{"mode": "apply"} {"mode": "apply"}',
        b'{"mode": "app',
        b'{"mode": "\xff"}',
        b'{"mode": "\\ud800"}',
        b"[" * 20_000,
    ],
)
async def test_a_body_that_is_no_such_request_is_400_and_not_echoed(
    admin: Admin, body: bytes
) -> None:
    answer = await admin.refresh(body)
    assert is_rejected(answer, 400, "invalid_value")
    assert b"canary" not in answer.body
    assert admin.edge.disk.reads == 0


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_another_content_type_is_415(admin: Admin, content_type: str) -> None:
    answer = await admin.refresh({"mode": "apply"}, **{"content-type": content_type})
    assert is_rejected(answer, 415, "unsupported_media_type")
    assert admin.edge.disk.reads == 0


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "header",
    [
        {"host": "evil.example"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/refresh", "/status", "/config", "/nowhere"])
async def test_a_foreign_host_or_origin_is_403_on_every_path(
    admin: Admin, header: dict[str, str], path: str
) -> None:
    method = "POST" if path == "/refresh" else "GET"
    answer = await admin.ask(
        method, path, b'{"mode": "apply"}' if method == "POST" else b"", header
    )
    assert answer.status in (400, 403) if header == {"host": ""} else answer.status == 403
    if path == "/refresh":
        assert result(answer)["status"] == "rejected"
    elif answer.status == 403:
        error = json.loads(answer.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
    assert admin.edge.store.current.generation == 1
    assert admin.edge.disk.reads == 0


@pytest.mark.req("SEC-2")
async def test_a_body_over_the_bound_is_413_before_it_is_read(admin: Admin) -> None:
    async with admin.connection() as client:
        head = admin.request("POST", "/refresh", b"", {"content-length": "9999999"})
        answer = await client.ask(head)
    assert is_rejected(answer, 413, "request_too_large")


async def test_another_method_is_405_and_another_path_404(admin: Admin) -> None:
    assert is_rejected(await admin.ask("GET", "/refresh"), 405, "method_not_allowed")
    assert (await admin.ask("POST", "/status")).status == 405
    assert (await admin.ask("GET", "/metrics")).status == 404


@pytest.mark.req("REF-9")
async def test_a_caller_that_wants_lines_hears_each_node_as_it_answers(admin: Admin) -> None:
    admin.edge.disk.write(with_capacity(8))
    answer = await admin.refresh({"mode": "apply"}, accept="application/x-ndjson")
    assert answer.headers["content-type"] == "application/x-ndjson"
    plan, first, last = (json.loads(line) for line in answer.body.splitlines())
    assert plan["waiting_for"] == ["gpu-a"]
    assert plan["plan"]["changes"] == last["result"]["changes"]
    assert plan["plan"]["generation"] == {"before": 1, "after": 2}
    assert first["node"]["outcome"] == "acknowledged"
    assert last["result"]["nodes"][0] == first["node"]
    assert last["result"]["status"] == "applied"


@pytest.mark.req("REF-2")
async def test_where_nothing_is_pushed_even_that_caller_gets_one_object_and_its_status(
    admin: Admin,
) -> None:
    admin.edge.disk.write({"no_such_key": 1})
    answer = await admin.refresh({"mode": "apply"}, accept="application/x-ndjson")
    assert (answer.status, answer.headers["content-type"]) == (422, "application/json")
    assert result(answer)["status"] == "rejected"


@pytest.mark.req("REF-7")
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_a_caller_that_hangs_up_mid_apply_leaves_a_whole_one(
    admin: Admin, accept: str
) -> None:
    edge = admin.edge
    edge.nodes.may_answer.clear()
    edge.disk.write(with_capacity(8))
    async with admin.connection() as client:
        client.send(admin.request("POST", "/refresh", b'{"mode": "apply"}', {"accept": accept}))
        await edge.nodes.pushing.wait()
    edge.nodes.may_answer.set()
    await edge.reloader.drain()
    (record,) = edge.reloader.history()
    assert record.result.status == "applied"
    assert record.result.nodes[0].outcome == "acknowledged"


# --- what can be seen -------------------------------------------------------------------------


@pytest.mark.req("REF-9", "POOL-8", "CFG-22")
async def test_status_has_the_shape_of_the_interface(admin: Admin) -> None:
    admin.pool.node_connected(NodeId("gpu-b"))
    config = lab()
    config["nodes"][0]["providers"][0]["enabled"] = False
    config["nodes"][0]["runtime"] = {"concurrency": 8}
    admin.edge.reloader._admission = admin.pool
    assert (await admin.edge.refresh(config=config)).status == "applied"
    status = json.loads((await admin.ask("GET", "/status")).body)
    assert status.keys() == {
        "generation",
        "started_at",
        "config_digest",
        "last_error",
        "pending_restart_paths",
        "queue",
        "nodes",
        "providers",
        "models",
    }
    assert status["generation"] == 2
    assert status["queue"] == {"pending": 0, "max_queue": 16, "oldest_ms": None}
    assert [node["node_id"] for node in status["nodes"]] == ["gpu-a", "gpu-b"]
    assert status["nodes"][0] == {
        "node_id": "gpu-a",
        "alias": None,
        "agent_kind": "node",
        "concurrency": 8,
        "connected": True,
        "state": "connected",
        "session": 1,
        "generation": {"desired": 2, "sent": 2, "acknowledged": 2, "effective": 2},
        "last_failure": None,
        "active_runs": 0,
        "draining_registries": [],
    }
    first, second = status["providers"]
    assert (first["provider_id"], first["status"], first["health"], first["capacity"]) == (
        "p-a",
        "disabled",
        "disabled",
        0,
    )
    assert (second["status"], second["capacity"], second["in_flight"]) == ("available", 4, 0)
    assert [model["model_id"] for model in status["models"]] == ["other", "smart"]
    assert status["models"][1]["providers"] == ["p-a", "p-b"]
    assert status["models"][1]["available_providers"] == 1


@pytest.mark.req("SEC-1", "CFG-23")
async def test_the_config_is_effective_and_holds_no_secret(admin: Admin) -> None:
    answer = await admin.ask("GET", "/config")
    config = json.loads(answer.body)
    assert config["provider_pool"] == {"max_queue": 16, "queue_timeout_ms": 30000}
    assert config["nodes"][0]["token"] == {"file": "/run/secrets/a"}
    assert b"canary" not in answer.body


@pytest.mark.req("CFG-8", "CFG-23")
async def test_what_only_a_running_edge_has_stands_apart_in_the_config(admin: Admin) -> None:
    promoted = lab()
    for node in promoted["nodes"]:
        node["providers"][0] |= {"max_queue": 7, "queue_timeout_ms": 1000}
    assert (await admin.edge.refresh(config=promoted)).status == "applied"
    config = json.loads((await admin.ask("GET", "/config")).body)
    resolved = config.pop("resolved")
    assert resolved["provider_pool"] == {
        "max_queue": 7,
        "queue_timeout_ms": 1000,
        "source": "providers",
    }
    assert [(one["node"], one["key"]) for one in resolved["adapters"]] == [
        ("gpu-a", "main"),
        ("gpu-b", "main"),
    ]
    url = resolved["adapters"][0]["profile"]["operation_urls"]["chat_completions"]
    assert url == "http://127.0.0.1:8000/v1/chat/completions"
    # What is left is a config again. It leaves the promoted policy out, and so has the default.
    assert (await admin.edge.refresh(config=config)).live_paths == (
        "provider_pool.max_queue",
        "provider_pool.queue_timeout_ms",
    )


@pytest.mark.req("REF-1")
async def test_the_latest_receipts_are_kept_newest_first(admin: Admin) -> None:
    await admin.refresh({"mode": "dry_run"})
    await admin.refresh({"mode": "apply"})
    kept = json.loads((await admin.ask("GET", "/refreshes")).body)["refreshes"]
    assert [one["result"]["mode"] for one in kept] == ["apply", "dry_run"]
    assert {one["origin"] for one in kept} == {"admin"}


@pytest.mark.req("POOL-12")
async def test_runs_are_limited_as_asked_and_by_what_is_kept(admin: Admin) -> None:
    assert json.loads((await admin.ask("GET", "/runs")).body) == {"runs": []}
    await admin.ask("GET", "/runs?limit=7")
    await admin.ask("GET", "/runs?limit=999999")
    assert admin.runs.limits == [50, 7, 256]
    for wrong in ("0", "-1", "x", "", "1e3", "%D9%A3", "9" * 400):
        answer = await admin.ask("GET", f"/runs?limit={wrong}")
        assert answer.status == 400
        assert answer.error()["param"] == "limit"


@pytest.mark.req("OPS-3")
async def test_alive_is_not_ready(admin: Admin) -> None:
    admin.waiting_for = ("listeners",)
    assert (await admin.ask("GET", "/healthz")).status == 200
    not_ready = await admin.ask("GET", "/readyz")
    assert (not_ready.status, json.loads(not_ready.body)) == (
        503,
        {"ready": False, "waiting_for": ["listeners"]},
    )
    admin.waiting_for = ()
    assert (await admin.ask("GET", "/readyz")).status == 200


@pytest.mark.req("SEC-2")
async def test_it_serves_a_unix_socket_that_only_its_owner_can_use(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    admin = Admin(f"unix:{path}")
    async with admin.listener:
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await admin.ask("GET", "/status")).status == 200
        refused = await admin.ask("GET", "/status", headers={"origin": "https://evil.example"})
        assert refused.status == 403
    assert not path.exists()
