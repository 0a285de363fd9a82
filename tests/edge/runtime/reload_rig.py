"""A reloader on a disk, a node hub and an admission of its own, for tests of the transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from iop.runtime_pb2 import NodeConfigPayload
from iop_edge.config.effective import QueuePolicy
from iop_edge.config.load import load
from iop_edge.config.sources import SecretFile, SourceFile, Sources
from iop_edge.pool.catalog import Catalog
from iop_edge.refresh.receipt import Mode, RefreshResult
from iop_edge.runtime.node_hub import NodeAnswer, NodeView, Outcome
from iop_edge.runtime.payload import build_payloads, stamped
from iop_edge.runtime.reloader import RefreshRequest, Reloader
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_shared.ids import Generation, NodeId

FIRST = Generation(1)


def lab() -> dict[str, Any]:
    """A config of two nodes with one provider each, as plain data to be changed."""
    return {
        "edge": {"id": "edge-1"},
        "models": [
            {"id": "smart", "providers": {"p-a": "small", "p-b": "small"}},
            {"id": "other", "providers": {"p-b": "small"}},
        ],
        "nodes": [node("a"), node("b")],
    }


def node(name: str) -> dict[str, Any]:
    return {
        "id": f"gpu-{name}",
        "token": {"file": f"/run/secrets/{name}"},
        "adapters": [
            {
                "key": "main",
                "type": "openai_compat",
                "base_url": "http://127.0.0.1:8000",
                "headers": {"Authorization": {"file": "/run/secrets/upstream"}},
            }
        ],
        "providers": [
            {
                "id": f"p-{name}",
                "type": "openai_compat",
                "category": "api",
                "adapter": "main",
                "models": ["small"],
                "capacity": 4,
            }
        ],
    }


class Disk:
    """The files that an edge was started with."""

    def __init__(self) -> None:
        self.content = b""
        self.secrets = {
            "/run/secrets/a": "canary-token-of-a-0123456789abcdef0123",
            "/run/secrets/b": "canary-token-of-b-0123456789abcdef0123",
            "/run/secrets/c": "canary-token-of-c-0123456789abcdef0123",
            "/run/secrets/upstream": "canary-upstream",
        }
        self.reads = 0
        self.after_read: Callable[[], None] = lambda: None

    def write(self, config: Mapping[str, Any]) -> None:
        self.content = json.dumps(config).encode()

    def read(self) -> Sources:
        self.reads += 1
        sources = Sources(
            files=(SourceFile(name="edge.yaml", content=self.content),),
            environment={},
            read_secret=lambda path: SecretFile(self.secrets[path].encode(), 0o600),
            fingerprint_key=b"one key for this process",
        )
        self.after_read()
        return sources


class Nodes:
    """A node hub without sessions: answers as it is told."""

    def __init__(self) -> None:
        self.desired: dict[NodeId, NodeConfigPayload] = {}
        self.effective: dict[NodeId, Generation] = {}
        self.outcomes: dict[NodeId, Outcome] = {}
        self.failures: dict[NodeId, str] = {}
        self.pushes: list[dict[NodeId, int]] = []
        self.pushing = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def set_desired(self, payloads: Mapping[NodeId, NodeConfigPayload]) -> None:
        self.desired.update(payloads)

    async def push(
        self, payloads: Mapping[NodeId, NodeConfigPayload], timeout_s: float
    ) -> AsyncIterator[NodeAnswer]:
        self.pushes.append({node_id: one.generation for node_id, one in payloads.items()})
        self.pushing.set()
        await self.may_answer.wait()
        for node_id, payload in payloads.items():
            outcome = self.outcomes.get(node_id, "acknowledged")
            if outcome == "acknowledged":
                self.effective[node_id] = Generation(payload.generation)
            else:
                self.failures[node_id] = f"{outcome}: it says so"
            yield NodeAnswer(
                node_id=node_id,
                outcome=outcome,
                generation=self.effective.get(node_id),
                detail=self.failures.get(node_id),
            )

    def views(self) -> Sequence[NodeView]:
        return [
            NodeView(
                node_id=node_id,
                state="connected",
                session=1,
                version="1",
                desired=Generation(payload.generation),
                sent=Generation(payload.generation),
                acknowledged=self.effective.get(node_id),
                effective=self.effective.get(node_id),
                last_failure=self.failures.get(node_id),
                active_runs=0,
                draining=(),
            )
            for node_id, payload in reversed(self.desired.items())
        ]


class Admission:
    def __init__(self, catalog: Catalog, policy: QueuePolicy) -> None:
        self.catalog = catalog
        self.policy = policy
        self.replacements = 0

    def replace(self, catalog: Catalog, policy: QueuePolicy) -> None:
        self.catalog, self.policy = catalog, policy
        self.replacements += 1


class Edge:
    """A reloader and what it works on, with every node on the first generation."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.disk = Disk()
        self.disk.write(config or lab())
        loaded = load(self.disk.read())
        self.disk.reads = 0
        self.store = SnapshotStore(
            RuntimeSnapshot(
                generation=FIRST,
                config=loaded.config,
                config_digest=loaded.digest,
                vault=loaded.vault,
                catalog=Catalog.from_config(loaded.config),
                applied_at=datetime.now(UTC),
            )
        )
        payloads = stamped({}, build_payloads(loaded.config, loaded.vault), FIRST)
        self.nodes = Nodes()
        self.nodes.set_desired(payloads)
        self.nodes.effective = dict.fromkeys(payloads, FIRST)
        self.admission = Admission(self.store.current.catalog, loaded.config.provider_pool)
        self.reloader = Reloader(
            snapshots=self.store,
            payloads=payloads,
            nodes=self.nodes,
            admission=self.admission,
            read_sources=self.disk.read,
        )

    async def refresh(
        self, mode: Mode = "apply", config: Mapping[str, Any] | None = None, **demands: Any
    ) -> RefreshResult:
        if config is not None:
            self.disk.write(config)
        return await self.reloader.refresh(RefreshRequest(mode=mode, **demands))


def with_capacity(capacity: int, name: str = "a") -> dict[str, Any]:
    config = lab()
    index = 0 if name == "a" else 1
    config["nodes"][index]["providers"][0]["capacity"] = capacity
    return config
