import json

import pytest

from iop_edge.runtime.work import ReportedUsage
from iop_edge.serve.dialect.answers import StreamAnswer
from iop_edge.serve.dialect.event_stream import EventStream
from iop_edge.serve.dialect.observers import (
    AnswerObserver,
    ChatObserver,
    MessagesObserver,
    ResponsesObserver,
)
from iop_shared.errors import Code, Fault


def through(observer: AnswerObserver, *events: dict[str, object]) -> bytes:
    stream = EventStream(observer, b'"mine"')
    raw = b"".join(
        b"event: %s\ndata: %s\n\n" % (str(e.get("type", "x")).encode(), json.dumps(e).encode())
        for e in events
    )
    return stream.feed(raw) + stream.end()


def test_the_last_report_of_usage_counts_and_none_are_added_up() -> None:
    observer = ChatObserver()
    for prompt, completion in ((5, 1), (5, 2), (6, 3)):
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        observer.event(json.dumps({"usage": usage}).encode())
    assert observer.usage == ReportedUsage(input_tokens=6, output_tokens=3)


def test_a_reported_zero_is_a_zero_and_null_is_no_report() -> None:
    observer = ChatObserver()
    assert observer.usage == ReportedUsage()
    observer.event(b'{"usage":{"prompt_tokens":0,"completion_tokens":0}}')
    assert observer.usage == ReportedUsage(input_tokens=0, output_tokens=0)
    observer.event(b'{"usage":null}')
    observer.event(b"{}")
    assert observer.usage == ReportedUsage(input_tokens=0, output_tokens=0)


@pytest.mark.parametrize(
    "usage", [b"7", b'"many"', b"[]", b'{"prompt_tokens":"5"}', b'{"prompt_tokens":-1}',
              b'{"prompt_tokens":1.5}', b'{"prompt_tokens":%s}' % (b"9" * 400)]
)  # fmt: skip
def test_what_is_no_number_of_tokens_is_no_report(usage: bytes) -> None:
    observer = ChatObserver()
    observer.event(b'{"usage":%s}' % usage)
    assert observer.usage == ReportedUsage()


def test_responses_ends_with_its_completed_response_which_reports_usage() -> None:
    observer = ResponsesObserver()
    released = through(
        observer,
        {"type": "response.created", "response": {"model": "served", "usage": None}},
        {"type": "response.output_text.delta", "delta": '"model": "served"'},
        {
            "type": "response.completed",
            "response": {
                "tools": [{"properties": {"model": "served"}}],
                "model": "served",
                "usage": {"input_tokens": 3, "output_tokens": 4},
            },
        },
    )
    assert observer.usage == ReportedUsage(input_tokens=3, output_tokens=4)
    assert released.count(b'"model": "mine"') == 2
    assert released.count(b'"model": "served"') == 1


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    ("observer", "marker"),
    [
        (ResponsesObserver, "response.completed"),
        (ResponsesObserver, "response.incomplete"),
        (ResponsesObserver, "response.failed"),
        (ResponsesObserver, "error"),
        (MessagesObserver, "message_stop"),
        (MessagesObserver, "error"),
    ],
)
def test_each_protocol_has_its_own_terminal_markers(
    observer: type[ResponsesObserver] | type[MessagesObserver], marker: str
) -> None:
    assert through(observer(), {"type": marker}).endswith(b"\n\n")
    with pytest.raises(Fault) as caught:
        through(observer(), {"type": "response.created"}, {"type": "message_delta"})
    assert caught.value.code is Code.UPSTREAM_CLOSED


def test_messages_reports_its_input_first_and_its_output_last() -> None:
    observer = MessagesObserver()
    released = through(
        observer,
        {
            "type": "message_start",
            "message": {"model": "served", "usage": {"input_tokens": 9, "output_tokens": 1}},
        },
        {"type": "ping"},
        {"type": "message_delta", "usage": {"output_tokens": 30}},
        {"type": "message_delta", "usage": {"output_tokens": 42}},
        {"type": "message_stop"},
    )
    assert observer.usage == ReportedUsage(input_tokens=9, output_tokens=42)
    assert b'"model": "mine"' in released
    assert b"served" not in released


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("observer", "answer"),
    [
        (ChatObserver(), b'{"choices":[]}'),
        (ResponsesObserver(), b'{"output":[]}'),
        (MessagesObserver(), b'{"content":[]}'),
        (MessagesObserver(), b'{"input_tokens":0}'),
    ],
)
def test_an_answer_is_known_by_what_every_answer_of_its_protocol_has(
    observer: AnswerObserver, answer: bytes
) -> None:
    assert observer.whole(answer) == b""
    for other in (b"{}", b'{"error":{}}', answer.partition(b":")[0] + b":null}"):
        with pytest.raises(Fault) as caught:
            observer.whole(other)
        assert caught.value.code is Code.UPSTREAM_INVALID


def test_a_null_model_stays_null() -> None:
    assert through(ChatObserver(), {"model": None}, {"error": "x"}).count(b'"model": null') == 1


@pytest.mark.parametrize(
    ("observer", "payload"),
    [
        (ChatObserver(), b'{"choices":"none","note":"\xff"}'),
        (MessagesObserver(), b'{"type":"content_block_delta","delta":5,"note":"\xff"}'),
        (MessagesObserver(), b'{"type":"content_block_start","content_block":{"text":"\xff"}}'),
    ],
    ids=["chat", "delta", "block"],
)
def test_text_that_is_no_utf8_in_an_unusual_event_is_the_upstreams_fault_and_not_ours(
    observer: AnswerObserver, payload: bytes
) -> None:
    with pytest.raises(Fault) as caught:
        observer.event(payload)
    assert caught.value.code is Code.UPSTREAM_INVALID


@pytest.mark.parametrize(
    ("observer", "payload", "has_failed"),
    [
        (ChatObserver(), b"[DONE]", False),
        (ChatObserver(), b'{"error":{"message":"no"}}', True),
        (ResponsesObserver(), b'{"type":"response.completed"}', False),
        (ResponsesObserver(), b'{"type":"response.incomplete"}', False),
        (ResponsesObserver(), b'{"type":"response.failed"}', True),
        (ResponsesObserver(), b'{"type":"error","message":"no"}', True),
        (MessagesObserver(), b'{"type":"message_stop"}', False),
        (MessagesObserver(), b'{"type":"error","error":{"type":"api_error"}}', True),
    ],
)
def test_a_stream_that_ends_with_the_upstreams_error_is_known_from_one_that_ends_well(
    observer: AnswerObserver, payload: bytes, has_failed: bool
) -> None:
    answer = StreamAnswer(observer, b'"mine"')
    assert answer.told_end is None
    answer.feed(b"data: " + payload + b"\n\n")
    assert answer.told_end == ("error:upstream_error" if has_failed else "completed")
