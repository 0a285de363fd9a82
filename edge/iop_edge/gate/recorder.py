"""What a run has released, for as long as it may have to be continued (GATE-5).

One recorder for all attempts of a run. It holds the caller's text and nothing else does: it is
read once for each recovery, and what anybody else is told of it are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from iop_edge.gate.evidence import Piece, Recorded, Said, joined

_UNREAD = 64
"""What was released last is looked at together, and joined: a short string takes many times its
characters."""


class Recorder:
    """Released text by channel, up to `limit_chars`; past that nothing can be continued, and it
    keeps nothing."""

    __slots__ = (
        "_chars", "_content", "_has_other", "_has_tool_call", "_limit_chars", "_reasoning",
        "_unread",
    )  # fmt: skip

    def __init__(self, limit_chars: int) -> None:
        self._limit_chars = limit_chars
        self._unread: list[Said] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._chars = 0
        self._has_tool_call = self._has_other = False

    def __repr__(self) -> str:
        return f"Recorder({self.chars} characters)"

    def add(self, pieces: Iterable[Piece]) -> None:
        """All this has been released."""
        for piece in pieces:
            self._unread += piece.said
        if len(self._unread) >= _UNREAD:
            self._read()

    @property
    def chars(self) -> int:
        """Characters that were released, kept or not."""
        self._read()
        return self._chars

    @property
    def has_tool_call(self) -> bool:
        self._read()
        return self._has_tool_call

    @property
    def has_other(self) -> bool:
        """Something has been released that is not kept, because nothing here could tell it."""
        self._read()
        return self._has_other

    @property
    def is_full(self) -> bool:
        return self.chars > self._limit_chars

    @property
    def is_empty(self) -> bool:
        """Nothing that a model said has been released."""
        self._read()
        return not (self._chars or self._has_tool_call or self._has_other)

    def recorded(self) -> Recorded:
        """All of it, joined."""
        self._read()
        return Recorded("".join(self._content), "".join(self._reasoning))

    def _read(self) -> None:
        if not self._unread:
            return
        for one in joined(self._unread):
            if one.kind == "content":
                self._chars += len(one.text)
                self._content.append(one.text)
            elif one.kind == "reasoning":
                self._chars += len(one.text)
                self._reasoning.append(one.text)
            elif one.kind == "tool_call":
                self._has_tool_call = True
            elif one.kind == "other":
                self._has_other = True
        self._unread.clear()
        if self._chars > self._limit_chars:
            self._content.clear()
            self._reasoning.clear()
