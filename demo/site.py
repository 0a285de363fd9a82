"""One edge and its nodes as real processes, with one config file between them.

Knows the commands, the environment variables, the admin surface and the files that a user knows,
and nothing of what is inside. The demo and the end-to-end tests both stand on it.
"""

from __future__ import annotations

import hashlib
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from demo.processes import (
    BIN,
    Group,
    Process,
    free_ports,
    get_json,
    plain_environment,
    until,
)

EDGE = BIN / "iop-edge"
NODE = BIN / "iop-node"


class Ports(NamedTuple):
    grpc: int
    bootstrap: int
    admin: int
    metrics: int
    openai: int


@dataclass(frozen=True)
class Ran:
    """A command that has ended: what was typed, what it said, how it ended."""

    line: str
    stdout: str
    stderr: str
    exit_status: int


class Site:
    """One edge with its nodes, in the group's folder, on free ports of 127.0.0.1."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ports = Ports(*free_ports(len(Ports._fields)))
        self.config = group.folder / "edge.yaml"
        self.edge: Process | None = None
        self.nodes: dict[str, Process] = {}
        self._tokens: dict[str, str] = {}

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin}"

    @property
    def openai_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.openai}/v1"

    def listeners(self) -> dict[str, dict[str, Any]]:
        """The sections of a config that name ports or folders. Others may add to them."""
        at = "127.0.0.1:{}".format
        return {
            "server": {"listen": at(self.ports.grpc)},
            "bootstrap": {
                "listen": at(self.ports.bootstrap),
                "artifact_dir": str(self.group.folder / "artifacts"),
            },
            "admin": {"listen": at(self.ports.admin)},
            "metrics": {"listen": at(self.ports.metrics)},
            "openai": {"enabled": True, "listen": at(self.ports.openai), "provider_id": "site"},
        }

    def token(self, node_id: str) -> str:
        """The node's token: made when it is first asked for, and known to no file."""
        made = f"iop_node_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
        return self._tokens.setdefault(node_id, made)

    def token_sha256(self, node_id: str) -> str:
        return hashlib.sha256(self.token(node_id).encode()).hexdigest()

    def start_edge(self, *, timeout_s: float = 20.0) -> Process:
        """Start the edge on the config file and wait until it says that it is ready."""
        edge = self.group.start("edge", [EDGE, "serve", "--config", self.config])
        self.edge = edge

        def is_ready() -> bool:
            """the edge is ready"""
            return get_json(f"{self.admin_url}/readyz") is not None

        until(is_ready, watching=[edge], timeout_s=timeout_s)
        return edge

    def start_node(
        self, node_id: str, *, token: str | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a node with the two things it needs to join: where the edge is, and its token.

        `env` is for what its upstreams' headers are configured to read on the node.
        """
        process = self.group.start(
            f"node-{node_id}",
            [NODE, "run"],
            {
                "IOP_EDGE": f"127.0.0.1:{self.ports.grpc}",
                "IOP_NODE_TOKEN": token or self.token(node_id),
                **(env or {}),
            },
        )
        self.nodes[node_id] = process
        return process

    def status(self) -> dict[str, Any]:
        """The edge's status. Raises StartFailed where it does not answer."""

        def status() -> dict[str, Any] | None:
            """the edge answers"""
            return get_json(f"{self.admin_url}/status")

        return until(status, watching=[self.edge] if self.edge else [])

    def node_status(self, node_id: str) -> dict[str, Any]:
        return next(node for node in self.status()["nodes"] if node["node_id"] == node_id)

    def provider_status(self, provider_id: str) -> dict[str, Any]:
        return next(p for p in self.status()["providers"] if p["provider_id"] == provider_id)

    def wait_connected(self, *node_ids: str, timeout_s: float = 20.0) -> None:
        """Wait until the edge counts all these nodes as connected (POOL-1)."""

        def are_connected() -> bool:
            """every node is connected"""
            nodes = self.status()["nodes"]
            connected = {node["node_id"] for node in nodes if node["connected"]}
            return connected.issuperset(node_ids)

        watching = [self.nodes[node_id] for node_id in node_ids if node_id in self.nodes]
        until(are_connected, watching=watching, timeout_s=timeout_s)

    def wait_idle(self, *, timeout_s: float = 10.0) -> None:
        """Wait until nothing runs and nothing waits anywhere."""

        def is_idle() -> bool:
            """no slot is taken and the queue is empty"""
            status = self.status()
            is_free = all(provider["in_flight"] == 0 for provider in status["providers"])
            return is_free and int(status["queue"]["pending"]) == 0

        until(is_idle, timeout_s=timeout_s)

    def iop_edge(self, *arguments: str, timeout_s: float = 30.0) -> Ran:
        """Run a command of the edge's against this site, as a person would in its folder."""
        ran = subprocess.run(
            [EDGE, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.group.folder,
            env=plain_environment() | {"IOP_EDGE_ADMIN": self.admin_url, "COLUMNS": "100"},
        )
        line = " ".join(["iop-edge", *arguments])
        return Ran(line, ran.stdout, ran.stderr, ran.returncode)

    def kill_edge(self) -> None:
        """SIGKILL: it has no chance to say goodbye."""
        assert self.edge is not None
        self.edge.kill()

    def hang_up_edge(self) -> None:
        """SIGHUP: an apply of what the file now holds."""
        assert self.edge is not None
        self.edge.signal(signal.SIGHUP)
