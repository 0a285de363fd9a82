"""Where one value of a JSON object stands, to the byte.

An answer is relayed as the upstream wrote it, apart from one name. So the name is replaced in the
bytes, and everything else stays as it was: order, spacing, escapes, numbers.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode
_MEMBER = re.compile(rb'[\s,]*("(?:[^"\\]|\\.)*+")\s*:\s*', re.DOTALL)

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises on bytes that are no JSON, or nested past any sense."""

Span = tuple[int, int]


def find_value(document: bytes, path: tuple[str, ...], literal: bytes) -> Span | None:
    """The place of the value at `path`, which is known to be written as `literal`.

    `document` must be a valid JSON object. Where the last key of the path occurs once, as it
    nearly always does, one search finds it; otherwise the objects on the path are walked. None
    where the path does not lead to such a value, or a key on it stands twice.
    """
    key = b'"%s"' % path[-1].encode()
    at = document.find(key)
    # A key may be written with escapes; then a like-named one elsewhere would be the only match.
    if at >= 0 and document.find(key, at + 1) < 0 and b"\\u00" not in document:
        after = at + len(key)
        start = document.find(literal, after)
        if start >= 0 and document[after:start].strip() == b":":
            return start, start + len(literal)
    return _walk(document, path, literal)


def _walk(document: bytes, path: tuple[str, ...], literal: bytes) -> Span | None:
    start, end = 0, len(document)
    for key in path:
        found = _member(document, start, end, key)
        if found is None:
            return None
        start, end = found
    return (start, end) if document[start:end] == literal else None


def _member(document: bytes, start: int, end: int, key: str) -> Span | None:
    """The place of one member's value in the object at `start`; None where there is no one."""
    try:
        members = _members(document[start:end])
    except NOT_JSON:
        return None
    at = document.index(b"{", start) + 1
    for name, raw in members.items():
        match = _MEMBER.match(document, at, end)
        value = bytes(raw)
        if match is None or _text(match[1]) != name or not document.startswith(value, match.end()):
            return None  # a key stands twice, so the order of the members is not that of the text
        if name == key:
            return match.end(), match.end() + len(value)
        at = match.end() + len(value)
    return None
