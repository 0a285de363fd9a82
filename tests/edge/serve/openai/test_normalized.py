"""Runs on providers that do not speak the caller's protocol, through the official clients."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from iop.runtime_pb2 import RunEvent, TokenUsage, ToolCall
from tests.edge.serve.openai.conftest import Edge

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def text(value: str) -> RunEvent:
    return RunEvent(text_delta=value)


def thought(value: str) -> RunEvent:
    return RunEvent(reasoning_delta=value)


def call(index: int, arguments: str, call_id: str = "", name: str = "") -> RunEvent:
    piece = ToolCall(index=index, id=call_id, name=name, arguments_json=arguments)
    return RunEvent(tool_call_delta=piece)


USAGE = RunEvent(usage=TokenUsage(input_tokens=7, output_tokens=0))


def finish(reason: str = "stop") -> RunEvent:
    return RunEvent(finish_reason=reason)


SPOKEN = (thought("hm"), text("hel"), text("lo"), USAGE, finish())
CALLED = (
    text("well"),
    call(0, "", "t0", "first"),
    call(0, '{"a":'),
    call(0, "1}"),
    call(1, "{}", "", "second"),
    USAGE,
    finish("tool_calls"),
)


@pytest.fixture
async def clients(
    edge: Edge,
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    await edge.serve()
    one = openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key="any", max_retries=0)
    two = anthropic.AsyncAnthropic(base_url=edge.url, api_key="any", max_retries=0)
    yield one, two
    await one.close()
    await two.close()


Clients = tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]


@pytest.mark.req("POOL-14")
async def test_a_chat_completion_out_of_a_run(edge: Edge, clients: Clients) -> None:
    edge.runs.answers_run(*SPOKEN)
    answer = await clients[0].chat.completions.create(model="lab/small", messages=HELLO)
    assert answer.model == "lab/small"
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 0)
    assert answer.choices[0].message.model_extra == {"reasoning_content": "hm"}
    assert not edge.runs.run.is_stream


@pytest.mark.req("POOL-14")
async def test_a_chat_stream_out_of_a_run(edge: Edge, clients: Clients) -> None:
    edge.runs.answers_run(*SPOKEN)
    stream = await clients[0].chat.completions.create(
        model="lab/small",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [each async for each in stream]
    assert "".join(each.choices[0].delta.content or "" for each in chunks[:-1]) == "hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [each.choices[0].finish_reason for each in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7
    assert edge.runs.run.is_stream


@pytest.mark.req("POOL-14")
async def test_tool_calls_of_a_chat_out_of_a_run(edge: Edge, clients: Clients) -> None:
    edge.runs.answers_run(*CALLED)
    answer = await clients[0].chat.completions.create(model="lab/small", messages=HELLO)
    calls: Any = answer.choices[0].message.tool_calls
    assert [(each.function.name, each.function.arguments) for each in calls] == [
        ("first", '{"a":1}'),
        ("second", "{}"),
    ]
    assert calls[0].id == "t0"
    assert calls[1].id.startswith("call_run_")
    async with clients[0].chat.completions.stream(model="lab/small", messages=HELLO) as stream:
        final: Any = await stream.get_final_completion()
    put_together = final.choices[0].message.tool_calls
    assert [each.function.arguments for each in put_together] == ['{"a":1}', "{}"]


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize("events", [SPOKEN, CALLED])
async def test_a_response_out_of_a_run_is_the_same_streamed_and_not(
    edge: Edge, clients: Clients, events: tuple[RunEvent, ...]
) -> None:
    edge.runs.answers_run(*events)
    whole = await clients[0].responses.create(model="lab/small", input="hello", temperature=0.5)
    async with clients[0].responses.stream(
        model="lab/small", input="hello", temperature=0.5
    ) as stream:
        told: list[Any] = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert told[0].type == "response.created"
    assert told[-1].type == "response.completed"
    begun = [each.type for each in told if each.type == "response.output_item.added"]
    done = [each.type for each in told if each.type == "response.output_item.done"]
    assert len(begun) == len(done) == len(whole.output)
    for answer in (whole, final):
        assert answer.model == "lab/small"
        assert answer.status == "completed"
        assert answer.temperature == 0.5
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 0)
    assert whole.output_text == final.output_text == ("hello" if events is SPOKEN else "well")
    kinds = [item.type for item in whole.output]
    assert kinds == [item.type for item in final.output]
    called = ["message", "function_call", "function_call"]
    assert kinds == (["reasoning", "message"] if events is SPOKEN else called)


@pytest.mark.req("POOL-14")
async def test_a_response_that_ran_out_of_tokens_is_incomplete(
    edge: Edge, clients: Clients
) -> None:
    edge.runs.answers_run(text("hel"), finish("length"))
    answer = await clients[0].responses.create(model="lab/small", input="hello")
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("events", [SPOKEN, CALLED])
async def test_a_message_out_of_a_run(
    edge: Edge, clients: Clients, is_stream: bool, events: tuple[RunEvent, ...]
) -> None:
    edge.runs.answers_run(*events)
    asked: Any = {"model": "lab/small", "max_tokens": 50, "messages": HELLO}
    if is_stream:
        async with clients[1].messages.stream(**asked) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await clients[1].messages.create(**asked)
    assert message.model == "lab/small"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 0)
    if events is SPOKEN:
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[1].text == "hello"
        assert message.stop_reason == "end_turn"
    else:
        assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
        assert message.content[1].input == {"a": 1}
        assert (message.content[1].id, message.content[1].name) == ("t0", "first")
        assert message.stop_reason == "tool_use"


@pytest.mark.req("OAI-7")
async def test_a_run_without_a_finish_is_no_whole_answer(edge: Edge, clients: Clients) -> None:
    edge.runs.answers_run(text("hel"))
    with pytest.raises(openai.InternalServerError) as caught:
        await clients[0].chat.completions.create(model="lab/small", messages=HELLO)
    assert caught.value.code == "upstream_closed"
    stream = await clients[0].chat.completions.create(
        model="lab/small", messages=HELLO, stream=True
    )
    with pytest.raises(openai.APIError):
        [each async for each in stream]
    async with clients[1].messages.stream(model="lab/small", max_tokens=5, messages=HELLO) as told:
        with pytest.raises(anthropic.APIStatusError):
            await told.get_final_message()


@pytest.mark.req("POOL-14", "OAI-5")
async def test_a_field_that_a_run_cannot_express_is_refused_by_name(
    edge: Edge, clients: Clients
) -> None:
    edge.runs.answers_run(*SPOKEN)
    with pytest.raises(openai.BadRequestError) as caught:
        await clients[0].chat.completions.create(
            model="lab/small", messages=HELLO, reasoning_effort="high"
        )
    assert (caught.value.code, caught.value.param) == ("unsupported_field", "reasoning_effort")


@pytest.mark.req("POOL-14")
async def test_tokens_cannot_be_counted_by_a_run(edge: Edge, clients: Clients) -> None:
    edge.runs.answers_run(*SPOKEN)
    with pytest.raises(anthropic.BadRequestError):
        await clients[1].messages.count_tokens(model="lab/small", messages=HELLO)
