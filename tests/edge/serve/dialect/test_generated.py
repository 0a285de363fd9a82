import json

import pytest

from iop_edge.pool.estimate import estimate_tokens
from iop_edge.serve.dialect.generated import GeneratedText
from iop_edge.serve.dialect.observers import (
    AnswerObserver,
    ChatObserver,
    MessagesObserver,
    ResponsesObserver,
)

WORDS = "The tide comes in twice a day, and nobody has to ask it to. "


def of_words(times: int) -> int:
    return estimate_tokens([WORDS * times]).estimate


def chat(delta: object, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, **more}]}


@pytest.mark.parametrize("size", [1, 3, 7, 4096, 10_000])
def test_text_is_counted_alike_in_pieces_of_any_size(size: int) -> None:
    text = WORDS * 300
    generated = GeneratedText()
    for at in range(0, len(text), size):
        generated.add(text[at : at + size])
    whole = GeneratedText()
    whole.add(text)
    assert generated.tokens() == whole.tokens()
    # Where it is folded, a word may be counted on both sides.
    assert of_words(300) <= generated.tokens() <= of_words(300) + len(text) // 4096 + 1


def test_no_text_is_no_token_and_any_text_at_least_one() -> None:
    generated = GeneratedText()
    generated.add("")
    assert generated.tokens() == generated.tokens(3.0) == 0
    generated.add(" ")
    assert generated.tokens() == generated.tokens(3.0) == 1


def test_a_model_that_is_known_better_is_counted_by_its_characters() -> None:
    generated = GeneratedText()
    generated.add("x" * 9_000)
    assert generated.tokens(3.0) == 3_000


def test_long_answers_are_not_held() -> None:
    generated = GeneratedText()
    for _ in range(10_000):
        generated.add(WORDS)
    assert len(generated._pieces) < 100
    assert "tide" not in repr(generated)


@pytest.mark.parametrize(
    ("observer", "events"),
    [
        (ChatObserver, [chat({"role": "assistant", "content": WORDS})]),
        (ChatObserver, [chat({"content": WORDS[:9]}), chat({"content": WORDS[9:]})]),
        (ChatObserver, [chat({"reasoning_content": WORDS, "reasoning": WORDS, "content": ""})]),
        (ChatObserver, [chat({"content": None, "refusal": WORDS}, logprobs={"content": "x"})]),
        (
            ChatObserver,
            [chat({"tool_calls": [{"index": 0, "function": {"name": "", "arguments": WORDS}}]})],
        ),
        # Content in parts is no form that OpenAI streams, and is text all the same.
        (ChatObserver, [chat({"content": [{"type": "text", "text": WORDS}]})]),
        (ResponsesObserver, [{"type": "response.output_text.delta", "delta": WORDS}]),
        (ResponsesObserver, [{"type": "response.reasoning_text.delta", "delta": WORDS}]),
        (ResponsesObserver, [{"type": "response.function_call_arguments.delta", "delta": WORDS}]),
        (
            MessagesObserver,
            [
                {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": WORDS}},
            ],
        ),
        (
            MessagesObserver,
            [{"type": "content_block_delta", "delta": {"thinking": WORDS}}],
        ),
        (
            MessagesObserver,
            [
                {"type": "content_block_start", "content_block": {"name": "", "input": {}}},
                {"type": "content_block_delta", "delta": {"partial_json": WORDS}},
            ],
        ),
        (MessagesObserver, [{"type": "content_block_delta", "delta": {"text": [{"text": WORDS}]}}]),
    ],
)  # fmt: skip
@pytest.mark.req("OAI-1")
def test_what_a_stream_says_is_counted_in_every_protocol(
    observer: type[ChatObserver | ResponsesObserver | MessagesObserver],
    events: list[dict[str, object]],
) -> None:
    seen: AnswerObserver = observer()
    for event in events:
        seen.event(json.dumps(event).encode())
    assert seen.generated.tokens() == of_words(1)


@pytest.mark.parametrize(
    ("observer", "events"),
    [
        (ChatObserver, [{"choices": None}, {"choices": []}, chat(None), chat({"role": "user"})]),
        (ResponsesObserver, [{"type": "response.audio.delta", "delta": WORDS}, {"delta": WORDS}]),
        (ResponsesObserver, [{"type": "response.output_text.delta", "delta": {"text": WORDS}}]),
        (ResponsesObserver, [{"type": "response.output_text.done", "text": WORDS}]),
        (
            MessagesObserver,
            [
                {"type": "message_start", "message": {"content": [], "model": "m"}},
                {"type": "content_block_delta", "delta": {"signature": WORDS}},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            ],
        ),
    ],
)  # fmt: skip
def test_what_no_model_wrote_is_not_counted(
    observer: type[ChatObserver | ResponsesObserver | MessagesObserver],
    events: list[dict[str, object]],
) -> None:
    seen: AnswerObserver = observer()
    for event in events:
        seen.event(json.dumps(event).encode())
    assert seen.generated.tokens() == 0


@pytest.mark.parametrize(
    ("observer", "body"),
    [
        (ChatObserver, {"choices": [{"message": {"role": "assistant", "content": WORDS}}]}),
        (ResponsesObserver, {"output": [{"type": "message", "content": [{"text": WORDS}]}]}),
        (MessagesObserver, {"role": "assistant", "content": [{"type": "text", "text": WORDS}]}),
    ],
)
def test_a_whole_answer_is_counted_where_its_usage_is_not_reported(
    observer: type[ChatObserver | ResponsesObserver | MessagesObserver], body: dict[str, object]
) -> None:
    seen: AnswerObserver = observer()
    seen.whole(json.dumps(body).encode())
    assert seen.generated.tokens() == of_words(1)


def test_a_message_that_was_cut_has_no_output_reported_by_its_beginning() -> None:
    observer = MessagesObserver()
    usage = {"input_tokens": 9, "output_tokens": 1}
    observer.event(json.dumps({"type": "message_start", "message": {"usage": usage}}).encode())
    assert (observer.usage.input_tokens, observer.usage.output_tokens) == (9, None)
    observer.event(b'{"type":"message_stop"}')
    assert (observer.usage.input_tokens, observer.usage.output_tokens) == (9, 1)
