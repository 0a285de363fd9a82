"""An edge that is killed inside a refresh, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from iop_edge.cli.admin_client import AdminClient, Unreachable

TOKEN = "canary-token-of-the-node-0123456789abcdef"


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: that of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def config(home: Path, capacity: int) -> bytes:
    (home / "token").write_text(TOKEN)
    (home / "token").chmod(0o600)
    document = {
        "server": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": "127.0.0.1:0"},
        "admin": {"listen": f"unix:{home}/admin.sock"},
        "provider_pool": {"max_queue": capacity},
        "models": [{"id": "smart", "providers": {"p": "small"}}],
        "nodes": [
            {
                "id": "gpu-a",
                "token": {"file": f"{home}/token"},
                "adapters": [
                    {"key": "main", "type": "openai_compat", "base_url": "http://127.0.0.1:9"}
                ],
                "providers": [
                    {
                        "id": "p",
                        "type": "openai_compat",
                        "category": "api",
                        "adapter": "main",
                        "models": ["small"],
                        "capacity": capacity,
                    }
                ],
            }
        ],
    }
    return json.dumps(document).encode()


@contextmanager
def running_edge(home: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """An edge that is ready."""
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "iop-edge"), "serve", "--config", f"{home}/edge.yaml"],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as edge:
        try:
            assert edge.stderr is not None
            lines = []
            for line in edge.stderr:
                lines.append(line)
                if '"edge_ready"' in line:
                    break
            else:
                raise AssertionError("".join(lines))
            yield edge
        finally:
            edge.kill()
            edge.communicate(timeout=30)


@pytest.mark.e2e
@pytest.mark.req("REF-5", "REF-7")
@pytest.mark.parametrize(
    "place", ["apply.after_validate", "apply.before_swap", "apply.after_swap", "apply.after_push"]
)
def test_an_edge_killed_in_a_refresh_starts_again_on_one_config(home: Path, place: str) -> None:
    file = home / "edge.yaml"
    file.write_bytes(config(home, 4))
    client = AdminClient(f"unix:{home}/admin.sock")
    with running_edge(home, IOP_FAILPOINTS=f"{place}=kill") as edge:
        assert seen(client) == (1, 4, 4, 4)
        file.write_bytes(config(home, 8))
        with pytest.raises(Unreachable):
            list(client.post("/refresh", {"mode": "apply"}))
        assert edge.wait(timeout=30) == -signal.SIGKILL
    with running_edge(home):
        assert seen(client) == (1, 8, 8, 8)
        digest = sha256(file.read_bytes()).hexdigest()
        assert client.get("/status")["config_digest"] == f"sha256:{digest}"


def seen(client: AdminClient) -> tuple[Any, ...]:
    """The generation, and the one number as config, queue and pool each have it."""
    effective, status = client.get("/config"), client.get("/status")
    return (
        status["generation"],
        effective["nodes"][0]["providers"][0]["capacity"],
        status["queue"]["max_queue"],
        status["providers"][0]["capacity"],
    )
