"""What a run has released, for as long as it may have to be continued (GATE-5).

One recorder for all attempts of a run. It holds the caller's text and nothing else does: it is
read once for each recovery, and what anybody else is told of it are numbers.
"""

from __future__ import annotations

from iop_edge.gate.evidence import Recorded, Said

_FOLDED_PIECES = 256
"""A short string takes many times its characters, so that pieces are joined from time to time."""


class _Text:
    """One channel's text, as it grows."""

    __slots__ = ("_folded", "_pieces")

    def __init__(self) -> None:
        self._folded: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        if len(self._pieces) >= _FOLDED_PIECES:
            self._fold()

    def clear(self) -> None:
        self._folded.clear()
        self._pieces.clear()

    def joined(self) -> str:
        self._fold()
        text = "".join(self._folded)
        self._folded = [text] if text else []
        return text

    def _fold(self) -> None:
        if self._pieces:
            self._folded.append("".join(self._pieces))
            self._pieces.clear()


class Recorder:
    """Released text by channel, up to `limit_chars`; past that nothing can be continued, and it
    keeps nothing."""

    __slots__ = (
        "_content", "_limit_chars", "_reasoning", "chars", "has_other", "has_tool_call", "is_full",
    )  # fmt: skip

    def __init__(self, limit_chars: int) -> None:
        self._limit_chars = limit_chars
        self._content = _Text()
        self._reasoning = _Text()
        self.chars = 0
        """Characters that were released, kept or not."""
        self.has_tool_call = False
        self.has_other = False
        """Something has been released that is not kept, because nothing here could tell it."""
        self.is_full = False

    def __repr__(self) -> str:
        return f"Recorder({self.chars} characters)"

    @property
    def is_empty(self) -> bool:
        """Nothing that a model said has been released."""
        return not (self.chars or self.has_tool_call or self.has_other)

    def add(self, said: Said) -> None:
        kind = said.kind
        if kind == "content" or kind == "reasoning":
            self.chars += len(said.text)
            if self.chars > self._limit_chars:
                self.is_full = True
                self._content.clear()
                self._reasoning.clear()
            elif kind == "content":
                self._content.add(said.text)
            else:
                self._reasoning.add(said.text)
        elif kind == "tool_call":
            self.has_tool_call = True
        elif kind == "other":
            self.has_other = True

    def recorded(self) -> Recorded:
        """All of it, joined."""
        return Recorded(self._content.joined(), self._reasoning.joined())
