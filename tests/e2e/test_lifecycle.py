"""How the two processes start, refuse to start, drain and end: their exit statuses are promises."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path

import pytest
from e2e_harness import (
    Edge,
    Upstream,
    chat,
    prompt,
    running_site,
    start_nodes,
    write,
)

from demo.processes import BIN, Group, StartFailed
from demo.site import Site

pytestmark = pytest.mark.e2e


def _log(edge: Edge, name: str) -> str:
    return (edge.site.group.folder / f"{name}.log").read_text()


@pytest.mark.req("NODE-9")
def test_a_node_with_a_wrong_token_exits_6(
    shared_site: tuple[Site, object], tmp_path: Path
) -> None:
    site, _ = shared_site
    group = Group(tmp_path)
    node = group.start(
        "stranger",
        [BIN / "iop-node", "run"],
        {"IOP_EDGE": f"127.0.0.1:{site.ports.grpc}", "IOP_NODE_TOKEN": "x" * 40},
    )
    assert node.wait(15) == 6
    assert "x" * 40 not in node.log.read_text()


@pytest.mark.req("NODE-1")
def test_a_node_without_its_two_variables_exits_2_and_names_them(tmp_path: Path) -> None:
    node = Group(tmp_path).start("bare", [BIN / "iop-node", "run"])
    assert node.wait(15) == 2
    assert "IOP_EDGE" in node.log.read_text()


@pytest.mark.req("OPS-3")
async def test_a_node_asked_to_end_finishes_its_run_and_exits_0(
    own_site: Edge, upstream: Upstream
) -> None:
    await asyncio.to_thread(own_site.site.start_edge)
    await asyncio.to_thread(start_nodes, own_site.site, "a", "b")
    await upstream.plan("node-drain", hold_after=2)
    async with own_site.call(chat("one", prompt("node-drain"), stream=True)) as call:
        await upstream.seen("node-drain", "held")
        node = own_site.site.nodes["a"]
        node.signal(signal.SIGTERM)
        # No new run reaches it: those go to the other node.
        await own_site.until(lambda s: not _is_candidate(s, "a-pair"))
        for number in range(3):
            async with own_site.call(chat("pair", prompt("after", str(number)))) as other:
                assert b"200 OK" in await other.rest()
        assert node.exit_status is None
        await upstream.release("node-drain")
        assert b"[DONE]" in await call.rest()
        assert await asyncio.to_thread(node.wait, 15) == 0
    assert {event["model"] for event in await upstream.seen("after", "opened", count=3)} == {
        "small-b"
    }


def _is_candidate(status: dict[str, list[dict[str, str]]], provider_id: str) -> bool:
    provider = next(p for p in status["providers"] if p["provider_id"] == provider_id)
    return provider["status"] in ("available", "busy")


@pytest.mark.req("OPS-3")
async def test_an_edge_asked_to_end_finishes_its_run_and_exits_0(
    own_site: Edge, upstream: Upstream
) -> None:
    site = own_site.site
    edge = await asyncio.to_thread(site.start_edge)
    await asyncio.to_thread(start_nodes, site, "a")
    await upstream.plan("edge-drain", hold_after=2)
    async with own_site.call(chat("one", prompt("edge-drain"), stream=True)) as call:
        await upstream.seen("edge-drain", "held")
        edge.signal(signal.SIGTERM)
        await _until_not_ready(own_site)
        assert edge.exit_status is None
        await upstream.release("edge-drain")
        assert b"[DONE]" in await call.rest()
        assert await asyncio.to_thread(edge.wait, 15) == 0


async def _until_not_ready(edge: Edge) -> None:
    """The edge says that it drains, or has closed its door already."""
    async with asyncio.timeout(10):
        while True:
            try:
                async with edge.http.get(f"{edge.site.admin_url}/readyz") as answer:
                    if answer.status == 503:
                        return
            except OSError:
                return
            await asyncio.sleep(0.02)


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("name", ["edge", "node-a"])
async def test_a_second_signal_ends_a_draining_process_at_once_with_7(
    own_site: Edge, upstream: Upstream, name: str
) -> None:
    site = own_site.site
    edge = await asyncio.to_thread(site.start_edge)
    await asyncio.to_thread(start_nodes, site, "a")
    tag = f"second-{name}"
    await upstream.plan(tag, hold_after=2)
    async with own_site.call(chat("one", prompt(tag), stream=True)):
        await upstream.seen(tag, "held")
        process = edge if name == "edge" else site.nodes["a"]
        process.signal(signal.SIGTERM)
        if name == "edge":
            await _until_not_ready(own_site)
        else:
            await own_site.until(lambda s: not _is_candidate(s, "a-pair"))
        assert process.exit_status is None
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 5) == 7


@pytest.mark.req("OPS-3", "OPS-2")
@pytest.mark.parametrize("command", [("iop-edge", "serve"), ("iop-node", "run")], ids=" ".join)
async def test_a_signal_that_comes_while_a_process_still_loads_ends_it_with_0(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    with running_site(tmp_path) as site:
        write(site, {"edge": {"id": "e1"}, **site.listeners()})
        program, verb = command
        given = {"IOP_EDGE_CONFIG": str(site.config)}
        given |= {"IOP_EDGE": f"127.0.0.1:{site.ports.grpc}", "IOP_NODE_TOKEN": "t" * 40}
        process = site.group.start("early", [BIN / program, verb], given)
        await _until_held(process.pid)
        assert process.log.read_text() == ""
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0


async def _until_held(pid: int) -> None:
    """SIGTERM would wait for this process."""
    async with asyncio.timeout(20):
        while not _holds_sigterm(pid):
            await asyncio.sleep(0.002)  # offered for what the system shows


def _holds_sigterm(pid: int) -> bool:
    shown = Path(f"/proc/{pid}/status").read_text()
    [blocked] = re.findall(r"^SigBlk:\s*(\w+)$", shown, re.MULTILINE)
    return bool(int(blocked, 16) & (1 << (signal.SIGTERM - 1)))


@pytest.mark.req("CFG-21")
@pytest.mark.parametrize("section", ["server", "openai", "admin", "metrics", "bootstrap"])
def test_an_edge_whose_port_is_taken_exits_1_and_names_it(tmp_path: Path, section: str) -> None:
    with running_site(tmp_path, expected={"edge": {1}}) as site, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = site.listeners()
        config[section]["listen"] = address
        write(site, config)
        with pytest.raises(StartFailed):
            site.start_edge()
        assert site.edge is not None
        assert site.edge.wait(10) == 1
        assert address in site.edge.log.read_text()


@pytest.mark.req("CFG-21")
async def test_an_edge_without_models_and_nodes_starts_and_says_so(tmp_path: Path) -> None:
    with running_site(tmp_path) as site:
        write(site, {"edge": {"id": "e1"}, **site.listeners()})
        edge = await asyncio.to_thread(site.start_edge)
        log = edge.log.read_text()
        status = await asyncio.to_thread(site.status)
    assert re.search(r"no models", log)
    assert re.search(r"no nodes", log)
    assert (status["models"], status["nodes"], status["providers"]) == ([], [], [])


@pytest.mark.req("CFG-4", "CFG-21")
def test_an_invalid_config_keeps_the_edge_from_starting_with_exit_status_1(tmp_path: Path) -> None:
    with running_site(tmp_path, expected={"edge": {1}}) as site:
        write(site, {**site.listeners(), "modles": []})
        with pytest.raises(StartFailed):
            site.start_edge()
        assert site.edge is not None
        assert site.edge.wait(10) == 1
        assert "models" in site.edge.log.read_text()
