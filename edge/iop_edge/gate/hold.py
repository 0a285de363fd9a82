"""The pieces that have arrived and may not go on yet, in their order.

A piece goes on when the texts of both channels are cleared up to its end and no tool call stands
before it that has not been judged. What is held is bounded, whatever an upstream sends. It knows
why nothing is let go, never what to do about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct, structs

from iop_edge.gate.evidence import Channel, Piece

MAX_HELD_CALL_CHARS = 1024 * 1024
"""Arguments of tool calls that are held until they can be judged; past it they go on unjudged."""

MAX_HELD_BYTES = 16 * 1024 * 1024
"""All that is held, as it came. Past it everything is let go, and calls are held no more."""

_PIECE_BYTES = 256
"""What a piece takes beside its bytes."""

_TEXT = ("content", "reasoning")


class _Held(Struct):
    """A piece, and where the two channels' texts end with it, in characters of the attempt."""

    piece: Piece
    text_chars: int
    content_end: int
    reasoning_end: int
    since: float
    is_behind_call: bool

    def end_of(self, channel: Channel) -> int:
        return self.content_end if channel == "content" else self.reasoning_end


class Hold:
    """One attempt's held pieces."""

    __slots__ = ("_bytes", "_call_chars", "_holds_calls", "chars", "is_for_calls", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Held] = deque()
        """What is held, the oldest first."""
        self._bytes = 0
        self._call_chars = 0
        self._holds_calls = True
        self.chars = 0
        """Characters of both channels that are held under suspicion; what stands behind a tool call
        apart."""
        self.is_for_calls = False
        """A tool call is held, and with it all that came after."""

    @property
    def is_full(self) -> bool:
        """More is held than may be."""
        return self._bytes > MAX_HELD_BYTES or self._call_chars > MAX_HELD_CALL_CHARS

    @property
    def since(self) -> float | None:
        """Since when the oldest is held that time may let go; None where there is none."""
        if not self.waiting or self.waiting[0].is_behind_call:
            return None
        return self.waiting[0].since

    def add(
        self,
        piece: Piece,
        content_end: int,
        reasoning_end: int,
        now: float,
        call_chars: int | None,
    ) -> None:
        """`call_chars`: the piece holds so much of a tool call, which is to be judged first."""
        if call_chars is not None and self._holds_calls:
            self.is_for_calls = True
            self._call_chars += call_chars
        text_chars = 0
        if not self.is_for_calls:
            text_chars = sum(len(one.text) for one in piece.said if one.kind in _TEXT)
        self.waiting.append(
            _Held(piece, text_chars, content_end, reasoning_end, now, self.is_for_calls)
        )
        self.chars += text_chars
        self._bytes += _size_of(piece)

    def cleared(self, content: int, reasoning: int) -> list[Piece]:
        """Take out what lies before these ends."""
        return self._take_while(
            lambda held: held.content_end <= content and held.reasoning_end <= reasoning
        )

    def held_for(self, timeout_s: float, now: float) -> list[Piece]:
        """Take out what has been held so long or longer: what is due at `since + timeout_s`."""
        return self._take_while(lambda held: held.since + timeout_s <= now)

    def cut(self, channel: Channel, end: int) -> list[Piece]:
        """Take out what lies before this end of a channel, the last piece cut there, and drop the
        rest."""
        out = self._take_while(lambda held: held.end_of(channel) <= end)
        if self.waiting and not (first := self.waiting[0]).is_behind_call:
            cut = _without_last(first.piece, channel, first.end_of(channel) - end)
            if cut.said:
                out.append(cut)
        self.drop()
        return out

    def _take_while(self, may_go: Callable[[_Held], bool]) -> list[Piece]:
        out: list[Piece] = []
        while self.waiting and not self.waiting[0].is_behind_call and may_go(self.waiting[0]):
            held = self.waiting.popleft()
            self.chars -= held.text_chars
            self._bytes -= _size_of(held.piece)
            out.append(held.piece)
        return out

    def drop(self) -> None:
        self.waiting.clear()
        self.chars = self._bytes = self._call_chars = 0
        self.is_for_calls = False

    def all(self) -> list[Piece]:
        out = [held.piece for held in self.waiting]
        self.drop()
        return out

    def give_up(self) -> list[Piece]:
        """Take out everything, and hold no tool call from now on."""
        self._holds_calls = False
        return self.all()


def _size_of(piece: Piece) -> int:
    size = sum(len(said.text) for said in piece.said) if piece.raw is None else len(piece.raw)
    return _PIECE_BYTES + size


def _without_last(piece: Piece, channel: Channel, surplus: int) -> Piece:
    """The piece without the last `surplus` characters of a channel, and without what it says
    after them."""
    lengths = [len(said.text) if said.kind == channel else 0 for said in piece.said]
    left = sum(lengths) - surplus
    kept = []
    for said, length in zip(piece.said, lengths, strict=True):
        if length > left:
            if left:
                kept.append(structs.replace(said, text=said.text[:left]))
            break
        kept.append(said)
        left -= length
    return structs.replace(piece, said=tuple(kept), raw=None)
