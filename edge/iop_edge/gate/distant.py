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

    Hashes are those of the process, whose key is random: they tell nobody what was said.
    """

    __slots__ = ("_at_of", "_hashes", "lag", "length")

    def __init__(self) -> None:
        self._hashes = [0] * _REMEMBERED  # By the gram's end, in turn.
        self._at_of: dict[int, int] = {}
        self.lag = 0
        """How far back the text now repeats itself; 0 where it does not."""
        self.length = 0
        """Characters that are known to have repeated at this lag."""

    def read(self, recent: str, at: int, nearest: int) -> None:
        """Go on to `at`, a multiple of GRAM; `recent` is two grams or more that end there.

        Only what lies further back than `nearest` characters counts as distant.
        """
        if self.lag:
            self._follow(recent, at)
        elif at > nearest and at % _ASKED_EVERY == 0:
            self._ask(recent, at, nearest)
        self._remember(hash(recent[-GRAM:]), at)

    def _follow(self, recent: str, at: int) -> None:
        shift = (at - self.lag) % GRAM
        end = len(recent) - shift
        if self._hashes[(at - self.lag) // GRAM % _REMEMBERED] == hash(recent[end - GRAM : end]):
            self.length += GRAM
        else:
            self.lag = self.length = 0

    def _ask(self, recent: str, at: int, nearest: int) -> None:
        for shift in range(GRAM):
            end = len(recent) - shift
            before = self._at_of.get(hash(recent[end - GRAM : end]))
            if before is not None and nearest < at - shift - before < _REMEMBERED * GRAM - GRAM:
                self.lag = at - shift - before
                self.length = GRAM
                return

    def _remember(self, gram: int, at: int) -> None:
        place = at // GRAM % _REMEMBERED
        forgotten = self._hashes[place]
        if self._at_of.get(forgotten, at) <= at - _REMEMBERED * GRAM:
            del self._at_of[forgotten]
        self._hashes[place] = gram
        self._at_of[gram] = at
