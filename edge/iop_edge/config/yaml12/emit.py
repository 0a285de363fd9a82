"""Plain values to YAML 1.2 that `tree` reads back as the same values.

Block style, one key a line; text stands plain only where nothing could take it for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite, isnan
from typing import Any

from iop_edge.config.yaml12.scalars import NumberTooLong, resolve_plain

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+@-]*(?: [A-Za-z0-9_./+@-]+)*\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def emit(value: Mapping[str, Any]) -> str:
    """The text of a mapping of mappings, lists and scalars."""
    return "".join(f"{line}\n" for line in _mapping(value, "")) or "{}\n"


def scalar(value: Any) -> str:
    """One scalar as it is written in YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if not isfinite(value):
            return ".nan" if isnan(value) else ".inf" if value > 0 else "-.inf"
        case int() | float():
            return repr(value)
        case _:
            return _text(str(value))


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, inner in value.items():
        yield from _under(f"{indent}{_text(key)}:", inner, indent)


def _under(head: str, inner: Any, indent: str) -> Iterator[str]:
    if isinstance(inner, Mapping) and inner:
        yield head
        yield from _mapping(inner, indent + "  ")
    elif isinstance(inner, list | tuple) and inner:
        yield head
        yield from _list(inner, indent + "  ")
    else:
        yield f"{head} {_empty_or_scalar(inner)}"


def _list(value: list[Any] | tuple[Any, ...], indent: str) -> Iterator[str]:
    for inner in value:
        if isinstance(inner, Mapping) and inner:
            lines = _mapping(inner, indent + "  ")
            yield f"{indent}- {next(lines).lstrip(' ')}"
            yield from lines
        elif isinstance(inner, list | tuple) and inner:
            yield f"{indent}-"
            yield from _list(inner, indent + "  ")
        else:
            yield f"{indent}- {_empty_or_scalar(inner)}"


def _empty_or_scalar(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    return "[]" if isinstance(value, list | tuple) else scalar(value)


def _text(text: str) -> str:
    if _PLAIN.match(text) and _is_text(text):
        return text
    return '"' + "".join(_escaped(one) for one in text) + '"'


def _is_text(text: str) -> bool:
    try:
        return isinstance(resolve_plain(text), str)
    except NumberTooLong:
        return False


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"
