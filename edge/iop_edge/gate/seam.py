"""Where a continuation meets what the caller has read: the overlap, which is not told twice.

A model that is asked to go on often repeats the last words first. What it repeats is trimmed: the
longest beginning of the new text that is an ending of the old one, of `MIN_OVERLAP` characters or
more; and the last word, whole or cut, that is begun again, with the blanks around it. Shorter
agreements are chance, and stay.
"""

from __future__ import annotations

import re

MIN_OVERLAP = 8
"""Characters that agree by more than chance."""

MAX_OVERLAP = 4096
"""Characters of the old text that are compared; so many of the new one are held at most."""

_MIN_WORD = 2
_MIN_WHOLE = 4
"""Of an old text that is short: all of it said again is no chance."""

_MIN_UNSPACED = 2
_UNSPACED = re.compile(r"[\u3040-\u30ff]?[\u3400-\u9fff][\u3040-\u30ff\u3400-\u9fff]*").fullmatch
"""A script that puts nothing between its words."""


class Seam:
    """One channel's seam. Feed the new text in; what comes out goes on after the old one."""

    __slots__ = ("_head", "_tail", "trimmed")

    def __init__(self, told: str) -> None:
        self._tail = told[-MAX_OVERLAP:]
        self._head = ""
        self.trimmed = 0
        """Characters that were not told twice."""

    @property
    def has_begun(self) -> bool:
        """New text has come."""
        return bool(self._head)

    @property
    def is_closed(self) -> bool:
        """Nothing is held any more, and nothing will be."""
        return not self._tail

    def feed(self, text: str) -> str:
        """The part of the new text that is certainly new; empty while it may be an overlap."""
        if not self._tail:
            return text
        self._head += text
        if self._may_agree_further() or self._is_one_letter():
            return ""
        return self._close()

    def end(self) -> str:
        """The new text is over: what of it was held and is new."""
        return self._close() if self._tail else ""

    def _may_agree_further(self) -> bool:
        """Whether all of the new text so far stands in the old one, which then goes on."""
        tail, head = self._tail, self._head
        return 0 <= tail.find(head) < len(tail) - len(head)

    def _is_one_letter(self) -> bool:
        """Whether it ends as the old text does, and the next character tells if that is a word."""
        return len(self._head.strip()) == 1 and self._tail.endswith(self._head)

    def _close(self) -> str:
        overlap = self._overlap()
        head = self._head
        self._tail = self._head = ""
        self.trimmed = overlap
        return head[overlap:]

    def _overlap(self) -> int:
        """The length of the longest beginning of the new text that is not told twice."""
        tail, head = self._tail, self._head
        first = head[:MIN_OVERLAP]
        at = tail.find(first) if len(first) == MIN_OVERLAP else -1
        while at >= 0:
            if head.startswith(tail[at:]):
                return len(tail) - at
            at = tail.find(first, at + 1)
        for length in range(min(len(tail), len(head), MIN_OVERLAP - 1), 0, -1):
            if tail.endswith(head[:length]) and (
                self._is_last_word(length) or (length == len(tail) >= _MIN_WHOLE)
            ):
                return length
        return 0

    def _is_last_word(self, length: int) -> bool:
        """Whether these last characters of the old text are a word, or as far as it came; blanks
        on either side of it are part of what is repeated."""
        tail, overlap = self._tail, self._tail[-length:]
        word = overlap.strip()
        if not word.isalnum():
            return False
        if _UNSPACED(word) is not None:
            return len(word) >= _MIN_UNSPACED
        is_begun = overlap[0].isspace() or not tail[-length - 1 : -length].isalnum()
        if len(word) >= _MIN_WORD:
            return is_begun
        # Of one letter: only where it is a word in both texts.
        return is_begun and word.isalpha() and not self._head[length : length + 1].isalnum()
