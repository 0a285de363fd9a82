"""What callers of real processes read under the gate, when nodes die and models go astray.

The upstreams tell what each test plans; nodes, edge and the official clients are the real ones.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from e2e_harness import (
    CALLER_TOKEN,
    PROMPT_CANARY,
    Config,
    Edge,
    canaries,
    chat,
    leaks,
    running_site,
    start_nodes,
    with_provider,
    write,
)
from gate_rig import PlannedUpstream, Step, call, finish, says, thought
from ingress_rig import adapter, anthropic_client, openai_client, principal, provider, upstream_loop

from demo.site import Site

pytestmark = pytest.mark.e2e

LOOP = "I will check the door, and then I will go home again. "
TOLD = "The juniper stands in the quarry, and nobody has counted its berries yet."
END = [finish("stop")]
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


class World:
    """The site, and what its upstreams are asked."""

    def __init__(self, site: Site, upstream: PlannedUpstream, config: Config) -> None:
        self.site = site
        self.upstream = upstream
        self.config = config
        self.tags = 0

    @property
    def root_url(self) -> str:
        return self.site.openai_url.removesuffix("/v1")

    def plan(self, *attempts: list[Any]) -> str:
        """A tag under which these attempts are told."""
        self.tags += 1
        return self.upstream.plan(f"t{self.tags}", *attempts)

    def question(self, tag: str) -> str:
        return f"{tag} {PROMPT_CANARY}?"

    async def kill_holder(self, tag: str, attempt: int = 0) -> str:
        """Kill the node whose upstream holds its answer; return the node's id."""
        asked = await self.upstream.until_held(tag, attempt)
        node = asked.model[-1]
        await asyncio.to_thread(self.site.nodes[node].kill)
        return node

    def revive(self) -> None:
        """Start the nodes that were killed. A process ends with the thread that started it, so
        this is for the main one."""
        dead = [node for node, process in self.site.nodes.items() if process.exit_status]
        start_nodes(self.site, *dead)

    async def record(self, request_id: str) -> dict[str, Any]:
        file = self.site.group.folder / "usage.jsonl"
        async with asyncio.timeout(20):
            while True:
                for line in file.read_text().split("\n")[:-1] if file.exists() else []:
                    if (record := json.loads(line))["request_id"] == request_id:
                        found: dict[str, Any] = record
                        return found
                await asyncio.sleep(0.02)  # offered for what a file shows


def config_of(site: Site, url: str) -> Config:
    config: Config = {"edge": {"id": "gate"}, **site.listeners()}
    config["usage"] = {"file": str(site.group.folder / "usage.jsonl")}
    config["logging"] = {"level": "debug"}
    config["openai"] |= {
        "principal_tokens": [principal(CALLER_TOKEN, "tests")],
        "model_routes": [
            {"id": "r1", "model": "routed", "adapter": "up", "target": "chat-b", "node": "b"}
        ],
        "stream_evidence_gate": {
            "enabled": True,
            "filters": [
                {"filter": "repeat_guard"},
                {"filter": "schema_gate"},
                {"filter": "provider_error"},
            ],
        },
    }
    config["protocol_profiles"] = {
        "all_openai": {
            "base": "llama_cpp",
            "operations": {"responses": "/v1/responses"},
            "capabilities": ["models", "chat", "responses", "streaming", "tool_calling"],
        }
    }
    window = {"context_window_tokens": 8192}
    config["models"] = [
        {"id": "pair", "providers": {"chat-a": "chat-a", "chat-b": "chat-b"}, **window},
        {"id": "claude", "providers": {"claude-a": "claude-a", "claude-b": "claude-b"}, **window},
        {"id": "ollama-first", "providers": {"ollama-a": "ollama-a", "chat-b": "chat-b"}, **window},
        {"id": "ollama-last", "providers": {"chat-a": "chat-a", "ollama-b": "ollama-b"}, **window},
        {"id": "one", "providers": {"one-b": "one-b"}, **window},
        {"id": "windowless", "providers": {"chat-a": "chat-a", "chat-b": "chat-b"}},
    ]
    config["nodes"] = [
        {
            "id": node,
            "token": {"sha256": site.token_sha256(node)},
            "adapters": [
                adapter("up", url),
                adapter("claude", url, "anthropic"),
                adapter("ollama", url, "ollama"),
            ],
            "providers": [
                provider(f"chat-{node}", "up", f"chat-{node}", priority=5, profile="all_openai"),
                provider(f"claude-{node}", "claude", f"claude-{node}", kind="anthropic",
                         category="api"),
                provider(f"ollama-{node}", "ollama", f"ollama-{node}", kind="ollama",
                         priority={"a": 0, "b": 10}[node]),
            ],
        }
        for node in ("a", "b")
    ]  # fmt: skip
    config["nodes"][1]["providers"].append(
        provider("one-b", "up", "one-b", capacity=1, profile="all_openai")
    )
    return config


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    killed = {"node-a": {0, -9}, "node-b": {0, -9}}
    folder = tmp_path_factory.mktemp("gate")
    with upstream_loop() as start, running_site(folder, killed) as site:
        upstream = PlannedUpstream()
        start(upstream.start())
        config = config_of(site, upstream.url)
        write(site, config)
        site.start_edge()
        start_nodes(site, "a", "b")
        yield World(site, upstream, config)


@pytest.fixture
async def edge(world: World) -> AsyncIterator[Edge]:
    """The edge, with both nodes there and no provider cooling down after a cut."""
    world.revive()
    async with aiohttp.ClientSession() as http:
        edge = Edge(world.site, http)
        await edge.until(lambda status: all(map(is_candidate, status["providers"])))
        yield edge
        await edge.until_idle()


def is_candidate(provider: dict[str, Any]) -> bool:
    return provider["health"] not in ("unavailable", "degraded")


class Read:
    """What a caller has read of one stream, up to now."""

    def __init__(self) -> None:
        self.text = self.reasoning = self.finish = self.arguments = ""
        self.request_id = ""

    async def until(self, text: str = "", reasoning: str = "") -> None:
        async with asyncio.timeout(20):
            while self.text != text or self.reasoning != reasoning:
                await asyncio.sleep(0.002)  # offered for what a caller has read


async def read_chat(
    client: openai.AsyncOpenAI, model: str, said: str, read: Read, **more: Any
) -> None:
    async with await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": said}], stream=True, **more
    ) as stream:
        read.request_id = stream.response.headers["x-request-id"]
        async for chunk in stream:
            for choice in chunk.choices:
                read.text += choice.delta.content or ""
                read.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for one in choice.delta.tool_calls or ():
                    read.arguments += (one.function and one.function.arguments) or ""
                read.finish += choice.finish_reason or ""


async def read_response(
    client: openai.AsyncOpenAI, model: str, said: str, read: Read, **more: Any
) -> None:
    async with client.responses.stream(model=model, input=said, **more) as stream:
        read.request_id = stream._response.headers["x-request-id"]
        async for event in stream:
            if event.type == "response.output_text.delta":
                read.text += event.delta
            elif event.type in (
                "response.reasoning_text.delta",
                "response.reasoning_summary_text.delta",
            ):
                read.reasoning += event.delta
            elif event.type == "response.function_call_arguments.delta":
                read.arguments += event.delta
        final = await stream.get_final_response()
    assert final.output_text == read.text
    read.finish = final.status or ""


async def read_message(
    client: anthropic.AsyncAnthropic, model: str, said: str, read: Read, **more: Any
) -> None:
    async with client.messages.stream(
        model=model, messages=[{"role": "user", "content": said}], max_tokens=500, **more
    ) as stream:
        read.request_id = stream.response.headers["x-request-id"]
        async for event in stream:
            if event.type == "text":
                read.text += event.text
            elif event.type == "thinking":
                read.reasoning += event.thinking
            elif event.type == "input_json":
                read.arguments += event.partial_json
        final = await stream.get_final_message()
    assert "".join(block.text for block in final.content if block.type == "text") == read.text
    read.finish = final.stop_reason or ""


class Callers:
    """The official clients, by the surface that is called."""

    def __init__(self, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic):
        self._openai = of_openai
        self._anthropic = of_anthropic

    async def read(self, surface: str, model: str, said: str, read: Read, **more: Any) -> None:
        match surface:
            case "chat":
                await read_chat(self._openai, model, said, read, **more)
            case "responses":
                await read_response(self._openai, model, said, read, **more)
            case _:
                await read_message(self._anthropic, model, said, read, **more)


@pytest.fixture
async def callers(world: World) -> AsyncIterator[Callers]:
    async with openai_client(world.root_url) as one, anthropic_client(world.root_url) as other:
        yield Callers(one, other)


STAGES: dict[str, tuple[str, str, list[Step]]] = {
    "before a word": ("", "", []),
    "amid the text": (TOLD[:31], "", []),
    "amid the reasoning": ("", "Let me think", [thought("Let me think")]),
    "amid a call": (TOLD[:10], "", [call(0, '{"ci', "c1", "weather")]),
}


WAYS = [
    ("chat", "pair"), ("chat", "ollama-first"), ("chat", "ollama-last"),
    ("responses", "pair"), ("responses", "ollama-first"), ("responses", "ollama-last"),
    ("messages", "claude"), ("messages", "pair"), ("messages", "ollama-last"),
]  # fmt: skip


@pytest.mark.req("GATE-7", "GATE-5", "GATE-1", "POOL-9")
@pytest.mark.parametrize(("surface", "model"), WAYS)
async def test_a_cut_is_not_noticed_by_the_official_clients_whichever_way_it_goes_on(
    world: World, edge: Edge, callers: Callers, surface: str, model: str
) -> None:
    stage = ["before a word", "amid the text", "amid the reasoning"][
        WAYS.index((surface, model)) % 3
    ]
    text, reasoning, more = STAGES[stage]
    tag = world.plan([*says(text), *more, "hold", "cut"], [*says(TOLD[len(text) :]), *END])
    read = Read()
    asking = asyncio.ensure_future(callers.read(surface, model, world.question(tag), read))
    await read.until(text, reasoning)
    (await world.upstream.until_held(tag)).release()
    await asking
    assert (read.text, read.reasoning) == (TOLD, reasoning)
    assert {one.model[-1] for one in world.upstream.asked_for(tag)} == {"a", "b"}
    record = await world.record(read.request_id)
    assert (record["attempts"], record["repaired"], record["end"]) == (2, True, "completed")


@pytest.mark.req("GATE-7", "GATE-5", "NODE-6")
@pytest.mark.parametrize(
    ("surface", "model", "stage"),
    [
        ("responses", "pair", "amid the reasoning"),
        ("messages", "claude", "amid the text"),
        ("messages", "ollama-last", "amid a call"),
    ],
)
async def test_a_killed_node_is_not_noticed_by_the_official_clients(
    world: World, edge: Edge, callers: Callers, surface: str, model: str, stage: str
) -> None:
    text, reasoning, more = STAGES[stage]
    tag = world.plan([*says(text), *more, "hold"], [*says(TOLD[len(text) :]), *END])
    read = Read()
    asking = asyncio.ensure_future(callers.read(surface, model, world.question(tag), read))
    await read.until(text, reasoning)
    await world.kill_holder(tag)
    await asking
    assert read.text == TOLD
    record = await world.record(read.request_id)
    assert (record["attempts"], record["repaired"], record["end"]) == (2, True, "completed")


@pytest.mark.req("GATE-7", "GATE-4", "GATE-2")
@pytest.mark.parametrize(
    ("surface", "model"), [("chat", "pair"), ("responses", "pair"), ("messages", "claude")]
)
async def test_a_loop_is_set_right_and_one_that_comes_back_ends_with_the_budget(
    world: World, edge: Edge, callers: Callers, surface: str, model: str
) -> None:
    looping = says("So. " + LOOP * 20)
    tag = world.plan([*looping, *END], [*says("At home it was quiet."), *END])
    read = Read()
    await callers.read(surface, model, world.question(tag), read)
    assert read.text.count("check the door") == 1
    assert read.text.endswith("At home it was quiet.")
    told = json.dumps(world.upstream.asked_for(tag)[1].body)
    assert told.count("check the door") == 1

    thinking = [thought(LOOP) for _ in range(20)]
    tag = world.plan([*thinking, *says(TOLD), *END], [*says(TOLD), *END])
    read = Read()
    await callers.read(surface, model, world.question(tag), read)
    assert read.reasoning.count("check the door") == 1
    assert read.text == TOLD

    tag = world.plan(*[[*looping, *END]] * 4)
    read = Read()
    with pytest.raises((openai.APIError, anthropic.APIError)):
        await callers.read(surface, model, world.question(tag), read)
    assert read.text.count("check the door") == 1
    bodies = [one.body for one in world.upstream.asked_for(tag)]
    assert [body.get("temperature") for body in bodies] == [None, 0.2, 0.4, 0.6]
    assert (await world.record(read.request_id))["end"] == "error:upstream_invalid"


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize(
    ("surface", "model"), [("chat", "pair"), ("responses", "pair"), ("messages", "claude")]
)
async def test_a_bad_call_beside_a_good_one_and_text_is_asked_for_again(
    world: World, edge: Edge, callers: Callers, surface: str, model: str
) -> None:
    good = call(0, '{"city": "Oslo"}', "c1", "weather")
    bad = call(1, '{"town": "Rome"}', "c2", "weather")
    mended = call(1, '{"city": "Rome"}', "c4", "weather")
    done = finish("tool_calls")
    tag = world.plan([*says("Look. "), good, bad, done], [good, mended, done])
    schema = {"chat": "parameters", "responses": "parameters", "messages": "input_schema"}[surface]
    tool: dict[str, Any] = {"name": "weather", "description": "", schema: WEATHER_SCHEMA}
    if surface == "chat":
        tool = {"type": "function", "function": tool}
    elif surface == "responses":
        tool |= {"type": "function", "strict": False}
    read = Read()
    await callers.read(surface, model, world.question(tag), read, tools=[tool])
    assert read.text == "Look. "
    assert read.arguments == '{"city": "Oslo"}{"city": "Rome"}'
    assert (await world.record(read.request_id))["repaired"]


@pytest.mark.req("REF-11", "GATE-5", "REF-4")
async def test_a_refresh_amid_a_run_changes_the_next_run_and_never_this_one(
    world: World, edge: Edge, callers: Callers
) -> None:
    def with_window(tokens: int | None) -> Config:
        changed = copy.deepcopy(world.config)
        changed["models"][0]["context_window_tokens"] = tokens
        if tokens is None:
            del changed["models"][0]["context_window_tokens"]
        return changed

    async def cut_in_two(before: Config) -> tuple[Read, asyncio.Task[None]]:
        tag = world.plan([*says(TOLD[:31]), "hold", "cut"], [*says(TOLD[31:]), *END])
        read = Read()
        asking = asyncio.ensure_future(callers.read("chat", "pair", world.question(tag), read))
        await read.until(TOLD[:31])
        await edge.apply(before)
        (await world.upstream.until_held(tag)).release()
        return read, asking

    try:
        read, asking = await cut_in_two(with_window(None))
        await asking
        assert read.text == TOLD
        # This one began without a window.
        read, asking = await cut_in_two(with_window(8192))
        with pytest.raises(openai.APIError):
            await asking
        assert read.text == TOLD[:31]
        assert (await world.record(read.request_id))["end"] == "error:upstream_closed"
        other = with_window(8192)
        other["openai"]["stream_evidence_gate"]["enabled"] = False
        write(world.site, other)
        _, result = await edge.refresh()
        assert result["status"] == "restart_required"
    finally:
        await edge.apply(world.config)


@pytest.mark.req("POOL-7", "POOL-8", "GATE-5", "REF-11")
async def test_a_repair_meets_the_providers_of_its_moment(
    world: World, edge: Edge, callers: Callers
) -> None:
    for change, outcome in (("disabled", "elsewhere"), ("removed", "refused")):
        tag = world.plan([*says(TOLD[:31]), "hold", "cut"], [*says(TOLD[31:]), *END])
        read = Read()
        asking = asyncio.ensure_future(callers.read("chat", "pair", world.question(tag), read))
        await read.until(TOLD[:31])
        held = await world.upstream.until_held(tag)
        changed = copy.deepcopy(world.config)
        if change == "disabled":
            other = f"chat-{'b' if held.model == 'chat-a' else 'a'}"
            changed = with_provider(changed, other, enabled=False)
        else:
            del changed["models"][0]
        try:
            await edge.apply(changed)
            held.release()
            if outcome == "elsewhere":
                # The only one that is left is the one that was cut.
                await asking
                assert read.text == TOLD
                assert [one.model for one in world.upstream.asked_for(tag)] == [held.model] * 2
            else:
                with pytest.raises(openai.APIError):
                    await asking
                assert read.text == TOLD[:31]
                record = await world.record(read.request_id)
                assert record["end"] == "error:upstream_closed"
        finally:
            await edge.apply(world.config)


@pytest.mark.req("NODE-7", "POOL-6", "GATE-3")
async def test_a_caller_who_leaves_at_any_moment_leaves_nothing_behind(
    world: World, edge: Edge
) -> None:
    suspicious = says("A verse. " + LOOP + LOOP[:30])
    for attempt, attempts in (
        (0, [[*suspicious, "hold"]]),
        (0, [[call(0, '{"ci', "c1", "weather"), "hold"]]),
        (1, [[*says(TOLD[:31]), "cut"], ["hold"]]),
        (1, [[*says(TOLD[:31]), "cut"], [*says(TOLD[31:40]), "hold"]]),
    ):
        tag = world.plan(*attempts)
        async with edge.call(chat("one", world.question(tag), stream=True)):
            held = await world.upstream.until_held(tag, attempt)
        await world.upstream.until_closed([held], 5)
        await edge.until_idle()
    # While the repair waits for the only slot.
    tag, other = world.plan([*says(TOLD[:31]), "hold", "cut"]), world.plan(["hold", *END])
    async with edge.call(chat("one", world.question(tag), stream=True)) as call_:
        await call_.until(b"e quar")
        async with edge.call(chat("one", world.question(other), stream=True)):
            await edge.until(lambda status: status["queue"]["pending"] == 1)
            (await world.upstream.until_held(tag)).release()
            await world.upstream.until_held(other)
            await edge.until(lambda status: status["queue"]["pending"] == 1)
            call_.hang_up()
            await edge.until(lambda status: status["queue"]["pending"] == 0)
    await edge.until_idle()


@pytest.mark.req("SEC-1", "GATE-4")
async def test_what_models_and_callers_said_stands_nowhere(
    world: World, edge: Edge, callers: Callers
) -> None:
    tag = world.plan([*says("So. " + LOOP * 20), *END], [*says(TOLD), *END])
    await callers.read("chat", "pair", world.question(tag), Read())
    shown = []
    for path in ("/status", "/config", "/runs?limit=100", "/refreshes"):
        async with edge.http.get(f"{edge.site.admin_url}{path}") as answer:
            shown.append(await answer.text())
    async with edge.http.get(f"http://127.0.0.1:{edge.site.ports.metrics}/metrics") as answer:
        shown.append(await answer.text())
    assert '"recoveries"' in shown[2]
    said = (*canaries(world.site), "check the door", "berries", "interrupted")
    assert [one for one in said for text in shown if one in text] == []
    assert leaks(world.site) == []
