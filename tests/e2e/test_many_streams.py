"""Many streams at once through both nodes, each with an answer of its own."""

from __future__ import annotations

import asyncio

import pytest
from e2e_harness import Edge, Upstream, chat, prompt
from openai import AsyncOpenAI

from demo.small_upstream import words_for

pytestmark = pytest.mark.e2e

STREAMS = 50


@pytest.mark.req("NODE-8", "POOL-2", "POOL-6")
async def test_fifty_streams_at_once_give_fifty_complete_answers_of_their_own(
    edge: Edge, client: AsyncOpenAI, upstream: Upstream
) -> None:
    await upstream.plan("fifty", tokens=40, pace_ms=5)

    async def answer(number: int) -> tuple[list[str], str | None]:
        asked = prompt("fifty", str(number))
        pieces, finish_reason = [], None
        async for chunk in await client.chat.completions.create(**chat("pair", asked, stream=True)):
            choice = chunk.choices[0]
            pieces += [choice.delta.content] if choice.delta.content else []
            finish_reason = choice.finish_reason or finish_reason
        return pieces, finish_reason

    answers = await asyncio.gather(*(answer(number) for number in range(STREAMS)))
    for number, found in enumerate(answers):
        assert found == (words_for(prompt("fifty", str(number)), 40), "stop")
    opened = await upstream.seen("fifty", "opened", count=STREAMS)
    assert {event["model"] for event in opened} == {"small-a", "small-b"}
    await edge.until_idle()
