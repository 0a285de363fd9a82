"""One YAML file to one tree of plain dicts, lists and scalars, with the place of everything.

Built directly over the parser's events, because that is where positions, duplicate keys, aliases
and quoting are still visible (CFG-3). What this room knows is YAML; what the keys mean it must
never know. It raises nothing for bad input: it reports, goes on where that is possible, and
returns None where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from yaml import YAMLError
from yaml._yaml import CParser
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from iop_edge.config.yaml12.aliases import (
    MAX_DEPTH,
    REFERENCE,
    Aliases,
    AliasesTooMany,
    Reference,
    References,
)
from iop_edge.config.yaml12.places import FILE_SHIFT, OFFSET_BITS, Marks, Places, Steps
from iop_edge.config.yaml12.scalars import MAX_INTEGER_DIGITS, NumberTooLong, resolve_plain
from iop_edge.config.yaml12.syntax import explain

_DISCARD = "\udcff"  # a lone surrogate, which no text and no escape can write
_UNRESOLVED = object()


class Finding(NamedTuple):
    """A problem of the text: code, sentence, offset, and the steps to it."""

    code: str
    message: str
    offset: int
    steps: Steps


class Tree(NamedTuple):
    """`root` is None where the file could not be read to its end as one mapping."""

    root: dict[str, Any] | None
    references: References
    has_nulls: bool
    findings: list[Finding]


class _Abandoned(Exception):
    """The rest of the file cannot be judged."""


def build(text: str, file_number: int, places: Places) -> Tree:
    """The tree of one file whose text is `text`; its places go into `places`."""
    builder = _Builder(text, file_number, places)
    root: Any = None
    try:
        root = builder.run()
    except _Abandoned:
        root = None
    except YAMLError as error:
        builder.findings.append(Finding(*explain(error, text), ()))
        root = None
    return Tree(root, builder.references, builder.has_nulls, builder.findings)


class _Builder:
    def __init__(self, text: str, file_number: int, places: Places) -> None:
        self._next: Callable[[], Any] = CParser(text.encode("utf-8")).get_event
        self._base = file_number << FILE_SHIFT
        self._places = places
        self._anchors: dict[str, Any] = {}
        self._plain_anchors: set[str] = set()
        self._stack: list[tuple[Any, Any, Any, str | None]] = []
        self.references = References()
        self._aliases = Aliases(places, self.references)
        self.has_nulls = False
        self.findings: list[Finding] = []

    def run(self) -> dict[str, Any] | None:
        event = self._next()
        while event is not None and type(event) is not DocumentStartEvent:
            event = self._next()
        if event is None:
            self._abandon("empty_file", "the file is empty; an empty config is written `{}`", 0)
        first: Any = self._next()
        if type(first) is ScalarEvent and resolve_or_text(first.value, first.style) is None:
            self._abandon("empty_file", "the file is empty; an empty config is written `{}`", 0)
        if type(first) is not MappingStartEvent:
            found = "list" if type(first) is SequenceStartEvent else "single value"
            self._abandon(
                "root_not_mapping",
                f"the file is a {found}; a config is a mapping of sections",
                first.start_mark.index,
            )
        root = self._read(first)
        self._next()  # the end of the document
        trailing = self._next()
        kind = type(trailing)
        if kind is DocumentStartEvent:
            self._abandon(
                "several_documents",
                "a second document begins here; a config file holds one "
                "(several files are merged: give each with --config)",
                trailing.start_mark.index,
            )
        return root

    def _read(self, first: Any) -> dict[str, Any]:
        """Everything up to the end of the root mapping. One loop, because it is the hot path."""
        next_event, places, base = self._next, self._places, self._base
        stack = self._stack
        memo: dict[str, Any] = {}
        good_keys: set[str] = set()
        root: dict[str, Any] = {}
        container: Any = root
        marks: Any = {}
        is_map = True
        key: str | None = None
        key_offset = 0
        anchor: str | None = None
        self._check_node(first)
        if first.anchor is not None:
            anchor = first.anchor
        while True:
            event = next_event()
            kind = type(event)
            if kind is ScalarEvent:
                text = event.value
                offset = event.start_mark.index
                if event.tag is not None:
                    self._tagged(event, self._steps(container, key))
                if is_map and key is None:
                    if text not in good_keys:
                        text = self._checked_key(event, container)
                        if text is not _DISCARD and not event.style:
                            good_keys.add(text)
                    if text in marks and text is not _DISCARD:
                        self._duplicate(container, marks, text, offset)
                        text = _DISCARD
                    key = text
                    key_offset = offset
                    continue
                if event.style:
                    value: Any = text
                else:
                    value = memo.get(text, _UNRESOLVED)
                    if value is _UNRESOLVED:
                        value = self._plain(text, offset, container, key)
                        if REFERENCE not in text and len(text) <= MAX_INTEGER_DIGITS:
                            memo[text] = value
                if REFERENCE in text:
                    self._note_reference(container, key, text, is_plain=not event.style)
                if event.anchor is not None:
                    self._anchor_scalar(event, value)
                if is_map:
                    container[key] = value
                    marks[key] = base | key_offset << OFFSET_BITS | offset
                    if value is None:
                        self.has_nulls = True
                    key = None
                else:
                    marks[len(container)] = base | offset << OFFSET_BITS | offset
                    container.append(value)
            elif kind is MappingStartEvent or kind is SequenceStartEvent:
                offset = event.start_mark.index
                if is_map and key is None:
                    self._complex_key(event, container)
                    key, key_offset = _DISCARD, offset
                    continue
                if event.tag is not None:
                    self._tagged(event, self._steps(container, key))
                if len(stack) >= MAX_DEPTH:
                    self._abandon(
                        "too_deep", f"nesting is deeper than {MAX_DEPTH} levels here", offset
                    )
                fresh: Any = {} if kind is MappingStartEvent else []
                if is_map:
                    container[key] = fresh
                    marks[key] = base | key_offset << OFFSET_BITS | offset
                else:
                    marks[len(container)] = base | offset << OFFSET_BITS | offset
                    container.append(fresh)
                stack.append((container, marks, key, anchor))
                container = fresh
                is_map = kind is MappingStartEvent
                marks = {}
                key = None
                anchor = event.anchor
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                if is_map and _DISCARD in marks:
                    del container[_DISCARD], marks[_DISCARD]
                places.add(container, marks)
                if anchor is not None:
                    self._anchors[anchor] = container
                if not stack:
                    return root
                container, marks, _, anchor = stack.pop()
                is_map = type(container) is dict
                key = None
            elif kind is AliasEvent:
                offset = event.start_mark.index
                if is_map and key is None:
                    self._complex_key(event, container)
                    key, key_offset = _DISCARD, offset
                    continue
                steps = self._steps(container, key)
                value = self._aliased_value(event, steps)
                if type(value) is str and REFERENCE in value:
                    is_plain = event.anchor in self._plain_anchors
                    self._note_reference(container, key, value, is_plain=is_plain)
                if is_map:
                    container[key] = value
                    marks[key] = base | key_offset << OFFSET_BITS | offset
                    if value is None:
                        self.has_nulls = True
                    key = None
                else:
                    marks[len(container)] = base | offset << OFFSET_BITS | offset
                    container.append(value)

    def _note_reference(
        self, container: Any, key: str | None, text: str, *, is_plain: bool
    ) -> None:
        """Keep the scalar for expansion, unless it stands in a part that was refused."""
        if key is _DISCARD or any(above[2] is _DISCARD for above in self._stack):
            return
        step = len(container) if key is None else key
        steps = self._steps(container, key)
        self.references.add(Reference(container, step, steps, text, is_plain))

    def _steps(self, container: Any, key: str | None) -> Steps:
        """The way from the root to the entry that is being read."""
        steps: list[str | int] = [
            len(above) - 1 if type(above) is list else key_above
            for above, _, key_above, _ in self._stack
        ]
        if type(container) is list:
            steps.append(len(container))
        elif key is not None:
            steps.append(key)
        return tuple(step for step in steps if step != _DISCARD)

    def _plain(self, text: str, offset: int, container: Any, key: str | None) -> Any:
        try:
            return resolve_plain(text)
        except NumberTooLong:
            self.findings.append(
                Finding(
                    "number_too_long",
                    f"a number of {len(text)} characters is past every bound; "
                    "quote it if it is meant as text",
                    offset,
                    self._steps(container, key),
                )
            )
            return text

    def _checked_key(self, event: Any, container: Any) -> str:
        """The key, or `_DISCARD` after a report."""
        text: str = event.value
        offset = event.start_mark.index
        if event.anchor is not None:
            self._anchor_scalar(event, text)
        if not event.style:
            if text == "<<":
                self._report(
                    "merge_key",
                    "`<<` merges nothing here (YAML 1.2 has no merge key); write the keys out, "
                    "or put what is shared into a protocol profile",
                    offset,
                    container,
                )
                return _DISCARD
            if not isinstance(resolve_or_text(text, event.style), str):
                self._report(
                    "key_not_text",
                    "a key is text, and this one reads as a number, a boolean or null: quote it",
                    offset,
                    container,
                )
                return _DISCARD
        if REFERENCE in text:
            self._report(
                "reference_in_key",
                "`${…}` is expanded in values only, never in keys",
                offset,
                container,
            )
            return _DISCARD
        return text

    def _duplicate(self, container: Any, marks: Marks, key: str, offset: int) -> None:
        first = self._places.place(marks[key], on_key=True)
        self.findings.append(
            Finding(
                "duplicate_key",
                f"this key stands here a second time, the first is in line {first.line}; "
                "keep one of them",
                offset,
                self._steps(container, key),
            )
        )

    def _complex_key(self, event: Any, container: Any) -> None:
        self._report(
            "key_not_text",
            "a key is text; a list, a mapping or an alias cannot be one",
            event.start_mark.index,
            container,
        )
        if type(event) is AliasEvent:
            return
        depth = 1
        while depth:
            kind = type(self._next())
            if kind is MappingStartEvent or kind is SequenceStartEvent:
                depth += 1
                if depth > MAX_DEPTH:
                    self._abandon(
                        "too_deep",
                        f"nesting is deeper than {MAX_DEPTH} levels here",
                        event.start_mark.index,
                    )
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                depth -= 1

    def _check_node(self, event: Any) -> None:
        if event.tag is not None:
            self._tagged(event, ())

    def _anchor_scalar(self, event: Any, value: Any) -> None:
        """Keep what an alias will stand for, and whether it takes a type when it is expanded."""
        self._anchors[event.anchor] = value
        (self._plain_anchors.discard if event.style else self._plain_anchors.add)(event.anchor)

    def _tagged(self, event: Any, steps: Steps) -> None:
        self.findings.append(
            Finding(
                "tag",
                "tags (`!…`) are not used in a config; remove it "
                "(quote a value that is meant as text)",
                event.start_mark.index,
                steps,
            )
        )

    def _aliased_value(self, event: Any, steps: Steps) -> Any:
        name = event.anchor
        if name not in self._anchors:
            self.findings.append(
                Finding(
                    "unknown_alias",
                    "this alias names no anchor that ends before it",
                    event.start_mark.index,
                    steps,
                )
            )
            return None
        try:
            return self._aliases.copy(self._anchors[name], steps)
        except AliasesTooMany as refused:
            self._abandon(refused.code, refused.message, event.start_mark.index)

    def _report(self, code: str, message: str, offset: int, container: Any) -> None:
        self.findings.append(Finding(code, message, offset, self._steps(container, None)))

    def _abandon(self, code: str, message: str, offset: int) -> None:
        self.findings.append(Finding(code, message, offset, ()))
        raise _Abandoned


def resolve_or_text(text: str, style: str | None) -> Any:
    """The value of a scalar; the text itself where its number is too long."""
    if style:
        return text
    try:
        return resolve_plain(text)
    except NumberTooLong:
        return text
