"""The small upstream must be trustworthy before anything is concluded from what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from demo.small_upstream import Plan, SmallUpstream, words_for


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    server = TestServer(SmallUpstream(Plan()).application())
    await server.start_server()
    yield server
    await server.close()


@pytest.fixture
async def http(server: TestServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(str(server.make_url("/"))) as session:
        yield session


def _request(prompt: str, **more: object) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": prompt}], **more}


async def _events(http: aiohttp.ClientSession, **query: str) -> list[dict[str, Any]]:
    async with http.get("/control/events", params={"timeout_ms": "5000", **query}) as answer:
        found: list[dict[str, Any]] = await answer.json()
        return found


def test_the_same_prompt_gives_the_same_words_and_another_prompt_gives_others() -> None:
    assert words_for("a", 40) == words_for("a", 60)[:40]
    assert words_for("a", 40) != words_for("b", 40)


async def test_the_official_client_reads_it_whole_and_streamed(server: TestServer) -> None:
    prompt = "say something"
    base_url = str(server.make_url("/v1"))
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**_request(prompt))
        stream = await client.chat.completions.create(
            **_request(prompt, stream=True, max_tokens=7, stream_options={"include_usage": True})
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == "".join(words_for(prompt, 24))
    deltas = [c.choices[0].delta.content for c in chunks if c.choices]
    assert "".join(d or "" for d in deltas) == "".join(words_for(prompt, 7))
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


async def test_two_streams_of_one_request_are_equal_to_the_byte(
    http: aiohttp.ClientSession,
) -> None:
    bodies = []
    for _ in range(2):
        async with http.post("/v1/chat/completions", json=_request("x", stream=True)) as answer:
            bodies.append(await answer.read())
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith(b"data: [DONE]\n\n")


async def test_a_held_answer_goes_on_when_its_tag_is_released(http: aiohttp.ClientSession) -> None:
    async with http.put("/control/plans/held", json={"hold_after": 2, "tokens": 4}):
        pass
    prompt = "[held] go"
    async with http.post("/v1/chat/completions", json=_request(prompt, stream=True)) as answer:
        [held] = await _events(http, tag="held", kind="held")
        async with http.post("/control/release/held"):
            pass
        body = await answer.text()
    [completed] = await _events(http, tag="held", kind="completed")
    assert held["request"] == completed["request"]
    assert body.count('"finish_reason": null') == 1 + 4


@pytest.mark.parametrize("plan", [{"hold_before_head": True}, {"hold_after": 0}])
async def test_a_caller_who_goes_away_is_seen(
    http: aiohttp.ClientSession, server: TestServer, plan: dict[str, Any]
) -> None:
    async with http.put("/control/plans/gone", json=plan):
        pass
    asking = asyncio.ensure_future(_raw_answer(server, "[gone] x"))
    assert await _events(http, tag="gone", kind="held")
    asking.cancel()
    [closed] = await _events(http, tag="gone", kind="closed")
    async with http.get("/control/state") as answer:
        state = await answer.json()
    assert closed["kind"] == "closed"
    assert state == {"open": 0, "most_open": 1, "total": 1}


async def test_a_cut_answer_breaks_and_a_stopped_one_ends_without_its_marker(
    http: aiohttp.ClientSession, server: TestServer
) -> None:
    async with http.put("/control/plans/cut", json={"cut_after": 1}):
        pass
    async with http.put("/control/plans/stop", json={"stop_after": 1}):
        pass
    bodies = {tag: await _raw_answer(server, f"[{tag}] x") for tag in ("cut", "stop")}
    assert not bodies["cut"].endswith(b"0\r\n\r\n")  # the last chunk of HTTP/1.1 is missing
    assert bodies["stop"].endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in bodies["cut"] + bodies["stop"]


async def _raw_answer(server: TestServer, prompt: str) -> bytes:
    body = json.dumps(_request(prompt, stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    assert server.port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    received = b""
    try:
        with suppress(ConnectionResetError):
            while piece := await reader.read(65536):
                received += piece
    finally:
        writer.close()
    return received


async def test_waiting_for_what_does_not_happen_ends_with_nothing(
    http: aiohttp.ClientSession,
) -> None:
    assert await _events(http, tag="never", timeout_ms="1") == []
