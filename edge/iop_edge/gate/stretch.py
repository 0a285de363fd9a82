"""A stretch of text that reads like its own past, and how far it is from being a loop.

It is told what repeated and what was new, and measures. It must never know how that was found
out, nor what is done about it. Offsets and lengths in characters of the channel.
"""

from __future__ import annotations

import sys

from iop_edge.gate.numbering import NUMBER
from iop_edge.gate.texture import (
    VARIED_PROOFS,
    VARYING,
    Texture,
    has_letters,
    texture,
    verbatim_proof,
)

_TOLD = 24
"""Characters of a stretch from which on its texture can be told."""
_NEW_AT_ONCE = 3
_NEW_SHARE = 12
_LONGEST_GAP = 40
"""How much may be new in what may still become a loop: so much at once, one part in so many, and
at most so much in any place."""
_DRIFT = 3
"""Characters by which a lag may change, with nothing new, and be the same: blanks, 9 to 10."""
_TURN_WORTH = 2
"""Old pieces in a new order say something too: the cases of a puzzle."""
_DIGIT_WORTH = 3
"""A changed number says more than its length: the days of a log, the flasks on a wall."""

HOPELESS = sys.maxsize


class Stretch:
    """Begins where the second occurrence does. Made of parts, each of which follows one lag."""

    __slots__ = (
        "_doubts",
        "_new",
        "_part",
        "_since",
        "_texture",
        "_told_lag",
        "_verbatim_proof",
        "_weighed_lags",
        "gap",
        "lag",
    )

    def __init__(self, since: int, lag: int) -> None:
        self.lag = lag
        self.gap: int | None = None
        """Where something new began that has not ended yet."""
        self._since = since
        self._part = since  # Where the part began that it follows now.
        self._new = 0  # What was new in it so far, by its worth.
        self._weighed_lags = 0  # Sum over the earlier parts of their length times their lag.
        self._texture: Texture = "prose"
        self._told_lag = 0
        self._verbatim_proof = 0  # What this part must come to; 0 while it cannot be told.
        self._doubts = 0  # How many of the varied proofs it was long enough for, and failed.

    def bears(self, broke: int) -> int:
        """How much may be new where it stopped repeating; nothing in one that has just begun."""
        length = broke - self._since
        if length < _TOLD:
            return 0
        return min(_LONGEST_GAP, _NEW_AT_ONCE + length // _NEW_SHARE - self._new)

    def turn(self, since: int, lag: int, new: int) -> None:
        """It goes on like another place of the past, after `new` (by `worth`)."""
        if new or abs(lag - self.lag) > _DRIFT:
            ended = since if self.gap is None else min(self.gap, since)
            self._weighed_lags += max(0, ended - self._part) * self.lag
            self._since = min(self._since, since)
            self._part = since
            self._new += max(_TURN_WORTH, new)
            self._verbatim_proof = 0
        self.lag = lag
        self.gap = None

    def missing(self, at: int, past: str, here: int) -> int:
        """Characters it lacks, if all goes on like this, to be a loop; none or less: it is one.

        `past` is the recent text, `here` the place in it that is `at` in the channel.
        """
        length = at - self._part
        if not self._verbatim_proof:
            if length < _TOLD:
                hopeful = not self._doubts and has_letters(past[here - length : here])
                return 1 if hopeful else HOPELESS
            if not self._told_lag <= 2 * self.lag <= 4 * self._told_lag:
                self._tell(past[here - self.lag : here])  # Another unit than the part before.
            self._verbatim_proof = verbatim_proof(self._texture, self.lag)
        missing = self._verbatim_proof - length
        if self._since < self._part and self._texture in VARYING:
            varied = self._missing_varied(at)
            if varied is None:
                return HOPELESS
            missing = min(missing, varied)
        return missing

    def _missing_varied(self, at: int) -> int | None:
        """The same for all its parts together; None once, where too much in them was new."""
        whole = at - self._since
        for step, (least, units, share) in enumerate(VARIED_PROOFS):
            missing = max(least, units * self._mean_lag(at)) - whole
            if missing > 0 or self._new * share <= whole:
                return missing
            if step == self._doubts:
                self._doubts += 1
                return None
        self._forget()
        return None

    def _tell(self, unit: str) -> None:
        before, self._texture = self._texture, texture(unit)
        if self._told_lag and (before in VARYING) != (self._texture in VARYING):
            self._forget()  # What figures repeated proves nothing of words.
        self._told_lag = self.lag

    def _forget(self) -> None:
        """Count from the present part only, so that a loop that goes on is found in the end."""
        self._since, self._new, self._weighed_lags, self._doubts = self._part, 0, 0, 0

    def count(self, at: int) -> int:
        """How often the unit was seen, the first time included."""
        return 1 + (at - self._since) // self._mean_lag(at)

    def first_ends(self, held_from: int) -> int:
        """Where the first occurrence ends of what has become a loop, held since `held_from`."""
        if 2 * self._weighed_lags < self.lag * (self._part - self._since):
            return max(held_from, self._part)  # What repeated earlier did so within the unit.
        return held_from

    def _mean_lag(self, at: int) -> int:
        whole = at - self._since
        return (self._weighed_lags + (at - self._part) * self.lag) // whole or 1


def worth(said: str) -> int:
    """What new text says: blanks and numbering nothing, a number more than its length."""
    digits = sum(character.isdigit() for character in said)
    return len("".join(said.split())) - said.count(NUMBER) + (_DIGIT_WORTH - 1) * digits
