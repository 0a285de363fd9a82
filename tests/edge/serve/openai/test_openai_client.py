"""The ingress through the official `openai` client, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from iop_shared.errors import Code, Fault
from tests.edge.serve.openai.conftest import Edge


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[openai.AsyncOpenAI]:
    await edge.serve()
    client = openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key="any", max_retries=0)
    yield client
    await client.close()


HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def completion(**more: Any) -> bytes:
    return json.dumps(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "served",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hi", **more},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        }
    ).encode()


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "served"}
    return b"data: " + json.dumps({**body, "choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@pytest.mark.req("OAI-1")
async def test_a_completion_comes_back_under_the_callers_own_name(
    edge: Edge, client: openai.AsyncOpenAI
) -> None:
    edge.runs.answers(200, completion())
    answer = await client.chat.completions.create(model="lab/small", messages=HELLO, seed=7)
    assert answer.choices[0].message.content == "hi"
    assert answer.model == "lab/small"
    assert answer._request_id == edge.runs.spec.request_id
    assert edge.runs.sent() == {"model": "served", "messages": HELLO, "seed": 7}
    assert edge.runs.left == ["completed"]


@pytest.mark.req("OAI-1")
async def test_a_stream_is_given_on_chunk_by_chunk(edge: Edge, client: openai.AsyncOpenAI) -> None:
    may_go_on = asyncio.Event()
    edge.runs.answers(200, chunk("one"), may_go_on, chunk(" two", "stop") + DONE)
    stream = await client.chat.completions.create(model="lab/small", messages=HELLO, stream=True)
    texts = []
    async for each in stream:
        assert each.model == "lab/small"
        texts.append(each.choices[0].delta.content)
        may_go_on.set()
    assert texts == ["one", " two"]
    assert edge.runs.spec.demand.capabilities == {"streaming"}
    assert edge.runs.left == ["completed"]


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    "ending",
    [
        [],
        [chunk("", "stop")],
        [b'data: {"id":"c1","mod'],
        [Fault(Code.NODE_LOST, "the node was lost")],
        [Fault(Code.UPSTREAM_IDLE_TIMEOUT, "the upstream fell silent")],
        [b"data: <html>\n\n"],
    ],
)
async def test_the_official_client_raises_on_a_stream_that_was_lost(
    edge: Edge, client: openai.AsyncOpenAI, ending: list[Any]
) -> None:
    edge.runs.answers(200, chunk("one"), *ending)
    stream = await client.chat.completions.create(model="lab/small", messages=HELLO, stream=True)
    seen = []

    async def consume() -> None:
        async for each in stream:
            seen.append(each.choices[0].delta.content)

    with pytest.raises(openai.APIError) as caught:
        await consume()
    assert seen[0] == "one"
    assert edge.runs.left == [caught.value.code]


@pytest.mark.req("OAI-7")
async def test_a_lost_stream_ends_with_one_error_event_and_no_marker(edge: Edge) -> None:
    await edge.serve()
    edge.runs.answers(200, chunk("one"), Fault(Code.UPSTREAM_CLOSED, "cut"))
    host, _, port = edge.listener.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": "lab/small", "messages": HELLO, "stream": True}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    received = await reader.read()
    writer.close()
    assert received.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in received
    event = json.loads(received.split(b"data: ")[-1].split(b"\n\n")[0])
    assert event == {
        "error": {
            "message": "cut", "type": "upstream_error", "param": None, "code": "upstream_closed",
        }
    }  # fmt: skip


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.QUEUE_FULL, openai.RateLimitError),
        (Code.QUEUE_TIMEOUT, openai.InternalServerError),
        (Code.NO_PROVIDER, openai.InternalServerError),
        (Code.UPSTREAM_REFUSED, openai.InternalServerError),
        (Code.UPSTREAM_FIRST_BYTE_TIMEOUT, openai.InternalServerError),
        (Code.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
        (Code.UNSUPPORTED_BY_MODEL, openai.BadRequestError),
        (Code.MODEL_NOT_FOUND, openai.NotFoundError),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_fault_before_the_first_byte_is_an_error_response(
    edge: Edge,
    client: openai.AsyncOpenAI,
    code: Code,
    kind: type[openai.APIStatusError],
    is_stream: bool,
) -> None:
    edge.runs.refuses(Fault(code, "why", retry_after_s=2.5))
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(model="lab/small", messages=HELLO, stream=is_stream)
    assert caught.value.code == code.value
    assert caught.value.response.headers["x-request-id"] == edge.runs.spec.request_id
    retry_after = caught.value.response.headers.get("retry-after")
    assert retry_after == ("3" if caught.value.status_code in (429, 503) else None)


@pytest.mark.req("OAI-7")
async def test_a_stream_that_is_empty_is_an_error_response(
    edge: Edge, client: openai.AsyncOpenAI
) -> None:
    edge.runs.answers(200)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="lab/small", messages=HELLO, stream=True)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_closed")


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(("given", "seen"), [(429, 429), (503, 503), (529, 503), (418, 418)])
async def test_an_upstreams_own_error_keeps_its_status_and_retry_after(
    edge: Edge, client: openai.AsyncOpenAI, given: int, seen: int
) -> None:
    body = b'{"error":{"message":"too hot","type":"t","param":null,"code":"c"}}'
    edge.runs.answers(given, body, headers=[("retry-after", "9"), ("x-private", "10.0.0.7")])
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="lab/small", messages=HELLO, stream=True)
    assert (caught.value.status_code, caught.value.code) == (seen, "c")
    assert caught.value.response.headers["retry-after"] == "9"
    assert "x-private" not in caught.value.response.headers


@pytest.mark.req("POOL-14")
async def test_tools_pass_through_and_are_asked_for(edge: Edge, client: openai.AsyncOpenAI) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    edge.runs.answers(200, completion(tool_calls=[call]))
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer = await client.chat.completions.create(
        model="lab/small", messages=HELLO, tools=tools, tool_choice="auto"
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert calls[0].function.arguments == '{"a": 1}'
    assert edge.runs.spec.demand.capabilities == {"tool_calling"}
    assert edge.runs.spec.demand.operation == "chat_completions"
    assert edge.runs.sent()["tools"] == tools


@pytest.mark.req("NODE-7")
@pytest.mark.parametrize("moment", ["queued", "first token", "mid-stream"])
async def test_a_caller_that_leaves_cancels_its_run(
    edge: Edge, client: openai.AsyncOpenAI, moment: str
) -> None:
    never = asyncio.Event()
    if moment == "queued":
        edge.runs.refuses(never)
    else:
        edge.runs.answers(200, *([chunk("one")] if moment == "mid-stream" else []), never)

    async def call() -> None:
        stream = await client.chat.completions.create(
            model="lab/small", messages=HELLO, stream=True
        )
        async for _ in stream:
            pass

    calling = asyncio.create_task(call())
    async with asyncio.timeout(5):
        await edge.runs.has_entered.wait()
        calling.cancel()
        await client.close()
        await edge.runs.has_left.wait()
    assert edge.runs.left == ["cancelled"]


@pytest.mark.req("OAI-1")
async def test_models_are_listed_and_shown_with_slashes_in_their_ids(
    client: openai.AsyncOpenAI,
) -> None:
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == ["lab/small"]
    assert (await client.models.retrieve("lab/small")).id == "lab/small"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("lab/none")
    assert caught.value.code == "model_not_found"


@pytest.mark.req("OAI-1")
async def test_a_response_is_streamed_and_not(edge: Edge, client: openai.AsyncOpenAI) -> None:
    response = {
        "id": "r1", "object": "response", "created_at": 1, "model": "served", "status": "completed",
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    edge.runs.answers(200, json.dumps(response).encode())
    answer = await client.responses.create(model="lab/small", input="hello")
    assert answer.model == "lab/small"
    assert edge.runs.sent() == {"model": "served", "input": "hello"}

    def event(kind: str) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": 0, "response": response}).encode()
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    edge.runs.answers(200, event("response.created"), event("response.completed"))
    stream = await client.responses.create(model="lab/small", input="hello", stream=True)
    events: list[Any] = [each async for each in stream]
    assert [each.type for each in events] == ["response.created", "response.completed"]
    assert {each.response.model for each in events} == {"lab/small"}

    edge.runs.answers(200, event("response.created"))
    stream = await client.responses.create(model="lab/small", input="hello", stream=True)
    with pytest.raises(openai.APIError):
        [each async for each in stream]
