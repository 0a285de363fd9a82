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
"""prose: running text. verse: short lines of it (lyrics, lists). code: code, markup, tables,
encoded data. figures: hardly a letter (digits, rules, drawings, white space). numbers: a list of
numbers alone, which numbering has made alike."""

_EXAMINED = 512
"""Characters of a unit that are looked at; what is longer has shown itself by then."""
_LETTER = re.compile(r"[^\W\d_]|[\u0300-\u036f\u0591-\u06ed\u0900-\u0e4e\U0001f000-\U0001faff]")
_CODE = re.compile(r"[{}\[\]<>=+/\\|_$&@^%`;]|\w\(|['\"],?\s*[:,]|\n[ \t]{2,}")
_DIGIT = re.compile(r"\d")
_LEAST_LETTERS = 0.3
_MOST_CODE = 0.05
_VERSE_LINE = 64
"""Characters of a line, on average, up to which lines are verses."""

_FIGURES_PROVE = 6000
_CODE_PROVES = 1500
_CODE_UNITS = 8
_DISTANT_MORE = 480
_DISTANT_CODE_UNITS = 3
_VARIED_PROVES = 480
VARIED_UNITS = 6


def texture(unit: str) -> Texture:
    """What a repeated unit looks like."""
    looked_at = unit[-_EXAMINED:]
    ink = len("".join(looked_at.split()))
    letters = len(_LETTER.findall(looked_at))
    if letters < _LEAST_LETTERS * ink or not letters:
        return "numbers" if NUMBER in looked_at else "figures"
    marks = len(_CODE.findall(looked_at)) + len(_DIGIT.findall(looked_at)) / 2
    if marks > _MOST_CODE * len(looked_at):
        return "code"
    if ink == len(looked_at) and looked_at.isupper():
        return "code"  # Sequences and encoded data: capitals without a space.
    lines = looked_at.count("\n")
    return "verse" if lines and len(looked_at) <= _VERSE_LINE * lines else "prose"


def verbatim_proof(of: Texture, period: int) -> int:
    """Characters that must repeat word for word, after the first occurrence, to be a loop."""
    match of:
        case "prose":
            return max(240, min(4 * period, 480), 3 * period // 2)
        case "verse":
            return max(320, min(5 * period, 500), 11 * period // 5)
        case "code":
            return max(_CODE_PROVES, _CODE_UNITS * period)
        case "figures":
            return max(_FIGURES_PROVE, _CODE_UNITS * period)
        case "numbers":
            return sys.maxsize


def varied_proof(of: Texture) -> int | None:
    """Characters that must repeat with hardly a change, VARIED_UNITS units at the least.

    None where the changes are what is said: rows of a table, lines of a log.
    """
    match of:
        case "prose" | "verse":
            return _VARIED_PROVES
        case "code" | "figures" | "numbers":
            return None


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
