"""What was said too long ago to be kept as text: remembered by fingerprints alone.

A paragraph of thousands of characters may come again as well. Of the distant past every 32nd
gram of 32 characters is remembered by its hash, so that a repeat at any lag meets one of them.
Knows nothing of what proves a loop.
"""

from __future__ import annotations

GRAM = 32
"""Characters of a gram, and between the ends of two that are remembered."""
_REMEMBERED = 512
_ASKED_EVERY = 8 * GRAM


class DistantPast:
    """The last 16384 characters as 512 hashes, and the repeat of them that is going on now.

    What is nearer than `nearest` characters is not distant. Hashes are those of the process, whose
    key is random: they tell nobody what was said.
    """

    __slots__ = ("_at_of", "_hashes", "_nearest", "_remembered", "due", "lag", "length")

    def __init__(self, nearest: int) -> None:
        self._nearest = nearest
        self._hashes: list[int] = []  # By the gram's end, in turn.
        self._at_of: dict[int, int] = {}
        self._remembered = GRAM
        self.lag = 0
        """How far back the text now repeats itself; 0 where it does not."""
        self.length = 0
        """Characters that are known to have repeated at this lag."""
        self.due = self._asked_after(nearest)
        """Where it is to read next, a multiple of GRAM; what lies before that tells it nothing."""

    def read(self, past: str, begins: int) -> None:
        """Go on to `due`. `past` is what was said from `begins` on, up to there or further: what
        was not `remember`ed, and two grams at least."""
        at = self.due
        recent = past[at - begins - 2 * GRAM : at - begins]
        if self.lag:
            self._follow(recent, at)
        else:
            self.remember(past, begins, at - 1)
            self._ask(recent, at)
        self.remember(past, begins, at)
        self.due = at + GRAM if self.lag else self._asked_after(at)

    def remember(self, past: str, begins: int, until: int) -> None:
        """Take in what was said up to `until`, which may be forgotten then."""
        for at in range(self._remembered + GRAM, until + 1, GRAM):
            self._remember(hash(past[at - begins - GRAM : at - begins]), at)
            self._remembered = at

    def _asked_after(self, at: int) -> int:
        after = max(at, self._nearest)
        return after - after % _ASKED_EVERY + _ASKED_EVERY

    def _follow(self, recent: str, at: int) -> None:
        shift = (at - self.lag) % GRAM
        end = len(recent) - shift
        if self._hashes[(at - self.lag) // GRAM % _REMEMBERED] == hash(recent[end - GRAM : end]):
            self.length += GRAM
        else:
            self.lag = self.length = 0

    def _ask(self, recent: str, at: int) -> None:
        for shift in range(GRAM):
            end = len(recent) - shift
            before = self._at_of.get(hash(recent[end - GRAM : end]))
            if before is not None:
                lag = at - shift - before
                if self._nearest < lag < _REMEMBERED * GRAM - GRAM:
                    self.lag, self.length = lag, GRAM
                    return

    def _remember(self, gram: int, at: int) -> None:
        if not self._hashes:
            self._hashes = [0] * _REMEMBERED
        place = at // GRAM % _REMEMBERED
        forgotten = self._hashes[place]
        if self._at_of.get(forgotten, at) <= at - _REMEMBERED * GRAM:
            del self._at_of[forgotten]
        self._hashes[place] = gram
        self._at_of[gram] = at
