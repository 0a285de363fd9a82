"""Every live path of the walker's table, changed alone on a running edge with its nodes, and its
effect observed where it shows: at the next dispatch, at the upstream, at the node, in the record.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web
from e2e_harness import (
    CALLER_TOKEN,
    Config,
    Edge,
    Upstream,
    chat,
    prompt,
    provider_of,
    running_site,
    site_config,
    start_nodes,
    with_provider,
    write,
)

from demo.processes import free_ports
from demo.site import Site
from iop_edge.config.reload_class import Reload
from iop_edge.refresh.shape import effective_shape, rows

pytestmark = pytest.mark.e2e

LONG_TEXT = "word " * 400  # 2,000 characters: some hundred tokens by any estimate
DECLARED: dict[str, set[str]] = {}
"""The live paths whose effect each test of this file shows."""

Test = TypeVar("Test", bound=Callable[..., Any])


def shows(*patterns: str) -> Callable[[Test], Test]:
    """The test applies a change of each of these paths alone, and sees its effect."""

    def declare(test: Test) -> Test:
        DECLARED[test.__name__] = set(patterns)
        return test

    return declare


@pytest.fixture(scope="module")
def claude_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def live_site(
    tmp_path_factory: pytest.TempPathFactory, small_upstream_url: str, claude_port: int
) -> Iterator[tuple[Site, Config]]:
    with running_site(tmp_path_factory.mktemp("live")) as site:
        config = site_config(site, small_upstream_url)
        node = config["nodes"][0]
        node["adapters"].append(
            {
                "key": "claude",
                "type": "anthropic",
                "base_url": f"http://127.0.0.1:{claude_port}",
            }
        )
        node["providers"].append(
            {
                "id": "a-claude",
                "type": "anthropic",
                "category": "api",
                "adapter": "claude",
                "models": ["claude-small"],
                "capacity": 1,
            }
        )
        provider_of(config, "a-one")["models"].append("small-two")
        provider_of(config, "a-one")["long_context_capacity"] = 0
        config["models"].append({"id": "claude", "providers": {"a-claude": "claude-small"}})
        config["provider_pool"] = {"max_queue": 4, "queue_timeout_ms": 60_000}
        write(site, config)
        site.start_edge()
        start_nodes(site, "a", "b")
        yield site, config


@pytest.fixture
def config(live_site: tuple[Site, Config]) -> Config:
    return live_site[1]


class LiveEdge(Edge):
    """An edge that knows which paths were applied alone."""

    def __init__(self, site: Site, http: aiohttp.ClientSession) -> None:
        super().__init__(site, http)
        self.shown: set[str] = set()

    async def apply_alone(self, candidate: Config, *patterns: str) -> Config:
        """Apply a candidate that changes exactly these paths, all of them live."""
        result = await self.apply(candidate)
        found = {re.sub(r"\[[^\]]*\]", "[]", change["path"]) for change in result["changes"]}
        assert found == set(patterns)
        assert {change["class"] for change in result["changes"]} == {"live"}
        assert result["restart_required_paths"] == []
        self.shown.update(patterns)
        return result


@pytest.fixture
async def edge(
    live_site: tuple[Site, Config], request: pytest.FixtureRequest
) -> AsyncIterator[LiveEdge]:
    site, config = live_site
    async with aiohttp.ClientSession() as http:
        edge = LiveEdge(site, http)
        yield edge
        await edge.apply(config)
        await edge.until_idle()
        assert edge.shown >= DECLARED.get(request.function.__name__, set())


def model_of(config: Config, model_id: str) -> Config:
    found: Config = next(model for model in config["models"] if model["id"] == model_id)
    return found


def with_model(config: Config, model_id: str, **fields: Any) -> Config:
    copied = copy.deepcopy(config)
    model_of(copied, model_id).update(fields)
    return copied


def outcomes(result: Config) -> dict[str, str]:
    return {node["node_id"]: node["outcome"] for node in result["nodes"]}


async def ask(edge: Edge, body: Config, path: str = "chat/completions") -> tuple[int, Config]:
    async with edge.http.post(
        f"{edge.site.openai_url}/{path}",
        json=body,
        headers={"Authorization": f"Bearer {CALLER_TOKEN}", "anthropic-version": "2023-06-01"},
    ) as answer:
        return answer.status, await answer.json()


async def code_of(edge: Edge, body: Config) -> str:
    """`ok`, or the code of the error."""
    status, answer = await ask(edge, body)
    return "ok" if status == 200 else str(answer["error"]["code"])


@asynccontextmanager
async def busy(edge: Edge, upstream: Upstream, tag: str, model: str = "one") -> AsyncIterator[None]:
    """The model's only slot is taken within the block."""
    await upstream.plan(tag, hold_after=1)
    async with edge.call(chat(model, prompt(tag), stream=True)) as call:
        await upstream.seen(tag, "held")
        yield
        await upstream.release(tag)
        assert b"[DONE]" in await call.rest()


# --- the root ---------------------------------------------------------------------------------


@shows("long_context_threshold_tokens")
@pytest.mark.req("REF-3", "POOL-4", "CFG-6")
async def test_the_threshold_decides_what_counts_as_long(edge: LiveEdge, config: Config) -> None:
    body = chat("one", prompt("threshold", LONG_TEXT))
    assert await code_of(edge, body) == "ok"
    lower = {**config, "long_context_threshold_tokens": 50}
    result = await edge.apply_alone(lower, "long_context_threshold_tokens")
    assert await code_of(edge, body) == "context_length_exceeded"
    assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}


@shows("provider_pool.max_queue")
@pytest.mark.req("REF-3", "POOL-5", "CFG-7")
async def test_the_queue_bound_holds_for_the_next_request(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    async with busy(edge, upstream, "bound"):
        waiting = asyncio.create_task(ask(edge, chat("one", prompt("bound-waits"))))
        await edge.until(lambda status: status["queue"]["pending"] == 1)
        lower = copy.deepcopy(config)
        lower["provider_pool"]["max_queue"] = 1
        result = await edge.apply_alone(lower, "provider_pool.max_queue")
        assert await code_of(edge, chat("one", prompt("bound-late"))) == "queue_full"
        assert (await edge.status())["queue"]["max_queue"] == 1
        assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}
    assert (await waiting)[0] == 200


@shows("provider_pool.queue_timeout_ms")
@pytest.mark.req("REF-3", "POOL-7", "CFG-7")
async def test_the_queue_timeout_holds_for_those_that_wait_already(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    async with busy(edge, upstream, "timeout"):
        waiting = asyncio.create_task(code_of(edge, chat("one", prompt("timeout-waits"))))
        await edge.until(lambda status: status["queue"]["pending"] == 1)
        shorter = copy.deepcopy(config)
        shorter["provider_pool"]["queue_timeout_ms"] = 1
        await edge.apply_alone(shorter, "provider_pool.queue_timeout_ms")
        assert await waiting == "queue_timeout"


@pytest.mark.req("REF-3", "CFG-8")
async def test_legacy_queue_values_act_through_the_root_and_only_without_it(
    edge: LiveEdge, config: Config
) -> None:
    beside = with_provider(config, "a-one", max_queue=9, queue_timeout_ms=1000)
    assert (await edge.apply(beside))["changes"] == []
    legacy = copy.deepcopy(config)
    del legacy["provider_pool"]
    for provider in (one for node in legacy["nodes"] for one in node["providers"]):
        provider |= {"max_queue": 9, "queue_timeout_ms": 60_000}
    await edge.apply_alone(legacy, "provider_pool.max_queue")
    assert (await edge.status())["queue"]["max_queue"] == 9


# --- models -----------------------------------------------------------------------------------


@shows("models[]")
@pytest.mark.req("REF-3", "OAI-1")
async def test_a_model_is_there_as_soon_as_it_is_added_and_gone_when_it_is_removed(
    edge: LiveEdge, config: Config
) -> None:
    async def listed() -> set[str]:
        headers = {"Authorization": f"Bearer {CALLER_TOKEN}"}
        async with edge.http.get(f"{edge.site.openai_url}/models", headers=headers) as answer:
            return {model["id"] for model in (await answer.json())["data"]}

    more = copy.deepcopy(config)
    more["models"].append({"id": "added", "providers": {"a-one": "small-two"}})
    assert "added" not in await listed()
    assert await code_of(edge, chat("added", prompt("added"))) == "model_not_found"
    result = await edge.apply_alone(more, "models[]")
    assert result["changed_models"] == ["added"]
    assert "added" in await listed()
    assert await code_of(edge, chat("added", prompt("added"))) == "ok"
    await edge.apply_alone(config, "models[]")
    assert "added" not in await listed()
    assert await code_of(edge, chat("added", prompt("added"))) == "model_not_found"


@shows("models[].display_name")
@pytest.mark.req("REF-3", "OAI-1")
async def test_the_display_name_shows_where_models_are_listed(
    edge: LiveEdge, config: Config
) -> None:
    await edge.apply_alone(
        with_model(config, "pair", display_name="A pair"), "models[].display_name"
    )
    headers = {"x-api-key": CALLER_TOKEN, "anthropic-version": "2023-06-01"}
    async with edge.http.get(f"{edge.site.openai_url}/models/pair", headers=headers) as answer:
        assert (await answer.json())["display_name"] == "A pair"
    shown = next(m for m in (await edge.status())["models"] if m["model_id"] == "pair")
    assert shown["display_name"] == "A pair"


@shows("models[].providers[]")
@pytest.mark.req("REF-3", "PROF-6")
async def test_the_mapping_decides_who_serves_and_under_which_name(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    renamed = with_model(config, "one", providers={"a-one": "small-two"})
    await edge.apply_alone(renamed, "models[].providers[]")
    assert await code_of(edge, chat("one", prompt("mapped"))) == "ok"
    [opened] = await upstream.seen("mapped", "opened")
    assert opened["model"] == "small-two"

    moved = with_model(renamed, "one", providers={"b-pair": "small-b"})
    await edge.apply_alone(moved, "models[].providers[]")
    assert await code_of(edge, chat("one", prompt("moved"))) == "ok"
    [opened] = await upstream.seen("moved", "opened")
    assert opened["model"] == "small-b"


@shows("models[].context_window_tokens")
@pytest.mark.req("REF-3", "POOL-4", "CFG-14")
async def test_the_context_window_refuses_at_once_and_is_checked_against_the_provider(
    edge: LiveEdge, config: Config
) -> None:
    body = chat("one", prompt("window", LONG_TEXT))
    assert await code_of(edge, body) == "ok"
    await edge.apply_alone(
        with_model(config, "one", context_window_tokens=16),
        "models[].context_window_tokens",
    )
    assert await code_of(edge, body) == "context_length_exceeded"


@shows("models[].default_max_tokens", "models[].min_max_tokens")
@pytest.mark.req("REF-3", "OAI-2")
async def test_the_generation_policy_is_what_the_upstream_sees(
    edge: LiveEdge, config: Config
) -> None:
    async def answered(**limits: int) -> int:
        status, answer = await ask(edge, chat("one", prompt("policy"), **limits))
        assert status == 200
        return int(answer["usage"]["completion_tokens"])

    assert (await answered(), await answered(max_tokens=2)) == (24, 2)
    with_default = with_model(config, "one", default_max_tokens=5)
    await edge.apply_alone(with_default, "models[].default_max_tokens")
    assert (await answered(), await answered(max_tokens=2)) == (5, 2)
    with_floor = with_model(with_default, "one", min_max_tokens=3)
    await edge.apply_alone(with_floor, "models[].min_max_tokens")
    assert (await answered(), await answered(max_tokens=2)) == (5, 3)


@shows("models[].default_thinking_token_budget")
@pytest.mark.req("REF-3", "OAI-2")
async def test_the_thinking_budget_is_what_the_upstream_sees(
    edge: LiveEdge, config: Config, claude_port: int
) -> None:
    seen: list[Config] = []

    async def messages(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-small",
                "content": [{"type": "text", "text": "yes"}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )

    app = web.Application()
    app.router.add_post("/v1/messages", messages)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", claude_port).start()
        body = chat("claude", prompt("thinking"), max_tokens=4096)
        assert (await ask(edge, body, "messages"))[0] == 200
        budget = with_model(config, "claude", default_thinking_token_budget=2048)
        await edge.apply_alone(budget, "models[].default_thinking_token_budget")
        assert (await ask(edge, body, "messages"))[0] == 200
    finally:
        await runner.cleanup()
    assert [one.get("thinking") for one in seen] == [
        None,
        {"type": "enabled", "budget_tokens": 2048},
    ]


@shows("models[].usage_attribution")
@pytest.mark.req("REF-3", "POOL-10", "CFG-15")
async def test_the_attribution_is_that_of_the_next_usage_record(
    edge: LiveEdge, config: Config
) -> None:
    async def attributed() -> Config:
        assert await code_of(edge, chat("one", prompt("attributed"))) == "ok"
        found: Config = (await edge.admin("/runs?limit=1"))["runs"][0]["run"]["attribution"]
        return found

    assert await attributed() == {"kind": "provider", "id": "a-one"}
    opted = with_model(config, "one", usage_attribution="model_group")
    await edge.apply_alone(opted, "models[].usage_attribution")
    assert await attributed() == {"kind": "model_group", "id": "one"}


@shows("models[].chars_per_token")
@pytest.mark.req("REF-3", "POOL-4", "CFG-15")
async def test_the_models_own_ratio_corrects_the_next_estimate(
    edge: LiveEdge, config: Config
) -> None:
    body = chat("one", prompt("ratio", LONG_TEXT))
    base = {**config, "long_context_threshold_tokens": 1500}
    await edge.apply(base)
    assert await code_of(edge, body) == "ok"
    await edge.apply_alone(with_model(base, "one", chars_per_token=1.0), "models[].chars_per_token")
    assert await code_of(edge, body) == "context_length_exceeded"


# --- nodes and providers ----------------------------------------------------------------------


@shows("nodes[].runtime.concurrency")
@pytest.mark.req("REF-3", "REF-8", "CFG-22")
async def test_the_legacy_concurrency_reaches_status_and_its_own_node(
    edge: LiveEdge, config: Config
) -> None:
    more = copy.deepcopy(config)
    more["nodes"][0]["runtime"] = {"concurrency": 5}
    result = await edge.apply_alone(more, "nodes[].runtime.concurrency")
    assert outcomes(result) == {"a": "acknowledged", "b": "unchanged"}
    node = await edge.node("a")
    assert node["concurrency"] == 5
    assert set(node["generation"].values()) == {result["generation"]["after"]}


@shows("nodes[].providers[].capacity")
@pytest.mark.req("REF-3", "REF-8", "POOL-7")
async def test_the_capacity_admits_the_next_request_and_reaches_its_own_node(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    async with busy(edge, upstream, "capacity"):
        waiting = asyncio.create_task(ask(edge, chat("one", prompt("capacity-waits"))))
        await edge.until(lambda status: status["queue"]["pending"] == 1)
        more = with_provider(config, "a-one", capacity=2)
        result = await edge.apply_alone(more, "nodes[].providers[].capacity")
        assert outcomes(result) == {"a": "acknowledged", "b": "unchanged"}
        assert result["changed_providers"] == ["a-one"]
        # The node itself admits no more than it was told: it was told.
        assert (await waiting)[0] == 200


@shows("nodes[].providers[].long_context_capacity")
@pytest.mark.req("REF-3", "REF-8", "CFG-14", "POOL-4")
async def test_the_long_capacity_admits_the_next_long_request(
    edge: LiveEdge, config: Config
) -> None:
    body = chat("one", prompt("long", LONG_TEXT))
    base = {**config, "long_context_threshold_tokens": 50}
    await edge.apply(base)
    assert await code_of(edge, body) == "context_length_exceeded"
    result = await edge.apply_alone(
        with_provider(base, "a-one", long_context_capacity=1),
        "nodes[].providers[].long_context_capacity",
    )
    assert outcomes(result) == {"a": "acknowledged", "b": "unchanged"}
    assert await code_of(edge, body) == "ok"


@shows("nodes[].providers[].total_context_tokens", "models[].context_window_tokens")
@pytest.mark.req("REF-3", "CFG-14")
async def test_the_total_context_decides_which_candidate_is_valid(
    edge: LiveEdge, config: Config
) -> None:
    def candidate(total: int, window: int) -> Config:
        made = with_provider(config, "a-one", long_context_capacity=2, total_context_tokens=total)
        return with_model(made, "one", context_window_tokens=window)

    await edge.apply(candidate(2000, 1000))
    write(edge.site, candidate(2000, 1001))
    http_status, result = await edge.refresh()
    assert (http_status, result["status"]) == (422, "rejected")
    assert result["errors"][0]["path"] == "models[one].providers[a-one]"
    result = await edge.apply_alone(
        candidate(2002, 1000), "nodes[].providers[].total_context_tokens"
    )
    # It is no runtime counter, and no node is told of it.
    assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}
    await edge.apply_alone(candidate(2002, 1001), "models[].context_window_tokens")


@shows("nodes[].providers[].priority")
@pytest.mark.req("REF-3", "REF-8", "POOL-2")
async def test_the_priority_decides_where_the_next_request_goes(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    for preferred, other in (("a", "b"), ("b", "a")):
        await edge.apply(config)
        result = await edge.apply_alone(
            with_provider(config, f"{other}-pair", priority=9),
            "nodes[].providers[].priority",
        )
        assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}
        assert await code_of(edge, chat("pair", prompt(f"row-{preferred}"))) == "ok"
        [opened] = await upstream.seen(f"row-{preferred}", "opened")
        assert opened["model"] == f"small-{preferred}"


@shows("nodes[].providers[].enabled")
@pytest.mark.req("REF-3", "REF-8", "POOL-7", "POOL-8")
async def test_a_disabled_provider_takes_no_more_runs_and_its_run_goes_on(
    edge: LiveEdge, upstream: Upstream, config: Config
) -> None:
    async with busy(edge, upstream, "disabled"):
        result = await edge.apply_alone(
            with_provider(config, "a-one", enabled=False), "nodes[].providers[].enabled"
        )
        assert outcomes(result) == {"a": "unchanged", "b": "unchanged"}
        provider = await edge.provider("a-one")
        assert (provider["status"], provider["health"]) == ("disabled", "disabled")
        assert (provider["capacity"], provider["in_flight"]) == (0, 1)
        assert await code_of(edge, chat("one", prompt("late"))) == "no_provider"
    await edge.until_idle()
    await edge.apply_alone(config, "nodes[].providers[].enabled")
    assert await code_of(edge, chat("one", prompt("late"))) == "ok"


@pytest.mark.req("REF-6")
def test_the_effect_of_every_live_path_is_shown_here() -> None:
    table = {row.pattern for row in rows(effective_shape()) if row.reload is Reload.LIVE}
    assert table == set().union(*DECLARED.values())
