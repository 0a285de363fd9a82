"""What operators do while callers call: refresh, swap files, restart nodes, stop everything."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
import yaml

from tests.compose.compose_rig import (
    GRACE_S,
    NODES,
    SLACK_S,
    WORKERS,
    Answer,
    Site,
    config_of_the_site,
    connected,
    in_flight,
    prompt,
    whole,
)
from tests.e2e.e2e_harness import Upstream


def capacity(status: dict[str, list[dict[str, int | str]]], provider_id: str) -> int:
    [found] = [p for p in status["providers"] if p["provider_id"] == provider_id]
    return int(found["capacity"])


@pytest.mark.req("OPS-2", "REF-3", "POOL-5", "POOL-7")
async def test_capacity_grows_under_running_streams_and_those_who_wait_get_it_at_once(
    site: Site, upstream: Upstream
) -> None:
    await site.apply(config_of_the_site(a=1, b=1))
    await upstream.plan("grow", tokens=60, hold_after=10)
    streams = [asyncio.create_task(site.ask(prompt("grow", str(one)))) for one in range(6)]
    await upstream.seen("grow", "held", count=2)
    full = await site.until(lambda status: status["queue"]["pending"] == 4)
    assert in_flight(full) == 2
    receipt = await site.apply(config_of_the_site(a=3, b=3))
    assert {node["node_id"]: node["outcome"] for node in receipt["nodes"]} == {
        "node-a": "acknowledged",
        "node-b": "acknowledged",
    }
    await upstream.seen("grow", "held", count=6)
    grown = await site.until(lambda status: in_flight(status) == 6)
    assert grown["queue"]["pending"] == 0
    assert grown["generation"] == full["generation"] + 1
    # Shrinking takes nothing away from those that run.
    await site.apply(config_of_the_site(a=1, b=1))
    await upstream.release("grow")
    assert await asyncio.gather(*streams) == [
        whole(prompt("grow", str(one)), 60) for one in range(6)
    ]


@pytest.mark.req("OPS-2", "REF-1", "REF-5")
async def test_a_config_folder_that_is_swapped_by_a_symlink_is_read_whole_or_not_at_all(
    site: Site,
) -> None:
    before = await site.status()
    site.folder.put(yaml.safe_dump(config_of_the_site(a=5)))
    site.compose("kill", "--signal", "HUP", "edge")
    after = await site.until(lambda status: status["generation"] == before["generation"] + 1)
    assert capacity(after, "a-pair") == 5
    site.folder.put("nodes: [{ id: node-a, capcity: 3 }]\n")
    site.compose("kill", "--signal", "HUP", "edge")
    refused = await site.until(lambda status: status["last_error"])
    assert refused["generation"] == after["generation"]
    assert capacity(refused, "a-pair") == 5
    assert (await site.ask(prompt("last-good"))).end == "done"


@pytest.mark.req("OPS-2", "NODE-6", "POOL-6")
async def test_nodes_restarted_one_after_the_other_under_load_lose_nothing(
    site: Site, upstream: Upstream
) -> None:
    await upstream.plan("load", tokens=40, pace_ms=10)
    numbers, answers, over = count(), [], asyncio.Event()

    async def keep_asking() -> None:
        while not over.is_set():
            content = prompt("load", str(next(numbers)))
            answers.append((content, await site.ask(content)))

    async with asyncio.TaskGroup() as callers:
        for _ in range(4):
            callers.create_task(keep_asking())
        for node in NODES:
            await upstream.seen("load", "opened", count=len(answers) + 4)
            await site.aside("compose", "restart", "--timeout", str(GRACE_S), node)
            await site.until(lambda status: connected(status) == set(NODES))
            assert site.inspect(node, ".State.ExitCode") == 0
        over.set()
    assert len(answers) > 8
    assert [(asked, got) for asked, got in answers if got != whole(asked, 40)] == []


@pytest.mark.req("OPS-2", "OPS-3", "POOL-6")
async def test_everything_stops_within_its_grace_and_what_runs_is_finished(
    site: Site, upstream: Upstream
) -> None:
    await upstream.plan("stop", tokens=100, pace_ms=30)
    streams = [asyncio.create_task(site.ask(prompt("stop", str(one)))) for one in range(4)]
    await upstream.seen("stop", "opened", count=4)
    async with asyncio.timeout(GRACE_S + SLACK_S):
        await site.aside("compose", "stop", *WORKERS)
    expected: list[Answer] = [whole(prompt("stop", str(one)), 100) for one in range(4)]
    assert await asyncio.gather(*streams) == expected
    for service in WORKERS:
        assert site.inspect(service, ".State.ExitCode") == 0, service
    said = [event for event in site.events("edge") if event["component"] == "edge"]
    assert [event["event"] for event in said][-3:] == [
        "edge_draining",
        "edge_drained",
        "edge_stopped",
    ]


@pytest.mark.req("OPS-2", "OPS-3")
@pytest.mark.parametrize("service", WORKERS)
async def test_a_second_signal_ends_the_first_process_of_a_container_at_once(
    site: Site, upstream: Upstream, service: str
) -> None:
    tag = f"twice-{service}"
    await upstream.plan(tag, hold_after=1)
    streams = [asyncio.create_task(site.ask(prompt(tag))) for _ in NODES]
    await upstream.seen(tag, "held", count=2)
    site.compose("kill", "--signal", "TERM", service)
    draining = "edge_draining" if service == "edge" else "node_draining"
    async with asyncio.timeout(SLACK_S):
        while not any(event["event"] == draining for event in site.events(service)[-5:]):
            await asyncio.sleep(0.05)  # offered for what the log shows
    site.compose("kill", "--signal", "TERM", service)
    async with asyncio.timeout(SLACK_S):
        while site.inspect(service, ".State.Running"):
            await asyncio.sleep(0.05)  # offered for what the engine shows
    assert site.inspect(service, ".State.ExitCode") == 7
    await upstream.release(tag)
    await asyncio.gather(*streams)
