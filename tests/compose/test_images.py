"""Each image by itself: how little it needs, what it does not hold, and that its health is true."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.compose_rig import NODES, PROJECT, SLACK_S, WORKERS, Site, container

IMAGES = ("iop-edge", "iop-node", "iop-model")
LEAST = [
    "--read-only", "--cap-drop", "ALL", "--user", "65532", "--security-opt", "no-new-privileges",
]  # fmt: skip
OFTEN = ["--health-interval", "500ms", "--health-timeout", "2s", "--health-retries", "1"]
TOKEN = "iop_node_00000000_" + "lone" * 16
EDGE, NODE, MODEL = (f"{PROJECT}-lone-{name}" for name in ("edge", "node", "model"))
CONFIG: dict[str, Any] = {
    "edge": {"id": "lone"},
    "nodes": [{"id": "n", "token": {"sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}}],
}


@pytest.fixture
def lone(site: Site, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts an image with the least rights, and nothing that it could write to."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    (folder / "edge.yaml").write_text(json.dumps(CONFIG))

    def start(name: str, image: str, *options: str) -> None:
        mounted = ["--volume", f"{folder}:/etc/iop:ro"]
        site.docker("run", "--detach", "--name", name, *LEAST, *OFTEN, *mounted, *options, image)

    yield start
    site.ran("rm", "--force", EDGE, NODE, MODEL)


def start_both(lone: Callable[..., None]) -> None:
    lone(EDGE, "iop-edge")
    given = ["--env", "IOP_EDGE=127.0.0.1:50051", "--env", f"IOP_NODE_TOKEN={TOKEN}"]
    lone(NODE, "iop-node", "--network", f"container:{EDGE}", *given)


async def until_health(site: Site, name: str, wanted: str) -> None:
    health = ""
    try:
        async with asyncio.timeout(30 + SLACK_S):
            while health != wanted:
                shown = await site.aside("inspect", "--format", "{{.State.Health.Status}}", name)
                health = shown.strip()
    except TimeoutError:
        log = site.ran("logs", name)
        raise AssertionError(f"{name} is {health}: {(log.stdout + log.stderr)[-2000:]}") from None


@pytest.mark.req("OPS-2")
async def test_edge_and_node_need_no_rights_and_nothing_to_write_to(
    site: Site, lone: Callable[..., None]
) -> None:
    start_both(lone)
    await until_health(site, EDGE, "healthy")
    await until_health(site, NODE, "healthy")
    for name in (NODE, EDGE):
        await site.aside("stop", "--time", "30", name)
        shown = site.docker("inspect", "--format", "{{.State.ExitCode}}", name)
        assert (name, shown.strip()) == (name, "0")


@pytest.mark.req("OPS-2", "OPS-3")
async def test_a_container_that_is_told_to_stop_as_soon_as_it_starts_does_so(
    site: Site, lone: Callable[..., None]
) -> None:
    start_both(lone)
    for name in (NODE, EDGE) * 3:
        # Killed, it would have exited with 137.
        await site.aside("restart", "--time", "30", name)
        await site.aside("stop", "--time", "30", name)
        shown = site.docker("inspect", "--format", "{{.State.ExitCode}}", name)
        assert (name, shown.strip()) == (name, "0")
        site.docker("start", name)


@pytest.mark.req("OPS-2")
async def test_the_model_needs_no_rights_and_nothing_to_write_to(
    site: Site, lone: Callable[..., None]
) -> None:
    lone(MODEL, "iop-model")
    await until_health(site, MODEL, "healthy")


@pytest.mark.req("OPS-2", "OPS-3")
async def test_an_edge_that_stands_still_is_not_healthy_and_one_that_goes_on_is_again(
    site: Site, lone: Callable[..., None]
) -> None:
    start_both(lone)
    await until_health(site, NODE, "healthy")
    site.docker("kill", "--signal", "STOP", EDGE)
    await until_health(site, EDGE, "unhealthy")
    # Nor is a node that has nobody to take runs from.
    await until_health(site, NODE, "unhealthy")
    site.docker("kill", "--signal", "CONT", EDGE)
    await until_health(site, EDGE, "healthy")
    await until_health(site, NODE, "healthy")


@pytest.mark.req("OPS-2", "NODE-1", "SEC-1")
@pytest.mark.parametrize(
    ("mode", "content", "said"),
    [
        (None, "", "No such file"),
        (0o400, TOKEN, "Permission denied"),
        (0o444, "canary", "holds no token"),
    ],
    ids=["missing", "unreadable", "too short"],
)
def test_a_node_whose_secret_is_not_as_it_must_be_says_so_and_ends(
    site: Site, tmp_path: Path, mode: int | None, content: str, said: str
) -> None:
    folder = tmp_path / "secret"
    folder.mkdir(mode=0o755)
    if mode is not None:
        (folder / "token").write_text(content)
        (folder / "token").chmod(mode)
    given = ["--env", "IOP_EDGE=127.0.0.1:1", "--env", "IOP_NODE_TOKEN_FILE=/s/token"]
    ran = site.ran("run", "--rm", *LEAST, *given, "--volume", f"{folder}:/s:ro", "iop-node")
    assert ran.returncode == 2
    [line] = ran.stderr.splitlines()
    assert line.startswith("iop-node: IOP_NODE_TOKEN_FILE")
    assert said in line
    assert "canary" not in line


@pytest.mark.req("OPS-2", "SEC-1")
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_no_secret_no_tool_and_nothing_of_how_it_was_built(
    site: Site, image: str
) -> None:
    shown = site.docker("history", "--no-trunc", image) + site.docker("image", "inspect", image)
    assert [one for one in site.secrets.values() if one in shown] == []
    assert "PIP_INDEX_URL" not in shown
    script = "find /opt /etc/iop /var/lib/iop /src /root -maxdepth 3 2>/dev/null; :"
    found = site.docker("run", "--rm", *LEAST, "--entrypoint", "sh", image, "-c", script)
    there = {Path(line) for line in found.splitlines()}
    assert {path.parts[1] for path in there} <= {"opt", "etc", "var", "root"}
    opt = {path.parts[2] for path in there if path.parts[1] == "opt" and len(path.parts) > 2}
    assert opt == ({"iop", "demo"} if image == "iop-model" else {"iop"})
    assert Path("/opt/iop/bin/pip") not in there
    assert [path for path in there if path.suffix in (".yaml", ".pem", ".key")] == []


@pytest.mark.req("OPS-2", "OPS-3")
@pytest.mark.parametrize("image", ["iop-edge", "iop-node"])
def test_an_image_can_send_traces(site: Site, image: str) -> None:
    program = (
        "from iop_shared.tracing import can_export; from iop_shared.otlp import OtlpExporter; "
        "OtlpExporter('http://127.0.0.1:1', service='s', instance_id='i'); print(can_export())"
    )
    said = site.docker("run", "--rm", *LEAST, "--entrypoint", "python", image, "-c", program)
    assert said.strip() == "True"


@pytest.mark.req("OPS-2", "SEC-1")
def test_no_secret_can_be_seen_by_looking_at_a_container(site: Site) -> None:
    for service in (*WORKERS, "tokens", "model"):
        shown = site.docker("inspect", container(service))
        assert [name for name, secret in site.secrets.items() if secret in shown] == [], service


@pytest.mark.req("OPS-2")
async def test_bringing_it_up_again_changes_nothing(site: Site) -> None:
    def ids() -> dict[str, Any]:
        return {service: site.inspect(service, ".Id") for service in WORKERS}

    before = ids()
    sessions = {node["node_id"]: node["session"] for node in (await site.status())["nodes"]}
    site.compose("up", "--detach")
    assert ids() == before
    assert site.compose("run", "--rm", "-T", "tokens", "caller").strip() == site.caller_token
    status = await site.until_whole()
    assert {node["node_id"]: node["session"] for node in status["nodes"]} == sessions
    assert set(sessions) == set(NODES)


@pytest.mark.req("OPS-2")
def test_the_small_model_can_be_left_out(site: Site) -> None:
    without = {**site.env, "COMPOSE_PROFILES": ""}
    everything, site.env = site.env, without
    try:
        services = site.compose("config", "--services").split()
    finally:
        site.env = everything
    assert set(WORKERS) <= set(services)
    assert "model" not in services
    assert "model" in site.compose("config", "--services").split()
