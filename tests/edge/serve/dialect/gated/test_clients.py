"""The official clients put a stitched stream together as if one upstream had sent it."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from iop_edge.gate.evidence import Piece
from iop_edge.runtime.work import Surface
from tests.edge.serve.dialect.gated.rig import (
    USAGE,
    call,
    content,
    finish,
    read_first,
    read_later,
    thought,
    work_for,
)

PATHS = ("tunnel", "normalized")
EVERY_PAIR = list(product(PATHS, PATHS))
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
FIRST = (thought("h"), content("one "), content("tw"))
SECOND = (
    content("o "),
    content("three"),
    call(0, "", "t0", "look"),
    call(0, '{"a": 1}'),
    finish("tool_calls"),
)


def stitched(surface: Surface, paths: tuple[str, str], is_stream: bool = True) -> bytes:
    work = work_for(surface, is_stream, stream_options={"include_usage": True})
    stitch = work.stitch(1 << 24)
    if is_stream:
        pieces = read_first(work, surface, paths[0], FIRST)
    else:
        (whole,) = read_first(work, surface, paths[0], [*FIRST, finish()])
        pieces = [Piece(whole.said[:-1])]
    pieces += read_later(work, surface, paths[1], SECOND)
    return b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])


def transport(answer: bytes, content_type: str) -> httpx2.MockTransport:
    headers = {"content-type": content_type}
    return httpx2.MockTransport(lambda _: httpx2.Response(200, content=answer, headers=headers))


def openai_client(answer: bytes, content_type: str = "text/event-stream") -> Iterator[Any]:
    with httpx2.Client(transport=transport(answer, content_type)) as http:
        yield openai.OpenAI(base_url="http://edge.test/v1", api_key="any", http_client=http)


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("paths", EVERY_PAIR)
def test_a_chat_completion(paths: tuple[str, str]) -> None:
    for client in openai_client(stitched("chat", paths)):
        with client.chat.completions.stream(model="mine", messages=HELLO) as stream:
            done = [event for event in stream if event.type == "content.done"]
            final = stream.get_final_completion()
    assert [event.content for event in done] == ["one two three"]
    (choice,) = final.choices
    assert choice.message.content == "one two three"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "tool_calls"
    (called,) = choice.message.tool_calls
    assert (called.id, called.function.name) == ("t0", "look")
    assert called.function.arguments == '{"a": 1}'
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (11, 5)


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("paths", EVERY_PAIR)
def test_a_response(paths: tuple[str, str]) -> None:
    for client in openai_client(stitched("responses", paths)):
        with client.responses.stream(model="mine", input="hello") as stream:
            told = list(stream)
            final = stream.get_final_response()
    assert [event.sequence_number for event in told] == list(range(len(told)))
    (text,) = [event for event in told if event.type == "response.output_text.done"]
    assert text.text == "one two three"
    assert final.output_text == "one two three"
    assert final.status == "completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].arguments == '{"a": 1}'
    assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 5)


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("paths", EVERY_PAIR)
def test_a_message(paths: tuple[str, str]) -> None:
    answer = stitched("messages", paths)
    with httpx2.Client(transport=transport(answer, "text/event-stream")) as http:
        client = anthropic.Anthropic(base_url="http://edge.test", api_key="any", http_client=http)
        with client.messages.stream(model="mine", max_tokens=9, messages=HELLO) as stream:
            text = "".join(stream.text_stream)
            final: Any = stream.get_final_message()
    assert text == "one two three"
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0].thinking == "h"
    assert final.content[1].text == "one two three"
    assert final.content[2].input == {"a": 1}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == 5


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("paths", EVERY_PAIR)
def test_whole_answers(paths: tuple[str, str]) -> None:
    for client in openai_client(stitched("chat", paths, is_stream=False), "application/json"):
        completion = client.chat.completions.create(model="mine", messages=HELLO)
    assert completion.choices[0].message.content == "one two three"
    assert completion.usage.completion_tokens == 5
    for client in openai_client(stitched("responses", paths, is_stream=False), "application/json"):
        response = client.responses.create(model="mine", input="hello")
    assert response.output_text == "one two three"
    answer = stitched("messages", paths, is_stream=False)
    with httpx2.Client(transport=transport(answer, "application/json")) as http:
        other = anthropic.Anthropic(base_url="http://edge.test", api_key="any", http_client=http)
        message: Any = other.messages.create(model="mine", max_tokens=9, messages=HELLO)
    assert [block.text for block in message.content if block.type == "text"] == ["one two three"]
    assert message.usage.output_tokens == 5
