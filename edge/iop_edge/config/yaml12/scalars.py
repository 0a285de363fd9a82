"""What a plain YAML scalar is, by YAML 1.2's core schema (CFG-3).

Only `null`, `true`, `false`, decimal, octal (`0o`), hexadecimal (`0x`) and floating-point forms are
anything but text. What YAML 1.1 made of `on`, `no`, `12:30`, `0123` or a date is text here.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

MAX_INTEGER_DIGITS = 64

_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    ".nan": float("nan"),
    ".NaN": float("nan"),
    ".NAN": float("nan"),
    **{
        f"{sign}{word}": float(f"{sign}inf")
        for sign in ("", "+", "-")
        for word in (".inf", ".Inf", ".INF")
    },
}

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
# A leading zero makes text of a number (`0123`), except before the point (`0.5`).
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")

_NUMERIC_START = frozenset("0123456789+-.")


class NumberTooLong(ValueError):
    """A whole number with more digits than any bound could allow."""


def resolve_plain(text: str) -> Scalar:
    """The value of a plain scalar. Raises NumberTooLong past 64 digits."""
    if text[:1] not in _NUMERIC_START:
        return _WORDS.get(text, text)
    if _INTEGER.match(text):
        if len(text) > MAX_INTEGER_DIGITS:
            raise NumberTooLong
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if _BASED.match(text):
        if len(text) > MAX_INTEGER_DIGITS:
            raise NumberTooLong
        return int(text, 0)
    return _WORDS.get(text, text)
