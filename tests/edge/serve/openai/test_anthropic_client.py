"""The ingress through the official `anthropic` client, over real sockets."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from iop_shared.errors import Code, Fault
from tests.edge.serve.openai.conftest import Edge


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[anthropic.AsyncAnthropic]:
    await edge.serve()
    client = anthropic.AsyncAnthropic(base_url=edge.url, api_key="any", max_retries=0)
    yield client
    await client.close()


HELLO: list[Any] = [{"role": "user", "content": "hello"}]
MESSAGE = {
    "id": "m1", "type": "message", "role": "assistant", "model": "served",
    "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
    "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip


def event(kind: str, **more: Any) -> bytes:
    data = json.dumps({"type": kind, **more}).encode()
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


BEGIN = event("message_start", message={**MESSAGE, "content": [], "stop_reason": None})
TEXT = event("content_block_start", index=0, content_block={"type": "text", "text": ""}) + event(
    "content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}
)
END = (
    event("content_block_stop", index=0)
    + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    + event("message_stop")
)


@pytest.mark.req("OAI-1")
async def test_a_message_comes_back_under_the_callers_own_name(
    edge: Edge, client: anthropic.AsyncAnthropic
) -> None:
    edge.runs.answers(200, json.dumps(MESSAGE).encode())
    answer = await client.messages.create(model="lab/small", max_tokens=9, messages=HELLO)
    assert answer.model == "lab/small"
    assert answer.content[0].type == "text"
    assert edge.runs.sent() == {"model": "served", "max_tokens": 9, "messages": HELLO}
    assert edge.runs.spec.demand.operation == "messages"
    assert edge.runs.spec.demand.output_tokens == 9
    sent = dict(edge.runs.spec.work.upstream_headers())
    assert sent["anthropic-version"] == client.default_headers["anthropic-version"]
    assert "x-api-key" not in sent


@pytest.mark.req("OAI-1")
async def test_a_stream_of_messages_is_given_on(
    edge: Edge, client: anthropic.AsyncAnthropic
) -> None:
    edge.runs.answers(200, BEGIN, TEXT, END)
    async with client.messages.stream(model="lab/small", max_tokens=9, messages=HELLO) as stream:
        final = await stream.get_final_message()
    assert final.model == "lab/small"
    assert final.usage.output_tokens == 2


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    "ending", [[], [Fault(Code.NODE_LOST, "the node was lost")], [b"event: x"]]
)
async def test_the_official_client_raises_on_a_stream_that_was_lost(
    edge: Edge, client: anthropic.AsyncAnthropic, ending: list[Any]
) -> None:
    edge.runs.answers(200, BEGIN, TEXT, *ending)
    async with client.messages.stream(model="lab/small", max_tokens=9, messages=HELLO) as stream:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stream.get_final_message()
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
    assert body["request_id"] == edge.runs.spec.request_id


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (Code.QUEUE_FULL, 429, "rate_limit_error"),
        (Code.NO_PROVIDER, 503, "overloaded_error"),
        (Code.MODEL_NOT_FOUND, 404, "not_found_error"),
        (Code.UPSTREAM_FIRST_BYTE_TIMEOUT, 504, "timeout_error"),
    ],
)
async def test_faults_have_the_dialects_own_types(
    edge: Edge, client: anthropic.AsyncAnthropic, code: Code, status: int, kind: str
) -> None:
    edge.runs.refuses(Fault(code, "why"))
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.messages.create(model="lab/small", max_tokens=9, messages=HELLO)
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (status, kind)
    assert body["request_id"] == caught.value.response.headers["x-request-id"]


@pytest.mark.req("OAI-5")
async def test_529_stays_529(edge: Edge, client: anthropic.AsyncAnthropic) -> None:
    edge.runs.answers(529, b'{"type":"error","error":{"type":"overloaded_error","message":"o"}}')
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.messages.create(model="lab/small", max_tokens=9, messages=HELLO)
    assert caught.value.status_code == 529


@pytest.mark.req("OAI-1")
async def test_tokens_are_counted_by_the_upstream(
    edge: Edge, client: anthropic.AsyncAnthropic
) -> None:
    edge.runs.answers(200, b'{"input_tokens": 11}')
    counted = await client.messages.count_tokens(model="lab/small", messages=HELLO)
    assert counted.input_tokens == 11
    assert edge.runs.spec.demand.operation == "count_tokens"
    assert edge.runs.sent() == {"model": "served", "messages": HELLO}


@pytest.mark.req("OAI-1")
async def test_models_have_anthropics_shape(client: anthropic.AsyncAnthropic) -> None:
    listed = [model async for model in client.models.list()]
    assert [(model.id, model.display_name) for model in listed] == [("lab/small", "Small")]
    one = await client.models.retrieve("lab/small")
    assert one.created_at.year == 2026
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("lab/none")
