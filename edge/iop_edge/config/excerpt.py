"""The line a problem stands in, as it may be shown: secrets masked, comments left out (CFG-4).

Only text that is known to be harmless is shown: keys, and the values of keys that the config knows
and that hold no secret. Everything else is a mask, so that a token in the wrong place, under a
mistyped key or in a file that is no YAML stays unseen.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from iop_edge.config.document import Document
from iop_edge.config.paths import FREE_MAPS
from iop_edge.config.problems import Problem
from iop_edge.config.reading.secret_paths import is_credential_header, is_secret
from iop_edge.config.reading.vocabulary import scalar_patterns, struct_fields
from iop_edge.config.sources import SourceFile
from iop_edge.config.yaml12.places import Steps
from iop_edge.config.yaml12.spans import Span, spans
from iop_edge.config.yaml12.text import Lines, TextRefused, decode

MASK = "•••"
MAX_WIDTH = 160

_SMALL_NUMBER = re.compile(r"[-+]?[0-9]{1,9}(\.[0-9]{1,9})?\Z")
_HARMLESS_WORDS = frozenset({"", "null", "~", "true", "false", "yes", "no", "on", "off"})
_URL_KEYS = frozenset(
    {"advertise", "base_url", "endpoint", "listen", "operations", "otlp_endpoint", "url"}
)
_QUERY = re.compile(r"""[?#][^"'\s]*""")
_KEY = re.compile(r"([a-z0-9_]+) *:(?: |$)")
_HASHES = ("token_hash_sha256",)


class Excerpt(NamedTuple):
    """A line to show, and the column of its caret, from 0."""

    text: str
    caret: int


class _Read(NamedTuple):
    """A file with its scalars in their order."""

    lines: Lines
    spans: list[Span]
    starts: list[int]

    def within(self, start: int, end: int) -> list[Span]:
        """The scalars that touch this part of the text; one from above may reach into it."""
        first = max(0, bisect_left(self.starts, start) - 1)
        last = bisect_left(self.starts, end)
        return [span for span in self.spans[first:last] if span.end > start]


class Excerpts:
    """Shows lines of one candidate's files. Each file is read once, when first asked."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = {file.name: file for file in files}
        self._read: dict[str, _Read | None] = {}

    def of(self, problem: Problem) -> Excerpt | None:
        """The line of the problem, or None where there is none to show."""
        read = self._file(problem.file)
        if read is None or problem.line < 1:
            return None
        if problem.line > len(read.lines.starts):
            return None
        start = read.lines.starts[problem.line - 1]
        line = read.lines.line(problem.line)
        return _masked(line, start, read.within(start, start + len(line)), problem.column - 1)

    def _file(self, name: str) -> _Read | None:
        if name not in self._read:
            self._read[name] = self._open(name)
        return self._read[name]

    def _open(self, name: str) -> _Read | None:
        file = self._files.get(name)
        if file is None:
            return None
        try:
            text = decode(file.content)
        except TextRefused:
            return None
        found = list(spans(text))
        return _Read(Lines(text), found, [span.start for span in found])


def _masked(line: str, start: int, inside: Sequence[Span], caret: int) -> Excerpt:
    """The line piece by piece: what lies in a span as that span allows, the rest as signs only."""
    text = ""
    shown_caret = 0
    position = 0
    for span in inside:
        begin = max(span.start - start, position)
        stop = min(span.end - start, len(line))
        text, shown_caret, position, is_comment = _between(
            line, position, begin, text, caret, shown_caret
        )
        if is_comment:
            break
        piece = line[begin:stop]
        if piece.startswith(("&", "!", "*")) or not _is_shown(span):
            piece = MASK
        elif "://" in piece or not _URL_KEYS.isdisjoint(span.steps[-2:]):
            piece = _without_credentials(piece)
        if begin <= caret < max(stop, begin + 1):
            shown_caret = len(text) + (caret - begin if piece == line[begin:stop] else 0)
        text += piece
        position = stop
    else:
        text, shown_caret, position, _ = _between(
            line, position, len(line), text, caret, shown_caret
        )
    if caret >= position and caret >= len(line):
        shown_caret = len(text)
    return _cropped(_printable(text).rstrip(), shown_caret)


def _without_credentials(piece: str) -> str:
    """The address without userinfo and query, however misshapen it is."""
    before, at, after = piece.rpartition("@")
    if at:
        scheme, separator, _ = before.partition("://")
        piece = (scheme + separator if separator else before[: before[:1] in "\"'"]) + MASK + after
    return _QUERY.sub(MASK, piece)


def _between(
    line: str, begin: int, end: int, text: str, caret: int, shown_caret: int
) -> tuple[str, int, int, bool]:
    """Signs and spaces between scalars. A comment ends the line; anything else is masked."""
    gap = line[begin:end]
    comment = gap.find("#")
    kept = gap if comment < 0 else gap[:comment]
    shown = "".join(takewhile(lambda one: one in " \t-:?,[]{}&*|>!'\"", kept))
    known = _KEY.match(kept, len(shown))
    if known is not None and known[1] in _known_keys():
        # What the parser could not read any more: a key that the config knows is harmless.
        shown += known[0]
    if begin <= caret < end:
        shown_caret = len(text) + min(caret - begin, len(shown))
    if len(shown) < len(kept):
        shown += MASK
    return text + shown, shown_caret, end, comment >= 0


def _is_shown(span: Span) -> bool:
    steps = span.steps
    if span.is_key:
        return not is_secret(steps[:-1])
    if is_secret(steps) or steps[2:3] == ("auth",) or (steps and steps[-1] in _HASHES):
        return False
    if span.value.casefold() in _HARMLESS_WORDS or _SMALL_NUMBER.match(span.value):
        return True
    if _is_credential_of_free_map(steps):
        return False
    pattern = _pattern(steps)
    return pattern in _scalar_patterns() or pattern.startswith("protocol_profiles[].extensions[]")


def _is_credential_of_free_map(steps: Steps) -> bool:
    match steps:
        case ("protocol_profiles", _, "extensions", *rest):
            return any(isinstance(one, str) and is_credential_header(one) for one in rest)
        case _:
            return False


@cache
def _known_keys() -> frozenset[str]:
    return frozenset(pattern.rpartition(".")[2] for pattern, _ in struct_fields(Document))


@cache
def _scalar_patterns() -> frozenset[str]:
    return frozenset(scalar_patterns(Document))


def _pattern(steps: Steps) -> str:
    """The steps as a pattern of the document: `nodes[].adapters[].headers[]`."""
    text = ""
    for step in steps:
        if isinstance(step, int) or _is_map(text):
            text += "[]"
        else:
            text += f".{step}" if text else step
    return text


def _is_map(text: str) -> bool:
    """Whether the keys under this pattern are names. `adapters` is one in its legacy form."""
    return (
        text.rpartition(".")[2] in FREE_MAPS
        or text in ("models[].providers", "nodes[].adapters")
        or text.startswith("protocol_profiles[].extensions[]")
    )


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _cropped(text: str, caret: int) -> Excerpt:
    """At most `MAX_WIDTH` characters around the caret."""
    if len(text) <= MAX_WIDTH:
        return Excerpt(text, caret)
    begin = max(0, min(caret - MAX_WIDTH // 2, len(text) - MAX_WIDTH))
    return Excerpt(f"…{text[begin : begin + MAX_WIDTH]}…", caret - begin + 1)
