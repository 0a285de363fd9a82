"""How much of the same is too much: it depends on what is being repeated.

A sentence that comes five times in a row is a model that loops. A row of zeros, a table's empty
cells and a rule of dashes are not, and neither is a chorus that comes twice. So each texture has
its own measure. Knows one unit of text at a time; it must never know where the unit stood.
"""

from __future__ import annotations

import re
import sys
from typing import Literal

from iop_edge.gate.numbering import NUMBER

Texture = Literal["prose", "verse", "code", "figures", "numbers"]
"""prose: running text. verse: short lines of it (lyrics, lists). code: code, markup, tables.
figures: digits, rules, drawings, white space, encoded data. numbers: a list of numbers alone,
which numbering has made alike."""

_EXAMINED = 512
"""Characters of a unit that are looked at; what is longer has shown itself by then."""
_LETTER = re.compile(r"[^\W\d_]|[\u0300-\u036f\u0591-\u06ed\u0900-\u0e4e\U0001f000-\U0001faff]")
_MARKUP = re.compile(r"[{}\[\]<>|_&@`;]|\w\(|['\"],?\s*[:,]|\n[ \t]{2,}")
_FORMULA = re.compile(r"[=+/\\$^%]")
_DIGIT = re.compile(r"\d")
_SENTENCE_ENDS = re.compile(r"\w[.!?]\s+[^\W\d_]|[。!?।؟]")
_LEAST_LETTERS = 0.3
_POOR_LENGTH = 32
_POOR_LETTERS = 3
"""Different letters up to which a unit longer than that is no language: ff ff ff of a dump."""
_MOST_CODE = 0.05
_MOST_MARKUP = 0.02
"""Share of signs in what is said in words; and of those of markup in a reasoning with formulas."""
_VERSE_LINE = 64
"""Characters of a line, on average, up to which lines are verses."""

_FIGURES_PROVE = 6000
_CODE_PROVES = 1500
_CODE_UNITS = 8
_DISTANT_MORE = 224
_DISTANT_CODE_UNITS = 3

VARYING: frozenset[Texture] = frozenset(("prose", "verse"))
"""Textures of which a repeat with hardly a change is one too. In the others the changes are what
is said: rows of a table, lines of a log."""
VARIED_PROOFS = ((480, 6, 25), (1440, 24, 20))
"""Characters and units that repeat with changes must come to, for one part in so many that is new.
The longer it goes on, the more may be new in it."""


def texture(unit: str) -> Texture:
    """What a repeated unit looks like."""
    looked_at = unit[-_EXAMINED:]
    ink = len("".join(looked_at.split()))
    letters = _LETTER.findall(looked_at)
    is_poor = len(looked_at) > _POOR_LENGTH and len(set(letters)) <= _POOR_LETTERS
    if is_poor or len(letters) < _LEAST_LETTERS * ink or not letters:
        return "numbers" if NUMBER in looked_at else "figures"
    markup = len(_MARKUP.findall(looked_at))
    formula = len(_FORMULA.findall(looked_at)) + len(_DIGIT.findall(looked_at)) / 2
    if markup + formula > _MOST_CODE * len(looked_at):
        reasons = markup <= _MOST_MARKUP * len(looked_at) and _SENTENCE_ENDS.search(2 * looked_at)
        if not reasons:
            return "code"
    if ink == len(looked_at) and looked_at.isupper():
        return "figures"  # Sequences and encoded data: capitals without a space.
    lines = looked_at.count("\n")
    return "verse" if lines and len(looked_at) <= _VERSE_LINE * lines else "prose"


def verbatim_proof(of: Texture, period: int) -> int:
    """Characters that must repeat word for word, after the first occurrence, to be a loop."""
    match of:
        case "prose":
            return max(240, min(4 * period, 480), min(3 * period // 2, period + 480))
        case "verse":
            return max(320, min(5 * period, 500), 11 * period // 5)
        case "code":
            return max(_CODE_PROVES, _CODE_UNITS * period)
        case "figures":
            return max(_FIGURES_PROVE, _CODE_UNITS * period)
        case "numbers":
            return sys.maxsize


def distant_proof(of: Texture, period: int) -> int:
    """What must repeat word for word of a unit of thousands of characters.

    Whoever quotes a text in full says it twice, and no more: a whole unit and then some.
    """
    match of:
        case "prose" | "verse":
            return period + _DISTANT_MORE
        case "code":
            return _DISTANT_CODE_UNITS * period
        case "figures" | "numbers":
            return sys.maxsize


def has_letters(text: str) -> bool:
    """Whether it could be part of anything but figures."""
    return _LETTER.search(text) is not None
