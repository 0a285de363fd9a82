"""How many tokens a prompt has, before any tokenizer has seen it (POOL-4).

One place, so that what is asked of the pool and what a policy makes room for are the same number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from iop_edge.serve.dialect.request import Members

DEFAULT_CHARS_PER_TOKEN = 4.0

_PROMPT_FIELDS = ("messages", "input", "system", "instructions", "tools", "functions")


class PromptTokens(NamedTuple):
    """`estimate` decides the context class, `floor` is a bound that no tokenizer goes below."""

    estimate: int
    floor: int


def prompt_tokens(members: Members, chars_per_token: float | None) -> PromptTokens:
    """Count the bytes of the prompt's fields as they stand, and divide.

    The floor is 0: bytes alone prove nothing about a tokenizer whose tokens may be long.
    """
    size = sum(len(memoryview(members[name])) for name in _PROMPT_FIELDS if name in members)
    return PromptTokens(math.ceil(size / (chars_per_token or DEFAULT_CHARS_PER_TOKEN)), 0)
