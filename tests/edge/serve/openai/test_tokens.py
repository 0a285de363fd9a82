import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.serve.dialect.request import Members, parse
from iop_edge.serve.openai.tokens import prompt_tokens


def members(**fields: Any) -> Members:
    return parse(json.dumps(fields, ensure_ascii=False).encode(), {})


WORDS = "hello " * 7000
PROMPTS = {
    "chat": {"messages": [{"role": "user", "content": WORDS}]},
    "chat in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]},
    "responses": {"input": WORDS},
    "responses in items": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": WORDS}]}]
    },
    "messages": {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]},
    "system": {"messages": [], "system": [{"type": "text", "text": WORDS}]},
    "instructions": {"input": "", "instructions": WORDS},
    "tool result": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": WORDS}]}]
    },
    "tool output": {"input": [{"type": "function_call_output", "call_id": "t", "output": WORDS}]},
}  # fmt: skip


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_the_same_text_counts_the_same_in_every_protocol(prompt: dict[str, Any]) -> None:
    found = prompt_tokens(members(**prompt), None)
    assert found.floor == 7000
    assert 7000 <= found.estimate <= 10_500


@pytest.mark.req("POOL-4")
def test_a_models_own_correction_takes_the_place_of_the_guess() -> None:
    prompt = members(messages=[{"role": "user", "content": "x" * 400}])
    assert prompt_tokens(prompt, 2.0).estimate == 200
    assert prompt_tokens(prompt, 80.0).estimate == 5


@pytest.mark.req("POOL-4")
def test_an_image_is_no_text() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    content = [
        {"type": "text", "text": "what is it"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    found = prompt_tokens(members(messages=[{"role": "user", "content": content}]), None)
    assert (found.floor, found.estimate < 10) == (3, True)
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}
    content = [{"type": "image", "source": source}]
    assert prompt_tokens(members(messages=[{"role": "user", "content": content}]), None) == (0, 0)


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize(
    "rest",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": "word " * 100}}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": WORDS}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "x": "word " * 100}]}]},
    ],
)
def test_what_a_server_may_leave_out_is_estimated_and_bounds_nothing(rest: dict[str, Any]) -> None:
    found = prompt_tokens(members(**({"messages": []} | rest)), None)
    assert found.floor == 0
    assert found.estimate > 100


def test_words_are_counted_only_where_a_decision_could_depend_on_it() -> None:
    prompt = members(**PROMPTS["chat"])
    assert prompt_tokens(prompt, None, nearest_bound=100_000).floor == 0
    assert prompt_tokens(prompt, None, nearest_bound=40_000).floor == 7000
    assert prompt_tokens(prompt, 0.25, nearest_bound=100_000).floor == 7000


def test_a_prompt_of_another_form_still_has_a_size() -> None:
    assert prompt_tokens(members(messages=[7, 8, 9]), None) == (3, 0)


@given(
    st.lists(st.text(max_size=60) | st.text("A.1,B", max_size=60), min_size=1, max_size=5),
    st.integers(1, 400),
    st.none() | st.floats(0.1, 50),
)
def test_a_prompt_below_the_nearest_bound_cannot_reach_it(
    texts: list[str], bound: int, chars: float | None
) -> None:
    prompt = members(messages=[{"role": "user", "content": text} for text in texts])
    exact = prompt_tokens(prompt, chars)
    quick = prompt_tokens(prompt, chars, nearest_bound=bound)
    assert exact.estimate >= exact.floor >= 0
    if quick != exact:
        assert exact.estimate < bound
        assert quick.estimate < bound
