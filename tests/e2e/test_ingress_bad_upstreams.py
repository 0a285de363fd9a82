"""Upstreams that fail in every way: what the caller is told, and what its client raises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from e2e_harness import PROMPT_CANARY, RawCall
from ingress_rig import Rig, anthropic_client, openai_client
from ingress_scripts import ODD_TEXT
from ingress_upstreams import COMPLETION
from openai import AsyncOpenAI

pytestmark = pytest.mark.e2e


@pytest.fixture
async def chat(ingress: Rig) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(ingress.root_url) as client:
        yield client
        # Five failures in a row would cool the upstream down for whoever comes next.
        await client.chat.completions.create(**request("bad-but-fine"))


@pytest.fixture
async def claude(ingress: Rig) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_client(ingress.root_url) as client:
        yield client
        await client.messages.create(**request("claude-bad-but-fine"))


def request(model: str, **more: Any) -> Any:
    return {
        "model": model,
        "max_tokens": 50,
        "messages": [{"role": "user", "content": PROMPT_CANARY}],
        **more,
    }


WHOLE = [
    ("bad-reset", 502, "upstream_closed"),
    ("bad-close", 502, "upstream_closed"),
    ("bad-silent", 504, "upstream_first_byte_timeout"),
    ("bad-stall", 504, "upstream_idle_timeout"),
    ("bad-cut", 502, "upstream_closed"),
    ("bad-stop", 502, "upstream_invalid"),
    ("bad-html", 502, "upstream_invalid"),
    ("bad-no-json", 502, "upstream_invalid"),
    ("bad-no-http", 502, "upstream_invalid"),
    ("bad-encoded", 502, "upstream_invalid"),
    ("bad-redirect", 502, "upstream_invalid"),
]
BEFORE_THE_FIRST_EVENT = [
    *(case for case in WHOLE if case[0] not in ("bad-stall", "bad-cut", "bad-stop")),
    ("bad-line", 502, "upstream_invalid"),
]
AMID_THE_STREAM = [
    ("bad-stall", "upstream_idle_timeout"),
    ("bad-cut", "upstream_closed"),
    ("bad-stop", "upstream_closed"),
]
ANTHROPIC_TYPES = {502: "api_error", 504: "timeout_error"}
CONNECTIONS = [
    ("refused", 502, "upstream_refused"),
    ("unreachable", 504, "upstream_connect_timeout"),
]


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(("model", "status", "code"), WHOLE + CONNECTIONS)
async def test_an_answer_that_fails_has_its_status_and_code(
    chat: AsyncOpenAI, model: str, status: int, code: str
) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        await chat.chat.completions.create(**request(model))
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert raised.value.type == "upstream_error"
    assert raised.value.request_id


@pytest.mark.req("OAI-5", "OAI-7")
@pytest.mark.parametrize(("model", "status", "code"), BEFORE_THE_FIRST_EVENT)
async def test_a_stream_that_fails_before_its_first_event_is_an_error_response(
    chat: AsyncOpenAI, model: str, status: int, code: str
) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        await chat.chat.completions.create(**request(model, stream=True))
    assert (raised.value.status_code, raised.value.code) == (status, code)


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    ("model", "code"), [*AMID_THE_STREAM, ("endless", "upstream_total_timeout")]
)
async def test_a_stream_that_fails_later_ends_with_an_error_event_and_the_client_raises(
    ingress: Rig, chat: AsyncOpenAI, model: str, code: str
) -> None:
    said = []
    with pytest.raises(openai.APIError) as raised:
        async for chunk in await chat.chat.completions.create(**request(model, stream=True)):
            said.append(chunk.choices[0].delta.content)
    assert raised.value.code == code
    assert said[0] in (COMPLETION, "on ")
    raw = await RawCall.start(
        f"{ingress.site.openai_url}/chat/completions", request(model, stream=True)
    )
    received = await raw.rest()
    raw.hang_up()
    assert b"[DONE]" not in received
    assert received.rstrip().endswith(b"\n\n\r\n0")
    assert b'data: {"error"' in received
    assert code.encode() in received


@pytest.mark.req("OAI-7", "POOL-14")
@pytest.mark.parametrize(("model", "code"), AMID_THE_STREAM)
async def test_a_translated_stream_that_fails_later_raises_as_well(
    chat: AsyncOpenAI, model: str, code: str
) -> None:
    said = []
    with pytest.raises(openai.APIError) as raised:
        async for event in await chat.responses.create(model=model, input="hi", stream=True):
            said.append(event.type)
    assert raised.value.code == code
    assert "response.output_text.delta" in said
    assert not {"response.completed", "response.incomplete"} & set(said)


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(("model", "status", "code"), WHOLE)
async def test_an_anthropic_caller_is_told_in_its_own_dialect(
    claude: AsyncAnthropic, model: str, status: int, code: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        await claude.messages.create(**request(f"claude-{model}"))
    body: Any = raised.value.body
    assert raised.value.status_code == status
    assert (body["type"], body["error"]["type"]) == ("error", ANTHROPIC_TYPES[status])
    assert body["request_id"] == raised.value.request_id


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(("model", "code"), AMID_THE_STREAM)
async def test_an_anthropic_stream_that_fails_later_raises_as_well(
    claude: AsyncAnthropic, model: str, code: str
) -> None:
    said = []
    with pytest.raises(anthropic.APIStatusError) as raised:
        async with claude.messages.stream(**request(f"claude-{model}")) as stream:
            async for text in stream.text_stream:
                said.append(text)
    assert said == [COMPLETION]
    body: Any = raised.value.body
    assert body["error"]["type"] in ANTHROPIC_TYPES.values()


KINDS: dict[int, type[openai.APIStatusError]] = {
    429: openai.RateLimitError,
    503: openai.InternalServerError,
    529: openai.InternalServerError,
    500: openai.InternalServerError,
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
}


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("status", [429, 503, 529, 500, 400, 401])
async def test_an_upstreams_own_error_keeps_its_status_and_retry_after_in_both_dialects(
    chat: AsyncOpenAI, claude: AsyncAnthropic, status: int
) -> None:
    for form, is_stream in (("openai", True), ("anthropic", False), ("html", True)):
        model = f"bad-{status}-{form}"
        with pytest.raises(KINDS[status]) as raised:
            await chat.chat.completions.create(**request(model, stream=is_stream))
        assert raised.value.status_code == (503 if status == 529 else status)
        assert raised.value.response.headers["retry-after"] == "7"
        assert "server" not in raised.value.response.headers
        error: Any = raised.value.body
        assert error["message"] == (
            "busy" if form != "html" else f"the upstream answered with status {status}"
        )
        with pytest.raises(anthropic.APIStatusError) as claude_raised:
            await claude.messages.create(**request(f"claude-{model}", stream=is_stream))
        assert claude_raised.value.status_code == status
        assert claude_raised.value.response.headers["retry-after"] == "7"
        body: Any = claude_raised.value.body
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})


@pytest.mark.req("OAI-1")
@pytest.mark.parametrize("model", ["bad-lf", "bad-cr", "bad-crlf"])
async def test_an_odd_but_good_stream_is_understood_byte_by_byte(
    chat: AsyncOpenAI, model: str
) -> None:
    said = [
        chunk.choices[0].delta.content or ""
        async for chunk in await chat.chat.completions.create(**request(model, stream=True))
    ]
    assert "".join(said).strip() == ODD_TEXT


@pytest.mark.req("OAI-5", "SEC-1")
async def test_only_plain_headers_of_an_upstream_reach_the_caller(
    ingress: Rig, chat: AsyncOpenAI
) -> None:
    url = f"{ingress.site.openai_url}/chat/completions"
    raw = await RawCall.start(url, request("bad-folded"))
    head, _, _ = (await raw.rest()).partition(b"\r\n\r\n")
    raw.hang_up()
    lines = head.decode("ascii").split("\r\n")
    names = {line.partition(":")[0].lower() for line in lines[1:]}
    assert names <= {"content-type", "content-length", "retry-after", "x-request-id", "connection"}
    assert all(line.isprintable() for line in lines)


@pytest.mark.req("POOL-13")
async def test_a_refused_connection_is_tried_on_another_provider_and_nothing_else_is(
    ingress: Rig, chat: AsyncOpenAI
) -> None:
    answer = await chat.chat.completions.create(
        **request("elsewhere"), extra_headers={"x-request-id": "went-elsewhere"}
    )
    assert answer.choices[0].message.content == COMPLETION
    before = len(ingress.upstream.of("bad-close"))
    with pytest.raises(openai.InternalServerError):
        await chat.chat.completions.create(
            **request("bad-close"), extra_headers={"x-request-id": "stayed"}
        )
    elsewhere, stayed = await ingress.records("went-elsewhere", "stayed")
    assert (elsewhere["attempts"], elsewhere["provider_id"]) == (2, "p-fine")
    assert (stayed["attempts"], stayed["end"]) == (1, "error:upstream_closed")
    assert len(ingress.upstream.of("bad-close")) == before + 1
