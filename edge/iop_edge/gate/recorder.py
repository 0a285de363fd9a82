"""What a run has released, for as long as it may have to be continued (GATE-5).

One recorder for all attempts of a run. It holds the caller's text and nothing else does: it is
read once for each recovery, and what anybody else is told of it are numbers.
"""

from __future__ import annotations

from iop_edge.gate.evidence import Recorded, Said


class Recorder:
    """Released text by channel, up to `limit_chars`; past that nothing can be continued, and it
    keeps nothing."""

    __slots__ = ("_content", "_limit_chars", "_reasoning", "chars", "has_tool_call", "is_full")

    def __init__(self, limit_chars: int) -> None:
        self._limit_chars = limit_chars
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.chars = 0
        """Characters that were released, kept or not."""
        self.has_tool_call = False
        self.is_full = False

    def __repr__(self) -> str:
        return f"Recorder({self.chars} characters)"

    @property
    def has_content(self) -> bool:
        return bool(self._content)

    @property
    def is_empty(self) -> bool:
        """Nothing that a model said has been released."""
        return not self.chars and not self.has_tool_call

    def add(self, said: Said) -> None:
        if said.kind == "tool_call":
            self.has_tool_call = True
            return
        if said.kind == "finish" or not said.text:
            return
        self.chars += len(said.text)
        if self.chars > self._limit_chars:
            self.is_full = True
            self._content.clear()
            self._reasoning.clear()
        elif said.kind == "content":
            self._content.append(said.text)
        else:
            self._reasoning.append(said.text)

    def recorded(self) -> Recorded:
        """All of it, joined."""
        self._content[:] = ["".join(self._content)] if self._content else []
        self._reasoning[:] = ["".join(self._reasoning)] if self._reasoning else []
        return Recorded("".join(self._content), "".join(self._reasoning))
