"""Nodes die in the middle of real answers, with the stream evidence gate on and off.

As many streams as `IOP_GATE_STREAMS` says (6 by default) are cut off by kills at random moments.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from e2e_harness import CALLER_TOKEN, PROMPT_CANARY, Config, running_site, start_nodes, write
from ingress_rig import adapter, openai_client, principal, provider, upstream_loop

from demo.processes import until
from demo.site import Site

pytestmark = pytest.mark.e2e

STREAMS = int(os.environ.get("IOP_GATE_STREAMS", "6"))
AT_ONCE = 6
TOKENS = 60
WINDOW = 2048


class Exchange:
    """One request that reached the model server, and what was said to it."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.said = ""
        self.is_whole = False

    @property
    def question(self) -> str:
        text: str = self.body["messages"][0]["content"]
        return text

    @property
    def continues(self) -> str | None:
        """What the caller had read, as the request tells it; None for one that tells nothing."""
        said = [one["content"] for one in self.body["messages"] if one["role"] == "assistant"]
        return said[-1] if said else None


class Recording:
    """Stands before the model server and keeps every exchange, in order."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.exchanges: list[Exchange] = []
        self.url = ""

    async def start(self) -> asyncio.Server:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._serve)
        runner = web.AppRunner(app, handle_signals=False)
        await runner.setup()
        assert runner.server is not None
        server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(await request.json())
        self.exchanges.append(exchange)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self._target}/v1/chat/completions", json=exchange.body) as upstream,
        ):
            await answer.prepare(request)
            async for line in upstream.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        exchange.said += choice["delta"].get("content") or ""
                exchange.is_whole |= line.startswith(b"data: [DONE]")
                await answer.write(line)
        return answer

    def of(self, question: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.question == question]


def config_of(site: Site, url: str, served: str, *, gate: dict[str, Any]) -> Config:
    config: Config = {"edge": {"id": "gate"}, **site.listeners()}
    config["usage"] = {"file": str(site.group.folder / "usage.jsonl")}
    config["openai"] |= {
        "principal_tokens": [principal(CALLER_TOKEN, "tests")],
        "stream_evidence_gate": gate,
    }
    config["models"] = [
        {
            "id": "real",
            "providers": {"p-a": served, "p-b": served},
            "context_window_tokens": WINDOW,
        }
    ]
    config["nodes"] = [
        {
            "id": node,
            "token": {"sha256": site.token_sha256(node)},
            "adapters": [adapter("llama", url)],
            "providers": [provider(f"p-{node}", "llama", served, capacity=16)],
        }
        for node in ("a", "b")
    ]
    return config


@asynccontextmanager
async def gated_site(
    folder: Path, real_model: dict[str, Any] | None, gate: dict[str, Any]
) -> AsyncIterator[tuple[Site, Recording]]:
    if real_model is None:
        pytest.skip("the model package is not installed")
    killed = {"node-a": {0, -9}, "node-b": {0, -9}}
    with upstream_loop() as start, running_site(folder, killed) as site:
        recording = Recording(real_model["listening"])
        start(recording.start())
        write(site, config_of(site, recording.url, real_model["model"], gate=gate))
        site.start_edge()
        start_nodes(site, "a", "b")
        yield site, recording


async def ask(client: openai.AsyncOpenAI, question: str, read: list[str]) -> None:
    """Read one answer to its end. Raises what the official client raises."""
    async with await client.chat.completions.create(
        model="real",
        messages=[{"role": "user", "content": question}],
        stream=True,
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"ignore_eos": True},
    ) as stream:
        async for chunk in stream:
            if chunk.choices:
                read.append(chunk.choices[0].delta.content or "")


async def kill_one_amid(site: Site, read: list[list[str]], node: str) -> None:
    """Kill a node at a random moment of the answers that are running."""
    least = random.randint(0, AT_ONCE * TOKENS // 3)
    while sum(map(len, read)) < least:
        await asyncio.sleep(0.002)  # offered for what the callers have read
    await asyncio.to_thread(site.nodes[node].kill)


async def records_of(site: Site, count: int) -> list[dict[str, Any]]:
    """All usage records, once there are so many; a run's is written a little after its end."""
    file = site.group.folder / "usage.jsonl"
    lines: list[str] = []

    def has_all() -> bool:
        """every run has its record in the usage file"""
        lines[:] = file.read_text().split("\n")[:-1] if file.exists() else []
        return len(lines) >= count

    await asyncio.to_thread(until, has_all)
    return [json.loads(line) for line in lines]


async def cut_streams(
    site: Site, client: openai.AsyncOpenAI
) -> dict[str, tuple[str, BaseException | None]]:
    """What each caller read, and how its stream ended, until enough of them were cut."""
    ended: dict[str, tuple[str, BaseException | None]] = {}
    cut = rounds = 0
    while cut < STREAMS:
        questions = [f"Tell a story about {PROMPT_CANARY} {rounds}.{n}." for n in range(AT_ONCE)]
        read: list[list[str]] = [[] for _ in questions]
        node = "ab"[rounds % 2]
        *outcomes, _ = await asyncio.gather(
            *(ask(client, question, into) for question, into in zip(questions, read, strict=True)),
            kill_one_amid(site, read, node),
            return_exceptions=True,
        )
        for question, into, outcome in zip(questions, read, outcomes, strict=True):
            ended[question] = ("".join(into), outcome)
        await asyncio.to_thread(start_nodes, site, node)
        await asyncio.to_thread(site.wait_idle)
        records = await records_of(site, len(ended))
        cut = sum(one["attempts"] > 1 or one["end"].startswith("error") for one in records)
        rounds += 1
        assert rounds < STREAMS + 8, f"only {cut} of {rounds * AT_ONCE} streams were cut"
    return ended


@pytest.mark.req("GATE-5", "GATE-7", "GATE-2")
async def test_with_the_gate_on_every_stream_ends_and_says_what_was_read_and_the_rest(
    tmp_path: Path, real_model: dict[str, Any] | None
) -> None:
    gate = {"enabled": True, "filters": [{"filter": "repeat_guard", "enabled": False}]}
    async with gated_site(tmp_path, real_model, gate) as (site, recording):
        async with openai_client(site.openai_url.removesuffix("/v1")) as client:
            ended = await cut_streams(site, client)
        repaired = 0
        for question, (text, outcome) in ended.items():
            assert outcome is None, f"{question}: {outcome!r}"
            exchanges = recording.of(question)
            last = exchanges[-1]
            assert last.is_whole
            prefix = last.continues or ""
            assert text.startswith(prefix)
            # Of what the second attempt said, a beginning may be missing: what was told already.
            rest = text[len(prefix) :]
            assert last.said.endswith(rest)
            assert prefix.endswith(last.said[: len(last.said) - len(rest)])
            if prefix:
                assert exchanges[0].said.startswith(prefix)
            repaired += len(exchanges) > 1
        records = await records_of(site, len(ended))
        assert sum(one["attempts"] > 1 for one in records) >= STREAMS
        assert len(records) == len(ended)
        assert {one["end"] for one in records} == {"completed"}
        assert sum(one["repaired"] for one in records) == repaired
        # Where the upstream had been sent nothing yet, another provider is no repair (POOL-13).
        assert all(one["attempts"] == 2 or not one["repaired"] for one in records)


@pytest.mark.req("GATE-1", "POOL-13", "OAI-7")
async def test_with_the_gate_off_every_stream_that_is_cut_gets_an_error_event(
    tmp_path: Path, real_model: dict[str, Any] | None
) -> None:
    async with gated_site(tmp_path, real_model, {"enabled": False}) as (site, recording):
        async with openai_client(site.openai_url.removesuffix("/v1")) as client:
            ended = await cut_streams(site, client)
        failed = {question for question, (_, outcome) in ended.items() if outcome is not None}
        assert all(isinstance(ended[question][1], openai.APIError) for question in failed)
        for question, (text, _) in ended.items():
            answers = recording.of(question)
            assert question in failed or answers[-1].is_whole
            assert any(exchange.said.startswith(text) for exchange in answers)
        records = await records_of(site, len(ended))
        assert not any(one["repaired"] for one in records)
        assert sum(one["end"] == "error:node_lost" for one in records) == len(failed)
