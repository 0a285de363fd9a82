"""What the gate weighs: the events of an answer, told apart by what they say."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Literal

from msgspec import Struct

Channel = Literal["content", "reasoning"]
"""Where a model's own text stands. Each is judged by itself."""


class Said(Struct, frozen=True, gc=False):
    """One thing that an event says.

    `content` and `reasoning`: a piece of text. `tool_call`: a fragment of the arguments of the
    call `call_index`; `call_id` and `name` stand at least in its first. `finish`: `text` is the
    reason: stop | length | tool_calls | content_filter. `other`: something that is none of these
    and that nothing here could say again, without its text.
    """

    kind: Literal["content", "reasoning", "tool_call", "finish", "other"]
    text: str
    call_index: int = 0
    call_id: str = ""
    name: str = ""


_TEXT = frozenset(("content", "reasoning"))


def joined(said: Iterable[Said]) -> tuple[Said, ...]:
    """The same, with the texts that follow each other on a channel in one."""
    out: list[Said] = []
    for kind, run in groupby(said, attrgetter("kind")):
        if kind in _TEXT:
            out.append(Said(kind, "".join([one.text for one in run])))
        else:
            out += run
    return tuple(out)


class Piece(Struct, frozen=True, gc=False):
    """One event of one attempt's answer, or several that came together and need not be told apart
    while none of them is held. Pieces go on to the caller in their order, or not at all.

    `said` is empty for what says nothing that the gate weighs (a beginning, usage, a marker).
    `raw` is what the caller would read, byte for byte; None where the event is not the caller's
    to see as it came (of an attempt that continues another, or cut by the gate), and is written
    anew from what it says.
    """

    said: tuple[Said, ...]
    raw: bytes | None = None

    def events(self) -> Iterable[Piece]:
        """Its events, each a piece by itself."""
        return (self,)


class Recorded(Struct, frozen=True):
    """What a run has released so far. Its repr tells lengths: the texts are the caller's."""

    content: str = ""
    reasoning: str = ""

    def __repr__(self) -> str:
        return f"Recorded(content={len(self.content)}, reasoning={len(self.reasoning)} characters)"
