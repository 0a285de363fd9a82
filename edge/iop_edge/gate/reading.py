"""One attempt's answer as the gate reads it: trimmed at its seam, judged, held, let go.

The order of judgement for each piece:

1. *Seam.* In an attempt that continues another, what only repeats the last released words is
   trimmed, and a second reasoning is dropped once an answer had begun.
2. *Repetition.* `repeat_guard` reads content and reasoning. Where it blocks, what is under
   suspicion is held, at most its rune bound (and the piece that fills it) and its time limit.
3. *Tool calls* are held to the answer's end, to be judged there.

Where nothing is held, a piece goes on in the call that brought it. What is done about a finding
is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, structs

from iop_edge.gate.evidence import Channel, Piece, Recorded, Said
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.hold import Hold
from iop_edge.gate.repeat import Loop, RepeatGuard
from iop_edge.gate.seam import Seam
from iop_edge.gate.tool_calls import ToolCalls, ToolFault

_CHANNELS: tuple[Channel, ...] = ("reasoning", "content")
_CUT_SHORT = ("length", "content_filter")
_HISTORY_BOUNDS = 4
"""How many rune bounds of what was released the guard of a later attempt has read."""


class Repetition(Struct, frozen=True):
    """A loop that was found, `offset` characters into what this attempt says on a channel: what
    was released before the attempt is not counted, and a loop that began in it is at 0."""

    channel: Channel
    loop: Loop
    offset: int
    is_blocking: bool


class _Watch(RepeatGuard):
    """One channel's guard, which has read the end of what earlier attempts released."""

    def __init__(self, bound_runes: int, history: str, key: bytes) -> None:
        super().__init__(bound_runes, key=key)
        self._history_chars = 0
        if history:
            history = history[-_HISTORY_BOUNDS * bound_runes :]
            if self.feed(history) is None:
                self._history_chars = len(history)
            else:
                # What the caller has read already is no finding of this attempt.
                super().__init__(bound_runes, key=key)

    @property
    def end(self) -> int:
        """Characters of this attempt that it has read."""
        return self.seen - self._history_chars

    def offset_of(self, place: int) -> int:
        """Where that is in what this attempt says; what lies before that is at its beginning."""
        return max(0, place - self._history_chars)


class Reading:
    """Feed pieces with `take`; `end` once. What comes out may go on to the caller.

    `told` is what earlier attempts released; None for an attempt that begins the answer.
    `holds_calls`: a repair is left for tool calls, so they are worth holding. `repetitions` are
    those that were found since the list was last emptied; after a blocking one nothing comes out
    any more. `hold` is for looking at.
    """

    def __init__(
        self,
        filters: Sequence[FilterAt],
        told: Recorded | None,
        tool_schemas: Mapping[str, bytes],
        *,
        holds_calls: bool,
        key: bytes,
    ) -> None:
        self.hold = Hold()
        self._calls = ToolCalls(tool_schemas)
        self._is_cut_short = False
        self.has_finished = False
        """The model has said that its answer is complete."""
        self.has_other = False
        """Something was said that nothing here could say again."""
        self._holds_calls = holds_calls
        self._drops_reasoning = told is not None and bool(told.content)
        self._seams = (
            {}
            if told is None
            else {"content": Seam(told.content), "reasoning": Seam(told.reasoning)}
        )
        self._told = told or Recorded()
        self._key = key
        self._bound_runes = 0  # No guard.
        self._is_blocking = False
        self._timeout_s = 0.0
        self._watches: dict[Channel, _Watch] = {}  # From the first text of a channel.
        self._speaking: Channel | None = None
        self.repetitions: list[Repetition] = []
        for one in filters:
            if one.name == "repeat_guard" and one.is_enabled:
                self._bound_runes = one.hold_evidence_runes
                self._is_blocking, self._timeout_s = one.is_blocking, one.timeout_s

    @property
    def deadline(self) -> float | None:
        """When `expire` is due; None while nothing is held that time lets go."""
        since = self.hold.since
        return None if since is None else since + self._timeout_s

    @property
    def watched_chars(self) -> int:
        """Characters that the guard has read of this attempt."""
        return sum(watch.end for watch in self._watches.values())

    @property
    def trimmed_chars(self) -> int:
        return sum(seam.trimmed for seam in self._seams.values())

    @property
    def call_count(self) -> int:
        return self._calls.count

    def take(self, pieces: Sequence[Piece], now: float) -> Sequence[Piece]:
        """What came at once is read at once: the guard's verdict is on the text, not on how it
        was cut."""
        if self._seams:
            pieces = self._after_seams(pieces)
            if self.repetitions and self._is_blocking:
                self.hold.drop()
                return ()
        # What is not cleared is held: while nothing is, all that was read before is cleared.
        may_go = not self.hold.waiting
        for piece in pieces:
            for said in piece.said:
                kind = said.kind
                if kind == "content" or kind == "reasoning":
                    self._speaking = kind
                    self.has_finished = False
                    if self._bound_runes:
                        watch = self._watches.get(kind) or self._watch(kind)
                        loop = watch.feed(said.text)
                        if loop is not None:
                            self._found(kind, watch, loop)
                        if watch.suspects and self._is_blocking:
                            may_go = False
                elif kind == "tool_call":
                    self._speaking = None
                    self._calls.add(said)
                    may_go = may_go and not self._holds_calls
                elif kind == "finish":
                    self._speaking = None
                    self.has_finished = True
                    self._is_cut_short = said.text in _CUT_SHORT
                else:
                    self.has_other = True
        return pieces if may_go else self._hold_back(pieces, now)

    def expire(self, now: float) -> Sequence[Piece]:
        """What has been held for as long as it may."""
        return self.hold.held_for(self._timeout_s, now)

    def end(self, now: float) -> Sequence[Piece]:
        """The answer is complete: what a seam still held, as far as it may go on. The rest is for
        `verdict` and `rest`."""
        said = tuple(self._flushed()) if self._seams else ()
        return self.take((Piece(said),), now) if said else ()

    def verdict(self) -> ToolFault | None:
        """What is wrong with the tool calls that are held; None where nothing is, or is known.

        An answer that its limit or a filter of its upstream cut short is not judged: it would be
        cut again."""
        if self._is_cut_short or not self.hold.is_for_calls:
            return None
        return self._calls.verdict()

    def rest(self) -> list[Piece]:
        """Everything that is held: nothing is wrong with it after all."""
        return self.hold.all()

    # ------------------------------------------------------------------------------------------

    def _hold_back(self, pieces: Sequence[Piece], now: float) -> Sequence[Piece]:
        """Hold these behind what is held; what of all that may go on."""
        pieces = [event for piece in pieces for event in piece.events()]
        content_end = self._end("content") - _chars(pieces, "content")
        reasoning_end = self._end("reasoning") - _chars(pieces, "reasoning")
        for piece in pieces:
            call_chars = None
            for said in piece.said:
                size = len(said.text)
                if said.kind == "content":
                    content_end += size
                elif said.kind == "reasoning":
                    reasoning_end += size
                elif said.kind == "tool_call" and self._holds_calls:
                    call_chars = (call_chars or 0) + size
            self.hold.add(piece, content_end, reasoning_end, now, call_chars)
        if self.repetitions and self._is_blocking:
            found = self.repetitions[0]
            return self.hold.cut(found.channel, found.offset)
        if self.hold.is_full:
            return self.hold.give_up()
        return self.hold.cleared(
            self._cleared("content", content_end), self._cleared("reasoning", reasoning_end)
        )

    def _watch(self, channel: Channel) -> _Watch:
        told = self._told.content if channel == "content" else self._told.reasoning
        watch = self._watches[channel] = _Watch(self._bound_runes, told, self._key)
        return watch

    def _found(self, channel: Channel, watch: _Watch, loop: Loop) -> None:
        at = watch.offset_of(loop.kept)
        self.repetitions.append(Repetition(channel, loop, at, self._is_blocking))

    def _end(self, channel: Channel) -> int:
        watch = self._watches.get(channel)
        return 0 if watch is None else watch.end

    def _cleared(self, channel: Channel, end: int) -> int:
        """Suspicion is of a channel that still speaks: what another follows is no loop any more, or
        is found where the channel goes on."""
        watch = self._watches.get(channel)
        if watch is None or watch.is_done or not self._is_blocking or channel != self._speaking:
            return end
        return watch.offset_of(watch.cleared)

    def _after_seams(self, pieces: Sequence[Piece]) -> list[Piece]:
        trimmed = (
            Piece(tuple(self._trimmed(piece.said))) if piece.said else piece for piece in pieces
        )
        return [piece for piece in trimmed if piece.said or piece.raw is not None]

    def _trimmed(self, said: Sequence[Said]) -> Iterator[Said]:
        for one in said:
            if one.kind == "reasoning" and self._drops_reasoning:
                self._read_unheard(one.text)
                continue
            seam = self._seams.get(one.kind)
            yield from self._flushed(but=seam)
            if seam is None:
                yield one
            elif text := seam.feed(one.text):
                yield structs.replace(one, text=text)

    def _read_unheard(self, text: str) -> None:
        """Reasoning that the caller is not told may loop as well, and then no answer comes."""
        if self._bound_runes:
            watch = self._watches.get("reasoning") or self._watch("reasoning")
            loop = watch.feed(text)
            if loop is not None:
                self._found("reasoning", watch, loop)

    def _flushed(self, but: Seam | None = None) -> Iterator[Said]:
        """What the seams still hold, when something else follows or the answer ends."""
        for channel in _CHANNELS:
            seam = self._seams[channel]
            if seam is not but and seam.has_begun and (text := seam.end()):
                yield Said(channel, text)


def _chars(pieces: Sequence[Piece], channel: Channel) -> int:
    return sum(len(said.text) for piece in pieces for said in piece.said if said.kind == channel)
