"""Requests of the three protocols as runs."""

import base64
import json
from typing import Any

import pytest

from iop.runtime_pb2 import RunRequest
from iop_edge.serve.dialect.caller_protocols import CHAT, MESSAGES, RESPONSES, CallerProtocol
from iop_edge.serve.dialect.normalized import chat, messages, responses
from iop_edge.serve.dialect.request import parse
from iop_shared.errors import Code, Fault

RENDER = {
    "chat": chat.run_request, "responses": responses.run_request, "messages": messages.run_request,
}  # fmt: skip
HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PNG = base64.b64encode(b"\x89PNG").decode()
PNG_URL = f"data:image/png;base64,{PNG}"
CALL = {"name": "f", "arguments": '{"a":1}'}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}


def rendered(protocol: CallerProtocol, **fields: Any) -> RunRequest:
    body = {"model": "m", **fields}
    if protocol is not RESPONSES:
        body.setdefault("messages", [HELLO])
    return RENDER[protocol.surface](parse(json.dumps(body).encode(), protocol.fields))


def refusal(protocol: CallerProtocol, **fields: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        rendered(protocol, **fields)
    return caught.value


def said(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def shape(run: RunRequest) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(part.text for part in message.parts)) for message in run.messages
    ]


@pytest.mark.req("POOL-14")
def test_options_keep_their_values_and_what_was_not_asked_stays_unset() -> None:
    run = rendered(CHAT, max_tokens=9, temperature=0, top_k=3, seed=-1, stop="x", user="me")
    assert (run.options.max_tokens, run.options.temperature, run.options.top_k) == (9, 0.0, 3)
    assert run.options.HasField("temperature")
    assert not run.options.HasField("top_p")
    assert (run.options.seed, list(run.options.stop)) == (-1, ["x"])
    assert rendered(CHAT, max_tokens=9, max_completion_tokens=5).options.max_tokens == 5
    assert rendered(RESPONSES, input="x", max_output_tokens=5).options.max_tokens == 5
    assert list(rendered(MESSAGES, stop_sequences=["a", "b"]).options.stop) == ["a", "b"]


@pytest.mark.req("POOL-14")
def test_a_conversation_with_tools_comes_out_the_same_from_all_three_protocols() -> None:
    from_chat = rendered(
        CHAT,
        messages=[
            {"role": "developer", "content": "be kind"},
            HELLO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "t", "type": "function", "function": CALL}],
            },
            {"role": "tool", "tool_call_id": "t", "content": "2"},
        ],
        tools=[{"type": "function", "function": FUNCTION}],
        tool_choice={"type": "function", "function": {"name": "f"}},
    )
    from_responses = rendered(
        RESPONSES,
        instructions="be kind",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "t", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "t", "output": "2"},
        ],
        tools=[{"type": "function", **FUNCTION}],
        tool_choice={"type": "function", "name": "f"},
    )
    from_messages = rendered(
        MESSAGES,
        system=[{"type": "text", "text": "be kind"}],
        messages=[
            HELLO,
            said("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}),
            said("user", {"type": "tool_result", "tool_use_id": "t", "content": "2"}),
        ],
        tools=[{"name": "f", "description": "d", "input_schema": SCHEMA}],
        tool_choice={"type": "tool", "name": "f"},
    )
    for run in (from_chat, from_responses, from_messages):
        assert shape(run) == [
            ("system", "be kind"), ("user", "hello"), ("assistant", ""), ("tool", "2"),
        ]  # fmt: skip
        (called,) = run.messages[2].tool_calls
        assert (called.id, called.name, json.loads(called.arguments_json)) == ("t", "f", {"a": 1})
        assert run.messages[3].tool_call_id == "t"
        assert json.loads(run.tools[0].parameters_json) == SCHEMA
        assert (run.tools[0].name, run.tools[0].description) == ("f", "d")
        assert (run.tool_choice.mode, run.tool_choice.name) == ("named", "f")


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize(
    ("protocol", "field", "block"),
    [
        (CHAT, "messages", {"type": "image_url", "image_url": {"url": PNG_URL}}),
        (RESPONSES, "input", {"type": "input_image", "image_url": PNG_URL}),
        (
            MESSAGES,
            "messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
    ],
)
def test_an_image_travels_as_its_bytes(
    protocol: CallerProtocol, field: str, block: dict[str, Any]
) -> None:
    run = rendered(protocol, **{field: [said("user", block)]})
    image = run.messages[0].parts[0].image
    assert (image.media_type, image.content) == ("image/png", b"\x89PNG")


@pytest.mark.req("POOL-14")
def test_a_format_of_the_answer_is_kept() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    flat = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    for run in (rendered(CHAT, response_format=wanted), rendered(RESPONSES, input="x", text=flat)):
        assert (run.response_format.kind, run.response_format.name) == ("json_schema", "n")
        assert json.loads(run.response_format.schema_json) == SCHEMA
    assert (
        rendered(CHAT, response_format={"type": "json_object"}).response_format.kind
        == "json_object"
    )


@pytest.mark.req("OAI-2")
def test_a_thinking_budget_is_kept_and_none_is_told_as_zero() -> None:
    enabled = rendered(MESSAGES, thinking={"type": "enabled", "budget_tokens": 1024})
    assert enabled.options.thinking_token_budget == 1024
    disabled = rendered(MESSAGES, thinking={"type": "disabled"})
    assert disabled.options.HasField("thinking_token_budget")
    assert disabled.options.thinking_token_budget == 0
    assert not rendered(MESSAGES).options.HasField("thinking_token_budget")


@pytest.mark.req("POOL-14", "OAI-5")
@pytest.mark.parametrize(
    ("protocol", "fields", "param"),
    [
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"guided_json": {}}, "guided_json"),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"top_k": -1}, "top_k"),
        (CHAT, {"tools": [{"type": "web_search"}]}, "tools"),
        (CHAT, {"tool_choice": "sometimes"}, "tool_choice"),
        (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
         "tool_choice"),
        (CHAT, {"response_format": {"type": "grammar"}}, "response_format"),
        (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://10.0.0.7/a.png"}}]}]},
            "messages",
        ),
        (RESPONSES, {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"input": "x", "background": True}, "background"),
        (RESPONSES, {"input": "x", "reasoning": {"effort": "low"}}, "reasoning"),
        (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        (RESPONSES, {"input": [{"type": "computer_call"}]}, "input"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools"),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, "thinking"),
        (MESSAGES, {"mcp_servers": []}, "mcp_servers"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_express_is_refused_by_name(
    protocol: CallerProtocol, fields: dict[str, Any], param: str
) -> None:
    fault = refusal(protocol, **fields)
    assert (fault.code, fault.param) == (Code.UNSUPPORTED_FIELD, param)


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"logprobs": False},
        {"parallel_tool_calls": True},
        {"user": "me", "metadata": {"a": "b"}, "store": False},
        {"stream_options": {"include_usage": True}},
        {"reasoning_effort": None},
    ],
)
def test_a_value_that_says_nothing_is_no_obstacle(fields: dict[str, Any]) -> None:
    assert shape(rendered(CHAT, **fields)) == [("user", "hello")]


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": {"canary": "canary"}}]}),
        (CHAT, {"tools": [{"type": "function", "function": {"canary": 1}}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": "canary"}]}),
        (RESPONSES, {"input": [{"content": 5, "role": "canary"}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": 7}]}]}),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "data": "canary!"}}]}]},
        ),
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused_with_their_place_and_without_their_text(
    protocol: CallerProtocol, fields: dict[str, Any]
) -> None:
    fault = refusal(protocol, **fields)
    assert fault.code is Code.INVALID_VALUE
    assert fault.param == next(iter(fields))
    assert "canary" not in fault.message


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("fields", [{}, {"input": []}, {"instructions": "be brief"}])
def test_a_response_to_nothing_is_refused_before_an_upstream_is_asked(
    fields: dict[str, Any],
) -> None:
    fault = refusal(RESPONSES, **fields)
    assert (fault.code, fault.param) == (Code.INVALID_VALUE, "input")
