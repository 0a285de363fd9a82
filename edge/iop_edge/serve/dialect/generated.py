"""How many tokens an answer has, by its own text, where the upstream does not say.

The pieces of a stream are put together again before they are counted: a piece is mostly a part of
a word. What is held is bounded, and nothing of it is ever given out but its number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec

from iop_edge.pool.estimate import estimate_tokens
from iop_edge.serve.dialect.json_value import NOT_JSON

_FOLD_CHARS = 4_096
"""So much text at a time is counted and let go; a fold counts at most one token too many. Where it
lies depends on the text alone, so that its pieces may be added in any size."""

_SPOKEN = frozenset(
    {
        "content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "name",
        "arguments", "partial_json",
    }
)  # fmt: skip
"""Where any of the protocols has what a model wrote."""


class GeneratedText:
    """Counts the text of one answer as it passes."""

    __slots__ = ("_chars", "_fold_at_chars", "_folded_tokens", "_pieces")

    def __init__(self) -> None:
        self._chars = 0
        self._fold_at_chars = _FOLD_CHARS
        self._folded_tokens = 0
        self._pieces: list[str] = []

    def __repr__(self) -> str:
        return f"GeneratedText({self._chars} characters)"

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._chars += len(piece)
        if self._chars >= self._fold_at_chars:
            self._fold()

    def add_value(self, value: Any) -> None:
        """All that a model wrote in a decoded part of an answer, of whatever form it is."""
        for text in _texts(value):
            self.add(text)

    def add_body(self, body: bytes) -> None:
        """All that a model wrote in a whole answer."""
        try:
            answer = msgspec.json.decode(body)
        except NOT_JSON:
            return
        if isinstance(answer, dict):
            for key in ("choices", "output", "content"):
                self.add_value(answer.get(key))

    def tokens(self, chars_per_token: float | None = None) -> int:
        """An estimate; at least 1 where there is any text, and 0 where there is none.

        `chars_per_token` corrects it for a model that is known better, as for prompts (POOL-4).
        """
        if not self._chars:
            return 0
        if chars_per_token is not None:
            return ceil(self._chars / chars_per_token)
        return max(1, self._folded_tokens + self._count_pieces())

    def _fold(self) -> None:
        text = "".join(self._pieces)
        whole = len(text) - len(text) % _FOLD_CHARS
        for begin in range(0, whole, _FOLD_CHARS):
            self._folded_tokens += estimate_tokens([text[begin : begin + _FOLD_CHARS]]).estimate
        self._pieces = [text[whole:]]
        self._fold_at_chars += whole

    def _count_pieces(self) -> int:
        return estimate_tokens(["".join(self._pieces)]).estimate


def _texts(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left.extend(found)
        elif isinstance(found, dict):
            for key, inner in found.items():
                if key == "input":
                    # The arguments of a tool call, written out as JSON by the model.
                    yield msgspec.json.encode(inner).decode()
                elif isinstance(inner, dict | list):
                    left.append(inner)
                elif isinstance(inner, str) and key in _SPOKEN:
                    yield inner
