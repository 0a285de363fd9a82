"""How many tokens a prompt has, before any tokenizer has seen it (POOL-4).

Two numbers out of the prompt's text. They are all that the edge knows, so that what is asked of
the pool and what a policy makes room for are the same:

- the *estimate*, one token for four bytes of UTF-8 (or `chars_per_token` characters), decides the
  context class;
- the *floor* decides refusals. No tokenizer in use lets a token reach over white space between
  words, and running text has fewer than six characters a token; so there is at least one token a
  word, and one for six characters that are no white space. What the floor refuses, the upstream
  would have refused.

Images and other data count nothing here: their tokens do not follow from their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members

BYTES_PER_TOKEN = 4.0
MOST_CHARS_PER_TOKEN = 6

_SPOKEN = ("messages", "input", "system", "instructions")
_DECLARED = ("tools", "functions")


class PromptTokens(NamedTuple):
    """`estimate` is never below `floor`."""

    estimate: int
    floor: int


class _Node(Struct):
    """Whatever holds text in a prompt of any protocol: a message, a part, a block, an item."""

    content: str | list[_Node] | None = None
    output: str | list[_Node] | None = None
    text: str | None = None
    thinking: str | None = None
    arguments: str | None = None
    input: Raw = Raw()
    tool_calls: Raw = Raw()


_nodes = msgspec.json.Decoder(str | list[_Node] | None).decode


def prompt_tokens(
    members: Members, chars_per_token: float | None, *, nearest_bound: int = 0
) -> PromptTokens:
    """Count the text of a request's prompt.

    Words are counted only where that many bytes could reach `nearest_bound` tokens at all; below,
    the floor is 0, which is as true and costs nothing.
    """
    size = sum(len(memoryview(members[name])) for name in _SPOKEN if name in members)
    declared = [bytes(members[name]).decode() for name in _DECLARED if name in members]
    size += sum(map(len, declared))
    per_token = chars_per_token or BYTES_PER_TOKEN
    if size < nearest_bound * min(per_token, 1.0):
        # Even one token a byte stays below. The structure around the text counts as text here.
        return PromptTokens(math.ceil(size / per_token), 0)
    try:
        spoken = [_nodes(members[name]) for name in _SPOKEN if name in members]
    except NOT_JSON:
        # A prompt of another form is the upstream's to refuse; it still has a size.
        return PromptTokens(math.ceil(size / per_token), 0)
    texts = [text for content in spoken for text in _within(content)]
    return text_tokens([*texts, *declared], chars_per_token)


def text_tokens(texts: Iterable[str], chars_per_token: float | None) -> PromptTokens:
    """Count what is given as text already."""
    chars = size = words = solid = 0
    for text in texts:
        chars += len(text)
        size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        split = text.split()
        words += len(split)
        solid += sum(map(len, split))
    floor = max(words, solid // MOST_CHARS_PER_TOKEN)
    guess = chars / chars_per_token if chars_per_token else size / BYTES_PER_TOKEN
    return PromptTokens(max(floor, math.ceil(guess)), floor)


def _within(content: str | list[_Node] | None) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for node in content or ():
        for text in (node.text, node.thinking, node.arguments):
            if text:
                yield text
        yield from _within(node.content)
        yield from _within(node.output)
        for raw in (node.input, node.tool_calls):
            if data := bytes(raw):
                yield data.decode()
