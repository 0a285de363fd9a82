"""Why a scalar does not fit its type, in one sentence that holds no text of the operator's.

The one place where types become words (CFG-3, CFG-4). Numbers are shown, text never is.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from iop_edge.config.likely import Likely
from iop_edge.config.report import code_spans


class Complaint(NamedTuple):
    code: str
    message: str


_BOOLEAN_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "y", "n"})
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+\Z")


def kind_of(value: Any) -> str:
    """`this is a list`, for the second half of a sentence."""
    if value is None:
        return "this is null"
    if isinstance(value, bool):
        return "this is a boolean"
    if isinstance(value, int | float):
        return "this is a number"
    if isinstance(value, str):
        return "this is text"
    return "this is a list" if isinstance(value, list) else "this is a mapping"


def describe(
    value: Any, node: inspect.Type, wants: str | None, likely: Likely, *, echo: bool
) -> Complaint | None:
    """What is wrong with `value`, or None. With `echo` the sentence may show a number."""
    if isinstance(node, inspect.AnyType):
        return None
    if isinstance(node, inspect.StrType):
        return _text(value, node, wants)
    if isinstance(node, inspect.LiteralType):
        return _choice(value, node, likely)
    if isinstance(node, inspect.BoolType):
        return _boolean(value)
    if isinstance(node, inspect.IntType):
        return _whole_number(value, node, echo=echo)
    if isinstance(node, inspect.FloatType):
        return _number(value, node, echo=echo)
    raise TypeError(f"no words for {node}")


def _quote_it(value: Any) -> Complaint | None:
    if isinstance(value, dict | list):
        return Complaint("not_text", f"text must stand here; {kind_of(value)}")
    if not isinstance(value, str):
        return Complaint("quote_it", f"text must stand here, and {kind_of(value)}: quote it")
    return None


def _text(value: Any, node: inspect.StrType, wants: str | None) -> Complaint | None:
    if not isinstance(value, str):
        return _quote_it(value)
    if node.min_length is not None and not value:
        return Complaint("empty_text", f"this must be {wants or 'text'}; it is empty")
    too_short = node.min_length is not None and len(value) < node.min_length
    too_long = node.max_length is not None and len(value) > node.max_length
    if too_short or too_long:
        return Complaint(
            "bad_format", f"this must be {wants or 'text'}; it has {len(value)} characters"
        )
    if node.pattern is not None and not _pattern(node.pattern).search(value):
        return Complaint("bad_format", f"this must be {wants or 'text of another form'}")
    return None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _choice(value: Any, node: inspect.LiteralType, likely: Likely) -> Complaint | None:
    if not isinstance(value, str):
        return _quote_it(value)
    if value in node.values:
        return None
    choices = tuple(str(one) for one in node.values)
    return Complaint(
        "not_one_of", f"this must be {code_spans(choices)}{likely.hint(value, choices)}"
    )


def _boolean(value: Any) -> Complaint | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.casefold() in _BOOLEAN_WORDS:
        return Complaint("not_a_boolean", "a boolean is written `true` or `false`, without quotes")
    return Complaint("not_a_boolean", f"this must be `true` or `false`; {kind_of(value)}")


def bounds_of(node: inspect.IntType | inspect.FloatType) -> str:
    """`1 to 100`, with both bounds, which every number has."""
    if isinstance(node, inspect.FloatType):
        return f"{node.ge:g} to {node.le:g}"
    return f"{node.ge} to {node.le}"


def _whole_number(value: Any, node: inspect.IntType, *, echo: bool) -> Complaint | None:
    wanted = f"this must be a whole number from {bounds_of(node)}"
    if isinstance(value, str) and _WHOLE_NUMBER.match(value):
        return Complaint("not_a_number", f"{wanted}; write it without quotes and leading zeros")
    if isinstance(value, float):
        return Complaint("not_a_number", f"{wanted}, written in digits alone")
    if not isinstance(value, int) or isinstance(value, bool):
        return Complaint("not_a_number", f"{wanted}; {kind_of(value)}")
    return _in_bounds(value, node.ge, node.le, wanted, echo=echo)


def _number(value: Any, node: inspect.FloatType, *, echo: bool) -> Complaint | None:
    wanted = f"this must be a number from {bounds_of(node)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Complaint("not_a_number", f"{wanted}; {kind_of(value)}")
    return _in_bounds(value, node.ge, node.le, wanted, echo=echo)


def _in_bounds(
    value: float, low: float | None, high: float | None, wanted: str, *, echo: bool
) -> Complaint | None:
    # Written so that NaN, which is neither below nor above, is out of bounds too.
    if (low is None or value >= low) and (high is None or value <= high):
        return None
    return Complaint("out_of_range", f"{wanted}; this is {value}" if echo else wanted)
