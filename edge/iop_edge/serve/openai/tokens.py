"""Which text of a caller's request is its prompt, and how many tokens that has (POOL-4).

The counting itself is `iop_edge.pool.estimate`'s; here is decided what is counted. The estimate
counts all that a model may be given to read: messages, tool calls, tools. The floor counts only
what it is certainly given, the text of messages: servers render tools as they like, and leave the
reasoning of earlier turns out. Images and other data count nothing: their tokens do not follow
from their bytes.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Raw, Struct

from iop_edge.pool.estimate import TokenEstimate, estimate_tokens
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members

_BYTES_PER_TOKEN = 4.0
"""Only for prompts so short that nothing depends on their count."""

_MOST_TOKENS_PER_BYTE = 2
"""No class of bytes weighs more in the estimate."""

_SPOKEN = ("messages", "input", "system", "instructions")
_DECLARED = ("tools", "functions")
_PROMPT = frozenset((*_SPOKEN, *_DECLARED))


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
) -> TokenEstimate:
    """Count the text of a request's prompt.

    Text is looked at only where that many bytes could reach `nearest_bound` tokens at all; below,
    the floor is 0, which is as true and costs nothing.
    """
    size = 0
    for name in members.keys() & _PROMPT:
        size += len(memoryview(members[name]))
    per_token = chars_per_token or _BYTES_PER_TOKEN
    guess = TokenEstimate(math.ceil(size / per_token), 0)
    if size < nearest_bound * min(chars_per_token or 1.0, 1 / _MOST_TOKENS_PER_BYTE):
        return guess
    try:
        spoken = [_nodes(members[name]) for name in _SPOKEN if name in members]
    except NOT_JSON:
        # A prompt of another form is the upstream's to refuse; it still has a size.
        return guess
    certain: list[str] = []
    likely = [bytes(members[name]).decode() for name in _DECLARED if name in members]
    for content in spoken:
        _collect(content, certain, likely)
    floor = estimate_tokens(certain).floor
    estimate = estimate_tokens([*certain, *likely], chars_per_token).estimate
    return TokenEstimate(max(estimate, floor), floor)


def _collect(content: str | list[_Node] | None, certain: list[str], likely: list[str]) -> None:
    if isinstance(content, str):
        certain.append(content)
        return
    for node in content or ():
        if node.text:
            certain.append(node.text)
        likely += [text for text in (node.thinking, node.arguments) if text]
        likely += [bytes(raw).decode() for raw in (node.input, node.tool_calls) if bytes(raw)]
        _collect(node.content, certain, likely)
        _collect(node.output, certain, likely)
