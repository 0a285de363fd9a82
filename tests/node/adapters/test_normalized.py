"""The normalized path: what upstreams are asked, and what their answers become."""

from __future__ import annotations

import asyncio
import json

import pytest
from google.protobuf.json_format import ParseDict

from iop.runtime_pb2 import RunRequest
from iop_node.adapters.base import (
    Finish,
    ReasoningDelta,
    RunCall,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from iop_node.adapters.ollama_chat import chat_request as ollama_request
from iop_node.adapters.openai_chat import ChatReader
from iop_node.adapters.openai_chat import chat_request as openai_request
from iop_shared.errors import Code, Fault


def request_of(**fields) -> RunRequest:
    fields.setdefault("messages", [{"role": "user", "parts": [{"text": "hi"}]}])
    return ParseDict({"adapter": "a", "target": "m", **fields}, RunRequest())


def run_of(is_stream=True, **fields) -> RunCall:
    return RunCall(adapter="a", target="m", request=request_of(is_stream=is_stream, **fields))


TOOLS = [{"name": "add", "description": "adds", "parameters_json": '{"type": "object"}'}]
CONVERSATION = [
    {"role": "system", "parts": [{"text": "be "}, {"text": "brief"}]},
    {"role": "user", "parts": [{"text": "see"}, {"image": {"content": "aGk="}}]},
    {
        "role": "assistant",
        "reasoning": "hm",
        "tool_calls": [{"id": "c1", "name": "add", "arguments_json": '{"a": 1}'}],
    },
    {"role": "tool", "tool_call_id": "c1", "parts": [{"text": "2"}]},
]
OPTIONS = {
    "max_tokens": 9,
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": 3,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.5,
    "seed": -1,
    "stop": ["x"],
    "thinking_token_budget": 0,
}


@pytest.mark.req("NODE-5")
class TestWhatOpenAIIsAsked:
    def test_a_plain_run_asks_for_nothing_that_was_not_asked(self):
        assert json.loads(openai_request(request_of())) == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": False,
        }

    def test_a_stream_asks_for_its_usage(self):
        body = json.loads(openai_request(request_of(is_stream=True)))
        assert body["stream_options"] == {"include_usage": True}

    def test_messages_images_and_tool_calls(self):
        body = json.loads(openai_request(request_of(messages=CONVERSATION, tools=TOOLS)))
        assert body["messages"] == [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 1}'},
                    }
                ],
            },
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
        ]
        assert body["tools"] == [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "adds",
                    "parameters": {"type": "object"},
                },
            }
        ]
        assert "tool_choice" not in body

    def test_options_that_were_given_are_sent_and_zero_is_given(self):
        body = json.loads(openai_request(request_of(options=OPTIONS)))
        expected = {key: value for key, value in OPTIONS.items() if key != "thinking_token_budget"}
        assert {key: body[key] for key in expected} == expected
        assert "thinking_token_budget" not in body

    @pytest.mark.parametrize(
        ("choice", "sent"),
        [
            ({"mode": "auto"}, "auto"),
            ({"mode": "required"}, "required"),
            ({"mode": "none"}, "none"),
            (
                {"mode": "named", "name": "add"},
                {"type": "function", "function": {"name": "add"}},
            ),
        ],
    )
    def test_a_tool_choice(self, choice, sent):
        body = json.loads(openai_request(request_of(tools=TOOLS, tool_choice=choice)))
        assert body["tool_choice"] == sent

    def test_an_answer_after_a_schema(self):
        wanted = {"kind": "json_schema", "schema_json": '{"type": "object"}', "name": "n"}
        body = json.loads(openai_request(request_of(response_format=wanted)))
        assert body["response_format"]["json_schema"] == {
            "name": "n",
            "schema": {"type": "object"},
            "strict": True,
        }
        body = json.loads(openai_request(request_of(response_format={"kind": "json_object"})))
        assert body["response_format"] == {"type": "json_object"}


@pytest.mark.req("NODE-5")
class TestWhatOllamaIsAsked:
    def test_the_context_size_is_sent_and_nothing_may_be_shortened_silently(self):
        assert json.loads(ollama_request(request_of(), 8192)) == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": False,
            "truncate": False,
            "shift": False,
            "options": {"num_ctx": 8192},
        }
        assert "options" not in json.loads(ollama_request(request_of(), 0))

    def test_messages_images_and_tool_calls(self):
        body = json.loads(ollama_request(request_of(messages=CONVERSATION), 0))
        assert body["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "see", "images": ["aGk="]},
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "2", "tool_name": "add"},
        ]

    def test_options_have_its_own_names(self):
        body = json.loads(ollama_request(request_of(options=OPTIONS), 0))
        assert body["options"] == {
            "num_predict": 9,
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 3,
            "frequency_penalty": 0.25,
            "presence_penalty": -0.5,
            "seed": -1,
            "stop": ["x"],
        }
        assert body["think"] is False

    def test_a_thinking_budget_above_zero_asks_for_nothing(self):
        body = json.loads(ollama_request(request_of(options={"thinking_token_budget": 5}), 0))
        assert "think" not in body

    def test_tools_are_sent_unless_the_caller_wants_none(self):
        body = json.loads(ollama_request(request_of(tools=TOOLS), 0))
        assert body["tools"][0]["function"]["parameters"] == {"type": "object"}
        body = json.loads(ollama_request(request_of(tools=TOOLS, tool_choice={"mode": "none"}), 0))
        assert "tools" not in body

    @pytest.mark.parametrize("mode", ["required", "named"])
    def test_a_tool_choice_that_it_cannot_be_told_is_refused(self, mode):
        with pytest.raises(Fault) as refused:
            ollama_request(request_of(tools=TOOLS, tool_choice={"mode": mode}), 0)
        assert (refused.value.code, refused.value.param) == (Code.UNSUPPORTED_FIELD, "tool_choice")

    def test_an_answer_after_a_schema(self):
        wanted = {"kind": "json_schema", "schema_json": '{"type": "object"}'}
        assert json.loads(ollama_request(request_of(response_format=wanted), 0))["format"] == {
            "type": "object"
        }
        wanted = {"kind": "json_object"}
        assert json.loads(ollama_request(request_of(response_format=wanted), 0))["format"] == "json"


@pytest.mark.parametrize("render", [openai_request, lambda r: ollama_request(r, 0)])
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "x", "parameters_json": "{nope"}]},
        {"response_format": {"kind": "json_schema", "schema_json": ""}},
    ],
)
def test_json_inside_a_request_that_is_none_is_the_callers_fault(render, fields):
    with pytest.raises(Fault) as refused:
        render(request_of(**fields))
    assert refused.value.code is Code.INVALID_VALUE
    assert "nope" not in refused.value.message


def openai_stream(*chunks, done=True) -> bytes:
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n"] if done else events).encode()


def ollama_stream(*lines) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def delta(finish=None, **content) -> dict:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


OPENAI_ANSWER = openai_stream(
    delta(role="assistant", content=None),
    delta(reasoning_content="hm"),
    delta(reasoning="mm"),
    delta(content="2 "),
    delta(content="größe"),
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":1}'}}]),
    delta(finish="tool_calls"),
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": None,
        },
    },
)
OPENAI_EVENTS = [
    ReasoningDelta("hm"),
    ReasoningDelta("mm"),
    TextDelta("2 "),
    TextDelta("größe"),
    ToolCallDelta(index=0, id="c1", name="add"),
    ToolCallDelta(index=0, arguments_json='{"a":1}'),
    Usage(input_tokens=5, output_tokens=0, cached_input_tokens=4),
    Finish("tool_calls"),
]
OLLAMA_ANSWER = ollama_stream(
    {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
    {"message": {"role": "assistant", "content": "größe"}, "done": False},
    {
        "message": {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
                {"id": "c2", "function": {"name": "add", "arguments": {"a": 2}}},
            ],
        },
        "done": False,
    },
    {
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 5,
        "eval_count": 7,
        "total_duration": 1,
    },
)
OLLAMA_EVENTS = [
    ReasoningDelta("hm"),
    TextDelta("größe"),
    ToolCallDelta(index=0, id="c1", name="add", arguments_json='{"a":1}'),
    ToolCallDelta(index=1, id="c2", name="add", arguments_json='{"a":2}'),
    Usage(input_tokens=5, output_tokens=7),
    Finish("tool_calls"),
]


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_share_a_number_are_told_apart_by_their_ids(index):
    def fragment(arguments: str, call_id: str = "") -> bytes:
        function = {"name": "add", "arguments": arguments} if call_id else {"arguments": arguments}
        call = {"index": index, "id": call_id, "function": function}
        return json.dumps(delta(tool_calls=[call])).encode()

    reader = ChatReader()
    pieces = [fragment("{", "c1"), fragment("}"), fragment("{", "c2"), fragment("}")]
    events = [event for piece in pieces for event in reader.read(piece)]
    assert [(event.index, event.arguments_json) for event in events] == [
        (0, "{"),
        (0, "}"),
        (1, "{"),
        (1, "}"),
    ]


def compact(events) -> list:
    """Tool arguments without the blanks that a JSON encoder is free to put."""
    return [
        ToolCallDelta(
            index=event.index,
            id=event.id,
            name=event.name,
            arguments_json=event.arguments_json.replace(" ", ""),
        )
        if isinstance(event, ToolCallDelta)
        else event
        for event in events
    ]


@pytest.mark.req("NODE-5")
class TestAStream:
    @pytest.mark.parametrize("size", [1, 7, 100_000])
    @pytest.mark.parametrize(
        ("kind", "answer", "events"),
        [
            ("openai_compat", OPENAI_ANSWER, OPENAI_EVENTS),
            ("ollama", OLLAMA_ANSWER, OLLAMA_EVENTS),
        ],
    )
    async def test_becomes_events_however_it_is_cut(
        self, upstream, adapter_on, sink, kind, answer, events, size
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.chunked_head()
            for start in range(0, len(answer), size):
                await conn.chunk(answer[start : start + size])
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, kind)
            await adapter.run(run_of(), sink)
        assert compact(sink.events) == events
        assert sink.starts == 1
        path = {"openai_compat": "/v1/chat/completions", "ollama": "/api/chat"}[kind]
        assert seen[0].path == path
        assert json.loads(seen[0].body)["stream"] is True

    async def test_of_a_server_that_keeps_the_body_open_is_over_all_the_same(
        self, upstream, adapter_on, sink
    ):
        gone = asyncio.Event()

        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(OPENAI_ANSWER)
            await conn.peer_gone()
            gone.set()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, idle_timeout_s=0.05, total_timeout_s=0.2)
            await adapter.run(run_of(), sink)
            await gone.wait()
        assert sink.events[-1] == Finish("tool_calls")

    async def test_leaves_its_connection_for_a_run_that_comes_a_little_later(
        self, upstream, adapter_on, make_sink, monkeypatch
    ):
        monkeypatch.setattr("iop_node.adapters.http1.pool.SETTLE_S", 0.0)

        async def script(conn):
            while True:
                await conn.request()
                await conn.chunked_head()
                await conn.chunk(OPENAI_ANSWER)
                await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            for _ in range(3):
                await adapter.run(run_of(), make_sink())
            assert server.connections == 1

    @pytest.mark.req("NODE-8")
    async def test_stops_being_read_while_its_caller_does_not_read(
        self, upstream, adapter_on, make_sink
    ):
        sink = make_sink(gate=asyncio.Event())
        blocked = asyncio.Event()
        piece = openai_stream(delta(content="x" * 60_000), done=False)

        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            for _ in range(1000):
                conn.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                drain = asyncio.ensure_future(conn.writer.drain())
                if not (await asyncio.wait({drain}, timeout=0.2))[0]:
                    blocked.set()
                await drain
            await conn.chunk(openai_stream(delta(finish="stop")))
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.run(run_of(), sink))
            await blocked.wait()
            assert len(sink.events) == 1
            sink.gate.set()
            await task
        assert len(sink.events) == 1001


@pytest.mark.req("NODE-5")
class TestAWholeAnswer:
    async def run(self, upstream, adapter_on, sink, kind, body) -> list:
        async def script(conn):
            await conn.request()
            await conn.answer(json.dumps(body).encode())

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, kind)
            await adapter.run(run_of(is_stream=False), sink)
        return compact(sink.events)

    async def test_of_openai(self, upstream, adapter_on, sink):
        message = {
            "content": "two",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
            ],
        }
        body = {
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
        assert await self.run(upstream, adapter_on, sink, "openai_compat", body) == [
            TextDelta("two"),
            ToolCallDelta(index=0, id="c1", name="add", arguments_json="{}"),
            ToolCallDelta(index=1, id="c2", name="add", arguments_json="{}"),
            Usage(input_tokens=1, output_tokens=2),
            Finish("tool_calls"),
        ]

    async def test_of_ollama(self, upstream, adapter_on, sink):
        body = {
            "message": {"role": "assistant", "content": "two"},
            "done": True,
            "done_reason": "length",
            "prompt_eval_count": 3,
            "eval_count": 4,
        }
        assert await self.run(upstream, adapter_on, sink, "ollama", body) == [
            TextDelta("two"),
            Usage(input_tokens=3, output_tokens=4),
            Finish("length"),
        ]

    async def test_of_an_older_ollama_gives_a_tool_call_an_id(self, upstream, adapter_on, sink):
        calls = [{"function": {"name": "add", "arguments": {}}}] * 2
        body = {"message": {"content": "", "tool_calls": calls}, "done": True}
        events = await self.run(upstream, adapter_on, sink, "ollama", body)
        ids = [event.id for event in events if isinstance(event, ToolCallDelta)]
        assert len(set(ids)) == 2
        assert all(ids)


class TestAFault:
    async def fault(self, upstream, adapter_on, sink, kind, *parts, is_stream=True) -> Fault:
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            for part in parts:
                await conn.chunk(part)
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, kind)
            with pytest.raises(Fault) as raised:
                await adapter.run(run_of(is_stream=is_stream), sink)
        assert "s3cret" not in raised.value.message
        return raised.value

    @pytest.mark.req("OAI-7")
    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("openai_compat", openai_stream(delta(content="a"), done=False)),
            ("ollama", ollama_stream({"message": {"content": "a"}, "done": False})),
        ],
    )
    async def test_of_a_stream_that_merely_stops_is_no_clean_end(
        self, upstream, adapter_on, sink, kind, body
    ):
        fault = await self.fault(upstream, adapter_on, sink, kind, body)
        assert fault.code is Code.UPSTREAM_CLOSED
        assert sink.events == [TextDelta("a")]

    @pytest.mark.parametrize("is_stream", [True, False])
    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("openai_compat", b"data: <html>s3cret</html>\n\n"),
            ("openai_compat", b'data: {"choices": "s3cret"}\n\n'),
            ("openai_compat", b'data: {"choices": [{"delta": {"con\n\n'),
            ("openai_compat", b'data: {"error": {"message": "s3cret"}}\n\n'),
            ("openai_compat", b"data: \xff\xfe\n\n"),
            ("ollama", b"<html>s3cret</html>\n"),
            ("ollama", b'{"error": "s3cret"}\n'),
            ("ollama", b'{"message": {"content": 7}}\n'),
        ],
    )
    async def test_of_garbage_is_invalid(self, upstream, adapter_on, sink, kind, body, is_stream):
        if not is_stream:
            body = body.removeprefix(b"data: ")
        fault = await self.fault(upstream, adapter_on, sink, kind, body, is_stream=is_stream)
        assert fault.code is Code.UPSTREAM_INVALID
        assert sink.events == []

    async def test_of_a_gigantic_event_is_invalid_and_not_held(self, upstream, adapter_on, sink):
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"data: ")
            while True:
                await conn.chunk(b"x" * 1_000_000)

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            with pytest.raises(Fault) as raised:
                await adapter.run(run_of(), sink)
        assert raised.value.code is Code.UPSTREAM_INVALID

    @pytest.mark.parametrize("kind", ["openai_compat", "ollama"])
    async def test_of_the_upstream_itself_goes_out_as_it_came(
        self, upstream, adapter_on, sink, kind
    ):
        async def script(conn):
            await conn.request()
            await conn.answer(b'{"error":"busy"}', "503 Busy", "Retry-After: 3\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, kind)
            await adapter.run(run_of(), sink)
        assert (sink.status, sink.body, sink.events) == (503, b'{"error":"busy"}', [])
        assert ("retry-after", "3") in sink.headers

    async def test_of_a_request_that_cannot_be_said_comes_before_the_start(self, adapter_on, sink):
        adapter = await adapter_on("http://127.0.0.1:9", "ollama")
        call = run_of(tools=TOOLS, tool_choice={"mode": "required"})
        with pytest.raises(Fault) as raised:
            await adapter.run(call, sink)
        assert raised.value.code is Code.UNSUPPORTED_FIELD
        assert sink.starts == 0


class TestPathsThatAnAdapterDoesNotHave:
    async def test_anthropic_translates_nothing(self, adapter_on, sink):
        adapter = await adapter_on("http://127.0.0.1:9", "anthropic")
        with pytest.raises(Fault) as raised:
            await adapter.run(run_of(), sink)
        assert raised.value.code is Code.UNSUPPORTED_BY_MODEL

    async def test_ollama_relays_nothing(self, adapter_on, call, sink):
        adapter = await adapter_on("http://127.0.0.1:9", "ollama")
        with pytest.raises(Fault) as raised:
            await adapter.tunnel(call(), sink)
        assert raised.value.code is Code.UNSUPPORTED_BY_MODEL


@pytest.mark.req("NODE-5")
@pytest.mark.parametrize(
    ("passed_on", "sent"),
    [((), "2023-06-01"), ((("Anthropic-Version", "2099-01-01"),), "2099-01-01")],
)
@pytest.mark.parametrize("operation", ["messages", "count_tokens"])
async def test_anthropic_is_always_told_a_version(
    upstream, adapter_on, call, sink, passed_on, sent, operation
):
    seen = []

    async def script(conn):
        seen.append(await conn.request())
        await conn.answer(b"{}")

    async with upstream(script).running() as server:
        adapter = await adapter_on(server.url, "anthropic")
        await adapter.tunnel(call(operation=operation, headers=passed_on), sink)
    assert seen[0].all("anthropic-version") == [sent]
    assert (
        seen[0].path
        == {
            "messages": "/v1/messages",
            "count_tokens": "/v1/messages/count_tokens",
        }[operation]
    )


@pytest.mark.req("NODE-10")
class TestAProbe:
    @pytest.mark.parametrize(
        ("status", "health", "reason"),
        [
            ("200 OK", "healthy", ""),
            ("404 Not Found", "degraded", "http_404"),
            ("503 Loading", "unavailable", "http_503"),
        ],
    )
    async def test_tells_how_the_upstream_is(
        self, upstream, adapter_on, probe_spec, status, health, reason
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.answer(b"x" * 100_000, status)

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, probe=probe_spec)
            assert adapter.probe_spec is probe_spec
            probe = await adapter.probe()
        assert (probe.health, probe.reason) == (health, reason)
        assert (seen[0].method, seen[0].path) == ("GET", "/health")

    async def test_of_an_upstream_that_is_down_says_so(self, upstream, adapter_on, probe_spec):
        async with upstream(None).running() as server:
            url = server.url
        adapter = await adapter_on(url, "ollama", probe=probe_spec)
        assert (await adapter.probe()).reason == "upstream_refused"

    async def test_of_an_upstream_that_is_silent_ends(self, upstream, adapter_on, probe_spec):
        async def script(conn):
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, probe=probe_spec)
            probe = await adapter.probe()
        assert (probe.health, probe.reason) == ("unavailable", "probe_timeout")

    async def test_is_not_there_unless_the_config_names_a_path(self, adapter_on):
        assert (await adapter_on("http://127.0.0.1:9")).probe_spec is None
