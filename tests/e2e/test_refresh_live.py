"""A refresh over real processes: what runs is not touched, what waits profits at once, and what
cannot be applied changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from e2e_harness import (
    CALLER_TOKEN,
    Config,
    Edge,
    Upstream,
    chat,
    prompt,
    with_provider,
    write,
)

from demo.site import Site

pytestmark = pytest.mark.e2e


async def _stream_bytes(edge: Edge, content: str, model: str) -> bytes:
    async with edge.http.post(
        f"{edge.site.openai_url}/chat/completions",
        json=chat(model, content, stream=True),
        headers={"Authorization": f"Bearer {CALLER_TOKEN}"},
    ) as answer:
        assert answer.status == 200
        return await answer.read()


@pytest.mark.req("REF-7", "NODE-3", "NODE-4")
async def test_a_stream_across_five_applies_is_equal_to_the_byte_to_one_without(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    content = prompt("across")
    await upstream.plan("across", tokens=300, pace_ms=1, hold_after=290)
    running = asyncio.create_task(_stream_bytes(edge, content, "one"))
    await upstream.seen("across", "opened")
    generations = []
    for capacity in (2, 5, 3, 4, 2):
        result = await edge.apply(with_provider(config, "a-one", capacity=capacity))
        generations.append(result["generation"]["after"])
    # The upstream still holds the last tokens, so the stream ran through all five.
    assert not await upstream.seen_so_far("across", "completed")
    await upstream.release("across")
    across = await running
    undisturbed = await _stream_bytes(edge, content, "one")
    assert across == undisturbed
    assert across.endswith(b"data: [DONE]\n\n")
    assert generations == list(range(generations[0], generations[0] + 5))


@pytest.mark.req("POOL-7", "REF-3")
async def test_a_raised_capacity_admits_the_queued_request_while_the_first_still_runs(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    for tag in ("first", "second"):
        await upstream.plan(tag, hold_after=1)
    async with (
        edge.call(chat("one", prompt("first"), stream=True)) as first,
        edge.call(chat("one", prompt("second"), stream=True)) as second,
    ):
        await upstream.seen("first", "held")
        await edge.until(lambda status: status["queue"]["pending"] == 1)
        assert not await upstream.seen_so_far("second", "opened")

        result = await edge.apply(with_provider(config, "a-one", capacity=2))
        assert result["changed_providers"] == ["a-one"]
        await upstream.seen("second", "held")
        assert not await upstream.seen_so_far("first", "completed")
        assert (await edge.provider("a-one"))["in_flight"] == 2

        await upstream.release("second")
        assert b"[DONE]" in await second.rest()
        await upstream.release("first")
        assert b"[DONE]" in await first.rest()


@pytest.mark.req("REF-3", "POOL-2")
async def test_a_changed_priority_decides_where_the_next_request_goes(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    for preferred, other in (("a", "b"), ("b", "a")):
        tag = f"priority-{preferred}"
        await edge.apply(with_provider(config, f"{other}-pair", priority=9))
        async with edge.call(chat("pair", prompt(tag))) as call:
            assert b"200 OK" in (await call.rest()).split(b"\r\n")[0]
        [opened] = await upstream.seen(tag, "opened")
        assert opened["model"] == f"small-{preferred}"


@pytest.mark.req("NODE-4", "REF-8", "REF-9")
async def test_a_run_ends_on_the_registry_it_began_on_which_then_stops(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    await upstream.plan("old", hold_after=1)
    before = (await edge.node("a"))["generation"]["effective"]
    async with edge.call(chat("one", prompt("old"), stream=True)) as call:
        await upstream.seen("old", "held")
        result = await edge.apply(with_provider(config, "a-one", capacity=3))
        outcomes = {node["node_id"]: node["outcome"] for node in result["nodes"]}
        assert outcomes == {"a": "acknowledged", "b": "unchanged"}
        after = result["generation"]["after"]

        def drains(status: dict[str, list[Config]]) -> bool:
            node = next(n for n in status["nodes"] if n["node_id"] == "a")
            return bool(node["draining_registries"])

        node = next(n for n in (await edge.until(drains))["nodes"] if n["node_id"] == "a")
        assert [old["generation"] for old in node["draining_registries"]] == [before]
        assert set(node["generation"].values()) == {after}
        await upstream.release("old")
        assert b"[DONE]" in await call.rest()
    await edge.until(lambda status: not drains(status))


@pytest.mark.req("REF-1", "REF-2", "REF-7", "REF-12")
async def test_a_restart_required_candidate_changes_nothing_and_reports_both_lists(
    edge: Edge, config: Config, shared_site: tuple[Site, Config]
) -> None:
    before = await edge.status()
    mixed = with_provider(config, "a-one", capacity=7)
    mixed["nodes"][0]["alias"] = "renamed"
    write(edge.site, mixed)
    status, result = await edge.refresh()
    assert (status, result["status"]) == (409, "restart_required")
    assert result["live_paths"] == ["nodes[a].providers[a-one].capacity"]
    assert result["restart_required_paths"] == ["nodes[a].alias"]
    after = await edge.status()
    assert after["generation"] == before["generation"]
    assert after["pending_restart_paths"] == ["nodes[a].alias"]
    assert (await edge.provider("a-one"))["capacity"] == 1
    await edge.apply(config)
    assert (await edge.status())["pending_restart_paths"] == []


@pytest.mark.req("REF-5", "CFG-3", "CFG-4")
async def test_a_rejected_candidate_changes_nothing_and_names_its_places(
    edge: Edge, config: Config
) -> None:
    before = await edge.status()
    bad = with_provider(with_provider(config, "a-one", capacity=9), "a-pair", capcity=4)
    write(edge.site, bad)
    status, result = await edge.refresh()
    assert (status, result["status"]) == (422, "rejected")
    [problem] = result["errors"]
    assert problem["line"] > 1
    assert "capacity" in problem["message"]
    after = await edge.status()
    assert after["generation"] == before["generation"]
    assert after["last_error"]
    assert (await edge.provider("a-one"))["capacity"] == 1


@pytest.mark.req("REF-1", "REF-10")
async def test_a_dry_run_says_what_an_apply_would_do_and_the_apply_may_demand_it(
    edge: Edge, config: Config
) -> None:
    now = (await edge.status())["generation"]
    write(edge.site, with_provider(config, "a-one", capacity=6))
    status, dry = await edge.refresh("dry_run")
    assert (status, dry["status"]) == (200, "applied")
    assert dry["generation"] == {"before": now, "after": now}
    assert {n["node_id"]: n["outcome"] for n in dry["nodes"]} == {
        "a": "would_send",
        "b": "unchanged",
    }
    assert (await edge.provider("a-one"))["capacity"] == 1

    digest = dry["candidate_digest"]
    assert (await edge.refresh(if_generation=now + 1))[0] == 412
    assert (await edge.refresh(if_candidate="sha256:" + "0" * 64))[0] == 412
    assert (await edge.provider("a-one"))["capacity"] == 1
    status, result = await edge.refresh(if_generation=now, if_candidate=digest)
    assert (status, result["generation"]["after"]) == (200, now + 1)
    assert (await edge.provider("a-one"))["capacity"] == 6


@pytest.mark.req("REF-1")
@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("same", [], 0),
        ("live", ["--dry-run"], 3),
        ("live", [], 0),
        ("restart", [], 4),
        ("invalid", [], 1),
    ],
)
async def test_the_command_tells_candidates_apart_by_its_exit_status(
    edge: Edge, config: Config, kind: str, arguments: list[str], expected: int
) -> None:
    candidates = {
        "same": config,
        "live": with_provider(config, "a-one", capacity=3),
        "restart": with_provider(config, "a-one", health="healthy"),
        "invalid": with_provider(config, "a-one", capacity=0),
    }
    write(edge.site, candidates[kind])
    ran = await asyncio.to_thread(edge.site.iop_edge, "config", "refresh", *arguments)
    assert ran.exit_status == expected, ran


@pytest.mark.req("REF-1")
async def test_a_hangup_signal_applies_what_the_file_holds(edge: Edge, config: Config) -> None:
    write(edge.site, with_provider(config, "a-one", capacity=8))
    edge.site.hang_up_edge()
    await edge.until(
        lambda status: any(
            p["provider_id"] == "a-one" and p["capacity"] == 8 for p in status["providers"]
        )
    )
