"""When a model has begun to loop: the detector of degenerate repetition (GATE-4).

It decides at which character an answer stopped saying anything new. It must never know whose
answer it is, what is done about a loop, nor the time: its whole world is one channel's text, that
comes in pieces of any size.

How it decides. The text is followed in steps of four characters, wherever its pieces were cut.

1. Where the last twelve characters stand in the recent past already, a repeat begins: a stretch
   that reads like what stood `lag` characters before. It is traced back to where it began.
2. As long as the text goes on like its past, the repeat grows. Where it stops doing so, another
   place of the past is sought that it goes on like (two sentences that take turns).
3. What stands nowhere is new. A repeat bears a very little of it (a word changed), or ends.
4. A repeat is a loop once it is longer than what its texture may innocently repeat (`texture`).
"""

from __future__ import annotations

from msgspec import Struct

from iop_edge.gate.fingerprint import fingerprint
from iop_edge.gate.numbering import NUMBER, Numbering
from iop_edge.gate.texture import (
    VARIED_UNITS,
    has_letters,
    texture,
    varied_proof,
    verbatim_proof,
)

_STEP = 4
_GRAM = 12
"""Characters that must stand in the past already to raise a suspicion."""
UNSEEN_START = _GRAM + _STEP - 1
"""Characters of a second occurrence that pass at most before a suspicion is raised."""

_PAST_BOUNDS = 4
_LONGEST_PAST = 2048
_SHORTEST_PAST = 64
_TRACED = 512
"""Characters that a repeat is traced back at most when it is found."""
_TOLD = 24
"""Characters of a repeat from which on its texture can be told."""
_TRACE_STEP = 64
_SLICE = 512

_NEW_AT_ONCE = 3
_NEW_SHARE = 12
_NEW_SHARE_OF_A_LOOP = 20
_DRIFT = 3
"""Characters by which a lag may change, with nothing new, and be the same: blanks, 9 to 10."""
_TURN_WEIGHT = 2
"""Old pieces in a new order say something too: the cases of a puzzle."""
_DIGIT_WEIGHT = 3
"""A changed number says more than its length: the days of a log, the bottles on a wall."""


class Loop(Struct, frozen=True):
    """Degenerate repetition, found. Offsets and lengths in characters of the channel.

    `kept` is where the first occurrence ends, or what was let through by then (at most
    `UNSEEN_START` more for a unit that the bound holds): nothing after it should be released.
    `period` is the length of the unit, of the last one where it varies, `count` how often it was
    seen, `fingerprint` the keyed name of it.
    """

    kept: int
    period: int
    count: int
    fingerprint: str


class _Repeat:
    """A stretch of text that reads like its own past. Offsets in characters of the channel."""

    __slots__ = ("gap", "lag", "new", "part", "proof", "since", "varied_proof", "weighed_lags")

    def __init__(self, since: int, lag: int) -> None:
        self.since = since
        self.part = since  # Where the part began that follows this one lag.
        self.lag = lag
        self.gap: int | None = None  # Where something new began that has not ended yet.
        self.new = 0  # What was new in it so far, in characters or their worth.
        self.weighed_lags = 0  # Sum over the parts before this one: their length times their lag.
        self.proof: int | None = None  # What this part must come to. None: not told yet.
        self.varied_proof: int | None = None

    def turn(self, since: int, lag: int, new: int) -> None:
        """It goes on, like another place of the past."""
        if new or abs(lag - self.lag) > _DRIFT:
            ended = since if self.gap is None else min(self.gap, since)
            self.weighed_lags += max(0, ended - self.part) * self.lag
            self.since = min(self.since, since)
            self.part = since
            self.proof = None
            self.new += max(_TURN_WEIGHT, new)
        self.lag = lag
        self.gap = None

    def forget_its_turns(self) -> None:
        """Only the part that it follows now still counts."""
        self.since = self.part
        self.new = 0
        self.weighed_lags = 0

    def bears(self, at: int) -> int:
        """How much of what comes may still be new."""
        return _NEW_AT_ONCE + (at - self.since) // _NEW_SHARE - self.new


class RepeatGuard:
    """Follows one channel of one run and finds where it loops, whatever the pieces' sizes.

    Keeps the last characters (at most five times `bound_runes`, or some hundred), and reports
    fingerprints, counts and offsets alone. Holds back at most `bound_runes` characters.
    """

    def __init__(self, bound_runes: int, *, key: bytes) -> None:
        """`key` names fingerprints, 1 to 64 bytes."""
        self._bound = bound_runes
        self._key = key
        self._reach = max(_SHORTEST_PAST, min(_PAST_BOUNDS * bound_runes, _LONGEST_PAST))
        self._numbering = Numbering()
        self._past = ""
        self._past_begins = 0
        self._seen = 0
        self._at = 0  # How far the text was followed.
        self._repeat: _Repeat | None = None
        self._held_from: int | None = None
        self._loop: Loop | None = None

    def __repr__(self) -> str:
        return f"RepeatGuard(seen={self._seen}, cleared={self.cleared}, loop={self._loop!r})"

    @property
    def seen(self) -> int:
        """Characters fed in all."""
        return self._seen

    @property
    def cleared(self) -> int:
        """Characters up to which nothing is under suspicion. Never falls, nor below seen - bound.

        Once a loop was found it stays where the loop is to be cut.
        """
        if self._loop is not None:
            return self._loop.kept
        if self._held_from is None:
            return self._seen
        return max(self._held_from, self._seen - self._bound)

    def feed(self, text: str) -> Loop | None:
        """The loop as soon as it is certain. After that the guard is done and takes nothing in."""
        if self._loop is not None:
            return None
        for begin in range(0, len(text), _SLICE):
            piece = text[begin : begin + _SLICE]
            self._past += self._numbering.levelled(piece)
            self._seen += len(piece)
            while self._at + _STEP <= self._seen:
                self._at += _STEP
                if self._repeat is None:
                    self._look_back(self._at - self._past_begins)
                else:
                    loop = self._follow(self._repeat, self._at - self._past_begins)
                    if loop is not None:
                        self._loop = loop
                        return loop
            if len(self._past) > self._reach + _SLICE:
                forgotten = len(self._past) - self._reach - _GRAM - _STEP
                self._past = self._past[forgotten:]
                self._past_begins += forgotten
        return None

    def _look_back(self, here: int) -> None:
        """Ask whether the last characters were there before."""
        lag = self._lag(here)
        if lag:
            self._begin(here, lag)
        else:
            self._held_from = None

    def _begin(self, here: int, lag: int) -> None:
        self._repeat = _Repeat(self._at - self._traced(here, lag), lag)
        self._hold(may_prove=has_letters(self._past[here - _GRAM : here]))

    def _follow(self, repeat: _Repeat, here: int) -> Loop | None:
        """Ask whether the text goes on like its past."""
        if repeat.gap is None:
            came = self._past[here - _STEP : here]
            lag = repeat.lag
            if came == self._past[here - _STEP - lag : here - lag]:
                return self._weigh(repeat, here)
            broke = self._at - _STEP
            for one, other in zip(came, self._past[here - _STEP - lag : here - lag], strict=True):
                if one != other:
                    break
                broke += 1
        else:
            broke = repeat.gap
        lag = self._lag(here)
        if lag:
            return self._turn(repeat, here, lag, broke)
        unread = self._at - broke - _GRAM - _STEP
        if broke - repeat.since < _TOLD or unread >= repeat.bears(broke):
            self._end()
        else:
            repeat.gap = broke
        return None

    def _turn(self, repeat: _Repeat, here: int, lag: int, broke: int) -> Loop | None:
        since = self._at - self._traced(here, lag)
        said = self._past[broke - self._past_begins : since - self._past_begins]
        new = _weight(said)
        if new > repeat.bears(broke):
            self._end()
            self._begin(here, lag)
            return None
        repeat.turn(since, lag, new)
        return self._weigh(repeat, here)

    def _end(self) -> None:
        self._repeat = None
        self._held_from = None

    def _weigh(self, repeat: _Repeat, here: int) -> Loop | None:
        """Ask whether what repeated so far is a loop, or may become one within the bound."""
        length = self._at - repeat.part
        if repeat.proof is None:
            if length < _TOLD:
                return None
            of = texture(self._past[here - repeat.lag : here])
            repeat.proof = verbatim_proof(of, repeat.lag)
            repeat.varied_proof = varied_proof(of)
        if length >= repeat.proof:
            return self._found(repeat, here, 1 + length // repeat.lag)
        missing = repeat.proof - length
        if repeat.since < repeat.part and repeat.varied_proof is not None:
            whole = self._at - repeat.since
            mean_lag = (repeat.weighed_lags + length * repeat.lag) // whole or 1
            proof = max(repeat.varied_proof, VARIED_UNITS * mean_lag)
            if whole < proof:
                missing = min(missing, proof - whole)
            elif repeat.new * _NEW_SHARE_OF_A_LOOP <= whole:
                return self._found(repeat, here, 1 + whole // mean_lag)
            else:
                repeat.forget_its_turns()
        self._hold(may_prove=missing <= self._bound)
        return None

    def _hold(self, *, may_prove: bool) -> None:
        if not may_prove:
            self._held_from = None
        elif self._held_from is None:
            self._held_from = self._at

    def _found(self, repeat: _Repeat, here: int, count: int) -> Loop:
        kept = self._at if self._held_from is None else self._held_from
        if 2 * repeat.weighed_lags < repeat.lag * (repeat.part - repeat.since):
            kept = max(kept, repeat.part)  # What came before repeated within the first unit.
        return Loop(
            kept=max(kept, self._at - self._bound),
            period=repeat.lag,
            count=count,
            fingerprint=fingerprint(self._past[here - repeat.lag : here], self._key),
        )

    def _lag(self, here: int) -> int:
        """How far back the last characters stood last; 0 where they are new."""
        if here < _GRAM:
            return 0
        gram = self._past[here - _GRAM : here]
        before = self._past.rfind(gram, max(0, here - self._reach), here - 1)
        return here - _GRAM - before if before >= 0 else 0

    def _traced(self, here: int, lag: int) -> int:
        """How many characters up to here read like those `lag` before."""
        past = self._past
        most = min(_TRACED, here - lag, self._reach - lag)
        length = _GRAM
        while length < most:
            begin = max(here - most, here - length - _TRACE_STEP)
            end = here - length
            if past[begin:end] != past[begin - lag : end - lag]:
                break
            length = here - begin
        while length < most and past[here - length - 1] == past[here - length - 1 - lag]:
            length += 1
        return length


def _weight(said: str) -> int:
    """What new text says: blanks and numbering nothing, a number more than its length."""
    digits = sum(character.isdigit() for character in said)
    numbering = said.count(NUMBER)
    return len("".join(said.split())) - numbering + (_DIGIT_WEIGHT - 1) * digits
