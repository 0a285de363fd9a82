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
   While it could become one within the bound, what came since it was found is held.
5. What is longer than the recent past is known by fingerprints alone (`distant`).
"""

from __future__ import annotations

from msgspec import Struct

from iop_edge.gate.distant import DistantPast
from iop_edge.gate.fingerprint import fingerprint
from iop_edge.gate.numbering import Numbering
from iop_edge.gate.stretch import Stretch, worth
from iop_edge.gate.texture import distant_proof, texture

_STEP = 4
_GRAM = 12
"""Characters that must stand in the past already to raise a suspicion."""
UNSEEN_START = _GRAM + _STEP - 1
"""Characters of a second occurrence that pass at most before a suspicion is raised."""

_PAST_BOUNDS = 2
_LONGEST_PAST = 1024
_SHORTEST_PAST = 64
_TRACED = 512
"""Characters that a stretch is traced back at most when it is found."""
_TRACE_STEP = 64
_SLICE = 256


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


class RepeatGuard:
    """Follows one channel of one run and finds where it loops, whatever the pieces' sizes.

    Of the text it keeps the last characters alone: twice `bound_runes`, but at least 64 and
    at most 1024, and up to 512 more. It reports fingerprints, counts and offsets, and holds back at
    most `bound_runes` characters. A piece costs time in proportion to its length, whatever it
    says; a long one is best fed in slices, between which others may run.
    """

    def __init__(self, bound_runes: int, *, key: bytes) -> None:
        """`bound_runes` from 1 (CFG-19). `key` names fingerprints, 1 to 64 bytes."""
        self._bound = bound_runes
        self._key = key
        self._reach = max(_SHORTEST_PAST, min(_PAST_BOUNDS * bound_runes, _LONGEST_PAST))
        self._longest_past = self._reach + _SLICE
        self._numbering = Numbering()
        self._past = ""
        self._past_begins = 0
        self._seen = 0
        self._at = 0  # How far the text was followed.
        self._stretch: Stretch | None = None
        self._held_from: int | None = None
        self._distant = DistantPast(self._reach)
        self._distant_held_from: int | None = None
        self._loop: Loop | None = None
        self.suspects = False
        """Something is under suspicion, or is a loop."""

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
        held_from = self._held_from
        if self._distant_held_from is not None:
            held_from = min(self._distant_held_from, held_from or self._distant_held_from)
        return self._seen if held_from is None else max(held_from, self._seen - self._bound)

    @property
    def is_done(self) -> bool:
        """A loop was found."""
        return self._loop is not None

    def feed(self, text: str) -> Loop | None:
        """The loop as soon as it is certain. After that the guard is done, and counts alone."""
        if self._loop is not None:
            self._seen += len(text)
            return None
        if len(text) > _SLICE:
            for begin in range(0, len(text), _SLICE):
                self.feed(text[begin : begin + _SLICE])
            return self._loop
        # Every token of every stream comes this way, hence the locals.
        if self._numbering.in_opening or "\n" in text:
            text = self._numbering.levelled(text)
        past, self._past = self._past, ""
        past += text  # With no other reference to it the past grows in place.
        self._past = past
        self._seen = seen = self._seen + len(text)
        if self._stretch is not None or seen >= self._distant.due or self._finds_one(seen):
            self._go_on()
        if seen - self._past_begins > self._longest_past:
            self._forget()
        return self._loop

    def _go_on(self) -> None:
        """Follow the text to its end, or until it is a loop."""
        distant, seen = self._distant, self._seen
        while seen - self._at >= _STEP and self._loop is None:
            if self._stretch is None:
                self._finds_one(min(distant.due, seen))
            else:
                self._at += _STEP
                self._follow(self._stretch, self._at - self._past_begins)
            if self._at == distant.due and self._loop is None:
                self._judge_distant()
        self.suspects = (
            self._held_from is not None
            or self._distant_held_from is not None
            or self._loop is not None
        )

    def _forget(self) -> None:
        """Let go of the text that is not of the recent past any more."""
        forgotten = len(self._past) - self._reach - _GRAM - _STEP
        self._distant.remember(self._past, self._past_begins, self._at)
        self._past = self._past[forgotten:]
        self._past_begins += forgotten

    def _finds_one(self, until: int) -> bool:
        """Go on, at most to `until`, to where the last characters stood in the past already."""
        past, begins, reach = self._past, self._past_begins, self._reach
        here, end = self._at + _STEP - begins, until - begins
        if here < _GRAM:
            here = _GRAM
        while here <= end:
            least = here - reach if here > reach else 0
            # What the grams of two steps share says of both that they are new.
            if past.rfind(past[here - _GRAM + _STEP : here], least, here - 1) < 0:
                here += 2 * _STEP
                continue
            before = past.rfind(past[here - _GRAM : here], least, here - 1)
            if before >= 0:
                self._at = here + begins
                self._begin(here, here - _GRAM - before)
                return True
            here += _STEP
        self._at = until - until % _STEP
        return False

    def _begin(self, here: int, lag: int) -> None:
        """Something repeats, maybe: the last characters stood in the past already."""
        self._stretch = Stretch(self._at - self._traced(here, lag), lag)
        missing = self._stretch.missing(self._at, self._past, here)
        self._held_from = self._at if missing <= self._bound else None

    def _follow(self, stretch: Stretch, here: int) -> None:
        """Ask whether the text goes on like its past."""
        if stretch.gap is None:
            came = self._past[here - _STEP : here]
            before = self._past[here - _STEP - stretch.lag : here - stretch.lag]
            if came == before:
                self._judge(stretch, here)
                return
            same = next(at for at in range(_STEP) if came[at] != before[at])
            broke = self._at - _STEP + same
        else:
            broke = stretch.gap
        lag = self._lag(here)
        if lag:
            self._turn(stretch, here, lag, broke)
            return
        stretch.gap = broke
        if self._at - broke - _GRAM - _STEP >= stretch.bears(broke) or not stretch.bears(broke):
            self._end()

    def _turn(self, stretch: Stretch, here: int, lag: int, broke: int) -> None:
        """It goes on, like another place of the past; or what is new ends it, and one begins."""
        since = self._at - self._traced(here, lag)
        new = worth(self._past[broke - self._past_begins : since - self._past_begins])
        if new > stretch.bears(broke):
            self._begin(here, lag)
            return
        stretch.turn(since, lag, new)
        self._judge(stretch, here)

    def _end(self) -> None:
        self._stretch = None
        self._held_from = None

    def _judge(self, stretch: Stretch, here: int) -> None:
        """Ask whether what repeated so far is a loop, or may become one within the bound."""
        missing = stretch.missing(self._at, self._past, here)
        if missing > self._bound:
            self._held_from = None
        elif self._held_from is None:
            self._held_from = self._at
        if missing <= 0:
            held_from = self._at if self._held_from is None else self._held_from
            first_ends = stretch.first_ends(held_from)
            self._is_loop(first_ends, here, stretch.lag, stretch.count(self._at))

    def _judge_distant(self) -> None:
        """Ask the same of what is too long for the recent past to hold it."""
        distant, here = self._distant, self._at - self._past_begins
        distant.read(self._past, self._past_begins)
        missing = self._bound + 1
        if distant.lag:
            # No more of it than is always kept, or the verdict would be one on the pieces.
            of = texture(self._past[here - min(distant.lag, self._reach) : here])
            missing = distant_proof(of, distant.lag) - distant.length
        if missing > self._bound:
            self._distant_held_from = None
        elif self._distant_held_from is None:
            self._distant_held_from = self._at
        if missing <= 0:
            held_from = self._at if self._distant_held_from is None else self._distant_held_from
            self._is_loop(held_from, here, distant.lag, 1 + distant.length // distant.lag)

    def _is_loop(self, first_ends: int, here: int, lag: int, count: int) -> None:
        unit = self._past[here - min(lag, self._reach) : here]
        self._loop = Loop(
            kept=max(first_ends, self._at - self._bound),
            period=lag,
            count=count,
            fingerprint=fingerprint(unit, self._key),
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
