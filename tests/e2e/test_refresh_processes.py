"""A refresh between real processes that stop, refuse, stay silent, hang up or are killed."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml
from e2e_harness import (
    Config,
    Edge,
    Upstream,
    chat,
    prompt,
    running_site,
    site_config,
    start_nodes,
    with_provider,
    write,
)

from demo.processes import get_json, until
from demo.site import EDGE, Site

pytestmark = pytest.mark.e2e


def outcomes(result: Config) -> dict[str, str]:
    return {node["node_id"]: node["outcome"] for node in result["nodes"]}


def of(entries: list[Config], key: str, value: str) -> Config:
    return next(entry for entry in entries if entry[key] == value)


def log_lines(site: Site, name: str, event: str) -> list[Config]:
    lines = (site.group.folder / f"{name}.log").read_text().splitlines()
    return [entry for line in lines if f'"{event}"' in line for entry in [json.loads(line)]]


# --- what other systems got wrong -------------------------------------------------------------


@pytest.mark.req("POOL-7", "POOL-2", "REF-8")
async def test_shrinking_under_load_admits_nothing_until_it_has_drained(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    def capacity(slots: int) -> Config:
        return with_provider(config, "a-one", capacity=slots)

    async def load() -> tuple[int, int]:
        status = await edge.status()
        provider = of(status["providers"], "provider_id", "a-one")
        return provider["in_flight"], status["queue"]["pending"]

    await edge.apply(capacity(4))
    tags = [f"shrink-{number}" for number in range(6)]
    async with AsyncExitStack() as stack:
        calls = []
        for tag in tags:
            await upstream.plan(tag, hold_after=1)
            body = chat("one", prompt(tag), stream=True)
            calls.append(await stack.enter_async_context(edge.call(body)))
            if len(calls) <= 4:
                await upstream.seen(tag, "held")
            else:
                waiting = len(calls) - 4
                await edge.until(lambda s, waiting=waiting: s["queue"]["pending"] == waiting)

        await edge.apply(capacity(2))
        assert await load() == (4, 2)
        same = await edge.apply(capacity(2))
        assert (same["changes"], outcomes(same)) == ([], {"a": "unchanged", "b": "unchanged"})
        for number, left in ((0, 3), (1, 2)):
            await upstream.release(tags[number])
            assert b"[DONE]" in await calls[number].rest()
            await edge.until(
                lambda s, left=left: of(s["providers"], "provider_id", "a-one")["in_flight"] == left
            )
        # Two run, and two is the limit: both who wait go on waiting.
        assert await load() == (2, 2)
        await edge.apply(capacity(3))
        await upstream.seen(tags[4], "held")
        assert await load() == (3, 1)
        for number in (2, 3, 4, 5):
            await upstream.release(tags[number])
            assert b"[DONE]" in await calls[number].rest()


@pytest.mark.req("REF-5", "REF-10", "CFG-4")
async def test_a_bad_file_changes_nothing_and_the_repaired_one_works(
    edge: Edge, config: Config
) -> None:
    await edge.apply(config)
    original = edge.site.config.read_bytes()
    before = await edge.admin("/config")
    generation = (await edge.status())["generation"]
    bad = with_provider(config, "a-one", capacity=8)
    bad["protocol_profiles"] = {"broken": {"driver": "openai_chet"}}
    write(edge.site, bad)
    status, result = await edge.refresh()
    assert (status, result["status"]) == (422, "rejected")
    [error] = result["errors"]
    assert error["path"] == "protocol_profiles[broken].driver"
    assert error["line"] > 1
    assert await edge.admin("/config") == before
    seen = await edge.status()
    assert (seen["generation"], seen["last_error"]["errors"]) == (generation, [error])

    edge.site.config.write_bytes(original)
    status, repaired = await edge.refresh()
    assert (status, repaired["status"], repaired["changes"]) == (200, "applied", [])
    assert (await edge.status())["last_error"] is None
    good = await edge.apply(with_provider(config, "a-one", capacity=8))
    assert [change["new"] for change in good["changes"]] == [8]


@pytest.mark.req("REF-8", "CFG-23", "NODE-3")
async def test_a_file_that_means_the_same_is_no_change_and_sends_nothing(
    edge: Edge, config: Config
) -> None:
    await edge.apply(config)
    sent = len(log_lines(edge.site, "node-a", "payload_applied"))
    before = (await edge.node("a"))["generation"]
    same = _reordered(config)
    for provider in (one for node in same["nodes"] for one in node["providers"]):
        provider |= {"priority": 0, "enabled": True, "health": "unknown"}
    same["long_context_threshold_tokens"] = 100_000
    same["provider_pool"] = {"queue_timeout_ms": 30_000, "max_queue": 16}
    edge.site.config.write_text(f"# The same again.\n{yaml.safe_dump(same, sort_keys=False)}")
    status, result = await edge.refresh()
    assert (status, result["status"], result["changes"]) == (200, "applied", [])
    assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}
    assert (await edge.node("a"))["generation"] == before
    assert len(log_lines(edge.site, "node-a", "payload_applied")) == sent


def _reordered(value: Any) -> Any:
    match value:
        case dict():
            return {key: _reordered(value[key]) for key in reversed(value)}
        case list():
            return [_reordered(one) for one in reversed(value)]
        case _:
            return value


@pytest.mark.req("REF-9", "NODE-3", "POOL-1")
async def test_the_one_of_five_nodes_that_cannot_build_it_keeps_what_it_has(
    tmp_path: Path, small_upstream_url: str, upstream: Upstream
) -> None:
    node_ids = ["a", "b", "c", "d", "e"]
    with running_site(tmp_path / "five") as site:
        ca_file = tmp_path / "ca.pem"
        trustme.CA().cert_pem.write_to_path(ca_file)
        config = _five_nodes(site, small_upstream_url, node_ids)
        config["nodes"][1]["adapters"][0]["ca_file"] = str(ca_file)
        write(site, config)
        site.start_edge()
        await asyncio.to_thread(start_nodes, site, *node_ids)
        ca_file.unlink()
        async with aiohttp.ClientSession() as http:
            edge = Edge(site, http)
            for node in config["nodes"]:
                for provider in node["providers"]:
                    provider["capacity"] = 7
            write(site, config)
            ran = await asyncio.to_thread(site.iop_edge, "config", "refresh")
            assert ran.exit_status == 8, ran
            assert "node    b: refused (runs generation 1)" in ran.stdout
            assert str(ca_file) in ran.stdout

            [last] = (await edge.admin("/refreshes"))["refreshes"]
            assert last["result"]["status"] == "applied"
            assert outcomes(last["result"]) == {
                node_id: "refused" if node_id == "b" else "acknowledged" for node_id in node_ids
            }
            status = await edge.status()
            assert status["generation"] == 2
            for node_id in node_ids:
                node = of(status["nodes"], "node_id", node_id)
                ran_by = 1 if node_id == "b" else 2
                assert node["connected"]
                assert node["generation"] == {
                    "desired": 2,
                    "sent": 2,
                    "acknowledged": ran_by,
                    "effective": ran_by,
                }
                assert ("missing_ca_file" in (node["last_failure"] or "")) is (node_id == "b")
            # Its old registry goes on serving.
            async with edge.call(chat("only-b", prompt("refused"))) as call:
                assert b"200 OK" in await call.rest()
            [opened] = await upstream.seen("refused", "opened")
            assert opened["model"] == "small-b"
            # What it refused is not sent again; an apply says why it lags behind.
            again = await edge.apply(config)
            assert outcomes(again) == dict.fromkeys(node_ids, "unchanged")
            assert "missing_ca_file" in of(again["nodes"], "node_id", "b")["detail"]


def _five_nodes(site: Site, upstream_url: str, node_ids: list[str]) -> Config:
    config = site_config(site, upstream_url)
    template = config["nodes"][1]
    config["nodes"] = []
    for node_id in node_ids:
        node = copy.deepcopy(template)
        node |= {"id": node_id, "token": {"sha256": site.token_sha256(node_id)}}
        node["providers"][0] |= {"id": f"{node_id}-pair", "models": [f"small-{node_id}"]}
        config["nodes"].append(node)
    config["models"] = [
        {"id": "pair", "providers": {f"{one}-pair": f"small-{one}" for one in node_ids}},
        {"id": "only-b", "providers": {"b-pair": "small-b"}},
    ]
    return config


# --- runs in flight ---------------------------------------------------------------------------


@pytest.mark.req("POOL-7", "REF-7")
async def test_a_run_whose_provider_is_unmapped_finishes_and_no_other_begins(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    await upstream.plan("unmapped", hold_after=1)
    async with edge.call(chat("one", prompt("unmapped"), stream=True)) as call:
        await upstream.seen("unmapped", "held")
        async with edge.call(chat("one", prompt("unmapped-waits"))) as waiting:
            await edge.until(lambda status: status["queue"]["pending"] == 1)
            moved = copy.deepcopy(config)
            of(moved["models"], "id", "one")["providers"] = {"b-pair": "small-b"}
            await edge.apply(moved)
            # Who waits is judged by the new candidates at once.
            assert b"200 OK" in await waiting.rest()
        [opened] = await upstream.seen("unmapped-waits", "opened")
        assert opened["model"] == "small-b"
        assert (await edge.provider("a-one"))["in_flight"] == 1
        gone = copy.deepcopy(config)
        gone["models"] = [model for model in gone["models"] if model["id"] != "one"]
        await edge.apply(gone)
        async with edge.call(chat("one", prompt("unmapped-late"))) as late:
            assert b"model_not_found" in await late.rest()
        await upstream.release("unmapped")
        assert b"[DONE]" in await call.rest()
    await edge.until_idle()


@pytest.mark.req("REF-10")
async def test_of_two_applies_at_once_the_second_is_judged_by_what_the_first_left(
    edge: Edge, config: Config
) -> None:
    await edge.apply(config)
    now = (await edge.status())["generation"]
    write(edge.site, with_provider(config, "a-one", capacity=5))
    answers = await asyncio.gather(*(edge.refresh(if_generation=now) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 412, 412, 412, 412]
    assert (await edge.status())["generation"] == now + 1

    write(edge.site, with_provider(config, "a-one", capacity=6))
    results = [result for _, result in await asyncio.gather(*(edge.refresh() for _ in range(5)))]
    assert sorted(len(result["changes"]) for result in results) == [0, 0, 0, 0, 1]
    steps = sorted((one["generation"]["before"], one["generation"]["after"]) for one in results)
    assert steps == [(now + number, now + number + 1) for number in range(1, 6)]


# --- nodes that stay silent, callers that hang up, edges that are killed ----------------------


@pytest.fixture(scope="module")
def harsh_site(
    tmp_path_factory: pytest.TempPathFactory, small_upstream_url: str
) -> Iterator[tuple[Site, Config]]:
    """Its edge may be killed. Its nodes live as long as the module, and come back by themselves."""
    killed = {"edge": {0, -signal.SIGKILL}}
    with running_site(tmp_path_factory.mktemp("harsh"), expected=killed) as site:
        config = site_config(site, small_upstream_url)
        write(site, config)
        start_edge(site)
        start_nodes(site, "a", "b")
        yield site, config


@pytest.fixture
async def harsh(harsh_site: tuple[Site, Config]) -> AsyncIterator[Edge]:
    async with aiohttp.ClientSession() as http:
        yield Edge(harsh_site[0], http)


def start_edge(site: Site, **environment: str) -> None:
    """To be called from the main thread: a process is tied to the thread that started it."""
    edge = site.group.start("edge", [EDGE, "serve", "--config", site.config], environment)
    site.edge = edge
    until(lambda: get_json(f"{site.admin_url}/readyz"), watching=[edge])


@pytest.mark.req("REF-5", "REF-7", "NODE-6", "POOL-6")
@pytest.mark.parametrize(
    "place", ["apply.after_validate", "apply.before_swap", "apply.after_swap", "apply.after_push"]
)
async def test_an_edge_killed_in_a_refresh_comes_back_on_one_config_and_so_do_its_nodes(
    harsh: Edge, harsh_site: tuple[Site, Config], upstream: Upstream, place: str
) -> None:
    site, config = harsh_site
    assert site.edge is not None
    await asyncio.to_thread(site.edge.stop)
    write(site, config)
    start_edge(site, IOP_FAILPOINTS=f"{place}=kill")
    await asyncio.to_thread(site.wait_connected, "a", "b")
    await upstream.plan(place, hold_after=1)
    async with harsh.call(chat("one", prompt(place), stream=True)) as stream:
        await upstream.seen(place, "held")
        write(site, _doubled(config))
        with pytest.raises(aiohttp.ClientError):
            await harsh.refresh()
        assert await asyncio.to_thread(site.edge.wait, 10) == -signal.SIGKILL
        assert b"[DONE]" not in await stream.rest()
        # The upstream is not left talking to nobody.
        await upstream.seen(place, "closed")

    start_edge(site)
    await asyncio.to_thread(site.wait_connected, "a", "b")
    status = await harsh.status()
    assert _capacities(status) == {"a-pair": 64, "a-one": 2, "b-pair": 64}
    assert (await harsh.admin("/config"))["provider_pool"]["max_queue"] == 32
    assert all(set(node["generation"].values()) == {1} for node in status["nodes"])
    assert all(provider["in_flight"] == 0 for provider in status["providers"])
    await harsh.until(lambda status: all(node["active_runs"] == 0 for node in status["nodes"]))
    async with harsh.call(chat("one", prompt(f"{place}.after"))) as call:
        assert b"200 OK" in await call.rest()


def _doubled(config: Config) -> Config:
    doubled = copy.deepcopy(config)
    for node in doubled["nodes"]:
        for provider in node["providers"]:
            provider["capacity"] *= 2
    doubled["provider_pool"] = {"max_queue": 32}
    return doubled


def _capacities(status: Config) -> dict[str, int]:
    return {one["provider_id"]: one["capacity"] for one in status["providers"]}


@pytest.mark.req("REF-9", "NODE-3", "POOL-1")
async def test_a_node_that_cannot_build_what_it_is_welcomed_with_is_no_candidate_and_says_why(
    harsh: Edge, harsh_site: tuple[Site, Config]
) -> None:
    site, config = harsh_site
    assert site.edge is not None
    await asyncio.to_thread(site.edge.stop)
    elsewhere = copy.deepcopy(config)
    elsewhere["nodes"][1]["adapters"][0]["ca_file"] = str(site.group.folder / "nowhere.pem")
    write(site, elsewhere)
    start_edge(site)
    await asyncio.to_thread(site.wait_connected, "a")
    status = await harsh.until(lambda status: of(status["nodes"], "node_id", "b")["last_failure"])
    node = of(status["nodes"], "node_id", "b")
    assert (node["state"], node["connected"]) == ("joining", False)
    assert node["last_failure"].startswith("missing_ca_file")
    assert (node["generation"]["sent"], node["generation"]["effective"]) == (1, None)
    assert of(status["providers"], "provider_id", "b-pair")["status"] == "unavailable"
    async with harsh.call(chat("pair", prompt("joining"))) as call:
        assert b"200 OK" in await call.rest()

    await asyncio.to_thread(site.edge.stop)
    write(site, config)
    start_edge(site)
    await asyncio.to_thread(site.wait_connected, "a", "b")


@pytest.mark.req("REF-9", "REF-10")
async def test_a_node_that_never_answers_times_out_and_a_caller_that_hangs_up_stops_nothing(
    harsh: Edge, harsh_site: tuple[Site, Config]
) -> None:
    site, config = harsh_site
    write(site, config)
    await harsh.apply(config)
    now = (await harsh.status())["generation"]
    ran_by = (await harsh.node("b"))["generation"]["effective"]
    silent = site.nodes["b"]
    silent.signal(signal.SIGSTOP)
    try:
        write(site, _doubled(config))
        asking = asyncio.create_task(harsh.refresh())
        await harsh.until(lambda status: status["generation"] == now + 1)
        asking.cancel()
        # It waits for its turn, and is then judged by what the first one left.
        status, late = await harsh.refresh(if_generation=now)
        assert (status, late["status"]) == (412, "rejected")

        [_, first, *_] = (await harsh.admin("/refreshes"))["refreshes"]
        assert first["result"]["status"] == "applied"
        assert outcomes(first["result"]) == {"a": "acknowledged", "b": "timed_out"}
        node = await harsh.node("b")
        assert (node["generation"]["sent"], node["generation"]["effective"]) == (now + 1, ran_by)
        assert node["last_failure"].startswith("timed_out")
    finally:
        silent.signal(signal.SIGCONT)
    # Its late answer still counts for what is shown.
    status = await harsh.until(
        lambda status: all(
            node["connected"] and node["generation"]["effective"] == now + 1
            for node in status["nodes"]
        )
    )
    assert [node["last_failure"] for node in status["nodes"]] == [None, None]


# --- files ------------------------------------------------------------------------------------


@pytest.mark.req("REF-10", "CFG-2")
async def test_a_directory_that_is_swapped_by_its_symlink_is_the_next_candidate(
    tmp_path: Path, small_upstream_url: str
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with running_site(tmp_path / "site") as site:
        first = site_config(site, small_upstream_url)
        second = with_provider(first, "a-one", capacity=9)

        def publish(version: str, config: Config) -> None:
            """As the kubelet publishes a ConfigMap: a new directory, then one rename."""
            (mount / version).mkdir()
            (mount / version / "edge.yaml").write_text(yaml.safe_dump(config))
            (mount / "..data_tmp").symlink_to(version)
            (mount / "..data_tmp").replace(mount / "..data")

        publish("..v1", first)
        (mount / "edge.yaml").symlink_to("..data/edge.yaml")
        site.config = mount / "edge.yaml"
        await asyncio.to_thread(site.start_edge)
        async with aiohttp.ClientSession() as http:
            edge = Edge(site, http)
            publish("..v2", second)
            (mount / "..v1" / "edge.yaml").unlink()
            status, result = await edge.refresh()
            assert (status, result["live_paths"]) == (
                200,
                ["nodes[a].providers[a-one].capacity"],
            )
            assert (await edge.provider("a-one"))["capacity"] == 9
            assert os.readlink(site.config) == "..data/edge.yaml"
