"""The guess and the bound, against plain definitions and against a real tokenizer's counts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo import model_server
from iop_edge.pool.estimate import estimate_tokens

SAMPLES = Path(__file__).parent / "samples"
KINDS = ("prose", "code", "json", "capitals")
SMOLLM2_TOKENS: dict[str, int] = json.loads((SAMPLES / "smollm2_tokens.json").read_text())


def sample(kind: str) -> str:
    return (SAMPLES / f"{kind}.txt").read_text()


def plainly(text: str) -> tuple[int, int]:
    """The same two numbers, counted with regular expressions over single characters."""
    octets = text.encode("utf-8", "surrogatepass")
    words = rb"[A-Za-z'\x80-\xff]"
    marks = rb"[!-/:-@\[-`{-~]"
    twentieths = (
        2 * len(re.findall(words, octets))
        + 4 * len(re.findall(marks, octets))
        + 4 * len(re.findall(rb"[\x80-\xff]", octets))
        + 3 * len(re.findall(rb"[A-Z]", octets))
        + 7 * len(re.findall(rb"[A-Z]+", octets))
        + 20 * len(re.findall(rb"[0-9]", octets))
        + 11 * len(re.findall(words + rb"+", octets))
        + 22 * len(re.findall(marks + rb"+", octets))
    )
    floor = len(re.findall(rb"[A-Za-z0-9'_\x80-\xff]+", octets))
    return max(ceil(twentieths / 20), floor), floor


@pytest.mark.req("POOL-4")
@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=200))
def test_it_counts_what_its_definition_says(text: str):
    assert estimate_tokens([text]) == plainly(text)


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize("length", [32_766, 32_767, 32_768, 32_769, 65_536, 65_537, 100_000])
@pytest.mark.parametrize("unit", ["a", "ab ", "x'y_1 ", "(né) "])
def test_nothing_is_lost_or_doubled_where_a_long_text_is_cut_for_counting(unit: str, length: int):
    text = (unit * length)[:length]
    assert estimate_tokens([text]) == plainly(text)


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize("kind", KINDS)
def test_the_guess_is_within_a_fifth_of_a_real_tokenizer(kind: str):
    tokens = SMOLLM2_TOKENS[kind]
    assert abs(estimate_tokens([sample(kind)]).estimate - tokens) <= tokens / 5


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_never_exceeds_what_a_real_tokenizer_makes_of_it(kind: str):
    assert 0 < estimate_tokens([sample(kind)]).floor <= SMOLLM2_TOKENS[kind]


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize(
    ("text", "at_least"),
    [
        ("", 0),
        ("one", 1),
        ("one two  three\n", 3),
        ("don't", 1),
        ("snake_case_name", 1),
        ("<h1>", 1),
        ("=" * 1000, 0),
        (" " * 1000, 0),
        ("a" * 1000, 1),
        ("今日は良い天気です", 1),
        ("Привет, мир", 2),
    ],
)
def test_the_floor_counts_only_what_no_tokenizer_can_join(text: str, at_least: int):
    assert estimate_tokens([text]).floor == at_least


@pytest.mark.req("POOL-4")
def test_texts_of_one_prompt_add_up_and_no_run_reaches_over_from_one_to_the_next():
    parts = ["Hello", "world", "", "42"]
    whole = estimate_tokens(parts)
    assert whole.floor == 3
    assert whole == estimate_tokens([" ".join(parts)])


@pytest.mark.req("CFG-15", "POOL-4")
def test_chars_per_token_replaces_the_guess_and_counts_characters_not_bytes():
    assert estimate_tokens(["ééééé" * 20], 2.5).estimate == 40
    assert estimate_tokens(["x " * 100], 4.0) == (100, 100), "never below the floor"


def test_a_lone_surrogate_is_counted_and_raises_nothing():
    assert estimate_tokens(["a\ud800b"]).floor == 1


@pytest.fixture
def tokenizer_url() -> Iterator[str]:
    if not model_server.can_run():
        pytest.skip("the model is not installed; `make model` installs it")
    command = [sys.executable, "-m", "demo.model_server", "--threads", "1", "--parallel", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["listening"]
        finally:
            server.terminate()


@pytest.mark.e2e
@pytest.mark.req("POOL-4")
def test_the_counts_of_the_samples_are_those_of_the_real_tokenizer(tokenizer_url: str):
    for kind, tokens in SMOLLM2_TOKENS.items():
        request = urllib.request.Request(
            f"{tokenizer_url}/tokenize",
            json.dumps({"content": sample(kind)}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert len(json.load(answer)["tokens"]) == tokens
