"""An edge that ends, by order or by force, and comes back: principals, runs and records."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from e2e_harness import CALLER_TOKEN, PROMPT_CANARY, running_site
from ingress_rig import CANARIES, SECOND_TOKEN, Rig, openai_client, principal, write
from ingress_upstreams import COMPLETION
from openai import AuthenticationError

from iop import runtime_pb2
from tests.wire import runtime_pb2_grpc

pytestmark = pytest.mark.e2e

HOSTILE = "small\nforged line\x1b[31m\x9b31m\u202e"


@pytest.fixture
async def twin(ingress: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """A site of the test's own before the same upstreams, which logs for people."""
    killed = {"edge": {0, -9}}
    with running_site(tmp_path / "twin", expected=killed) as site:
        rig = Rig(site)
        rig.upstream = ingress.upstream
        rig.config = copy.deepcopy(ingress.config) | site.listeners()
        rig.config["openai"] |= {
            "principal_tokens": [
                principal(CALLER_TOKEN, "first"),
                principal(SECOND_TOKEN, "second"),
            ]
        }
        rig.config["usage"] = {"file": str(site.group.folder / "usage.jsonl")}
        rig.config["logging"] = {"level": "debug", "format": "console"}
        rig.config["nodes"][0]["token"] = {"sha256": site.token_sha256("a")}
        write(site, rig.config)
        await asyncio.to_thread(site.start_edge)
        site.start_node("a")
        await asyncio.to_thread(site.wait_connected, "a")
        yield rig
    written = [*site.group.folder.glob("*.log"), *site.group.folder.glob("*.jsonl")]
    texts = [file.read_text() for file in written]
    assert not [canary for canary in CANARIES for text in texts if canary in text]


def request(model: str, request_id: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT_CANARY}],
        "extra_headers": {"x-request-id": request_id},
    }


@pytest.mark.req("OAI-3", "CFG-17", "OPS-3", "SEC-1")
async def test_a_principal_that_is_gone_stays_gone_while_another_goes_on(twin: Rig) -> None:
    site, upstream, root = twin.site, twin.upstream, twin.root_url
    assert site.edge is not None
    async with (
        openai_client(root, CALLER_TOKEN) as first,
        openai_client(root, SECOND_TOKEN) as second,
    ):
        await first.chat.completions.create(**request("fine", "before"))
        await submit_hostile(twin)
        already = len(upstream.of("held"))
        running = asyncio.create_task(
            second.chat.completions.create(**request("one", "across-the-stop"))
        )
        [held] = (await upstream.until_asked(already + 1, "held"))[already:]

        twin.config["openai"]["principal_tokens"] = [principal(SECOND_TOKEN, "second")]
        write(site, twin.config)
        stopping = asyncio.create_task(asyncio.to_thread(site.edge.stop))
        await until_draining(twin)
        held.release()
        assert (await running).choices[0].message.content == COMPLETION
        assert await stopping == 0

        await restart(twin)
        with pytest.raises(AuthenticationError) as refused:
            await first.chat.completions.create(**request("fine", "gone"))
        assert refused.value.code == "invalid_api_key"
        await second.chat.completions.create(**request("fine", "goes-on"))

        # Removed stays removed: also where the process is not asked to stop.
        await twin.records("goes-on")
        site.kill_edge()
        await restart(twin)
        with pytest.raises(AuthenticationError):
            await first.chat.completions.create(**request("fine", "gone"))
        await second.chat.completions.create(**request("fine", "after-the-kill"))
    ends = await twin.records("before", "across-the-stop", "goes-on", "after-the-kill")
    assert [(record["end"], record["token_ref"]) for record in ends] == [
        ("completed", "first"),
        ("completed", "second"),
        ("completed", "second"),
        ("completed", "second"),
    ]
    log = (site.group.folder / "edge.log").read_text()
    assert "run_finished" in log
    assert all(line.isprintable() for line in log.splitlines())
    assert "forged" not in log


async def submit_hostile(rig: Rig) -> None:
    """A run of a model whose name would forge a line, over the surface that checks no header."""
    part = runtime_pb2.ContentPart(text=PROMPT_CANARY)
    submission = runtime_pb2.SubmitRunRequest(
        model=HOSTILE,
        request_id=HOSTILE,
        messages=[runtime_pb2.ChatMessage(role="user", parts=[part])],
    )
    metadata = (("authorization", f"Bearer {CALLER_TOKEN}"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.site.ports.grpc}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in runtime_pb2_grpc.RunIngressStub(channel).SubmitRun(
                submission, metadata=metadata
            ):
                pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def until_draining(rig: Rig) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(10):
        while True:
            async with http.get(f"{rig.site.admin_url}/readyz") as answer:
                if answer.status == 503:
                    return
            await asyncio.sleep(0.02)  # offered for what readiness shows


async def restart(rig: Rig) -> None:
    await asyncio.to_thread(rig.site.start_edge)
    await asyncio.to_thread(rig.site.wait_connected, "a")
