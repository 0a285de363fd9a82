"""Where each scalar of a text begins and ends, for showing a line of it with parts hidden.

A second, slower reading, made only when a line is shown to a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from yaml import YAMLError
from yaml._yaml import CParser
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from iop_edge.config.yaml12.places import Steps


class Span(NamedTuple):
    """A scalar in the text. For a key, the last step is the key itself."""

    start: int
    end: int
    steps: Steps
    is_key: bool
    value: str


class _Level:
    __slots__ = ("index", "is_map", "key")

    def __init__(self, *, is_map: bool) -> None:
        self.is_map = is_map
        self.key: str | None = None
        self.index = -1


def spans(text: str) -> Iterator[Span]:
    """The scalars of `text` in order, up to the first thing that is no YAML."""
    next_event = CParser(text.encode("utf-8")).get_event
    levels: list[_Level] = []
    try:
        while (event := next_event()) is not None:
            span = _step(event, levels)
            if span is not None:
                yield span
    except YAMLError:
        return


def _step(event: Any, levels: list[_Level]) -> Span | None:
    kind = type(event)
    if kind is MappingEndEvent or kind is SequenceEndEvent:
        levels.pop()
        _close(levels)
        return None
    is_node = kind in (ScalarEvent, AliasEvent, MappingStartEvent, SequenceStartEvent)
    if not is_node:
        return None
    top = levels[-1] if levels else None
    is_key = top is not None and top.is_map and top.key is None
    if top is not None and not top.is_map:
        top.index += 1
    if kind is MappingStartEvent or kind is SequenceStartEvent:
        if is_key and top is not None:
            top.key = ""
            levels.append(_Level(is_map=kind is MappingStartEvent))
            return None
        levels.append(_Level(is_map=kind is MappingStartEvent))
        return None
    value = event.value if kind is ScalarEvent else ""
    if is_key and top is not None:
        top.key = value
        return Span(event.start_mark.index, event.end_mark.index, _steps(levels), True, value)
    found = Span(event.start_mark.index, event.end_mark.index, _steps(levels), False, value)
    _close(levels)
    return found


def _close(levels: list[_Level]) -> None:
    """The value of the innermost mapping's key is complete."""
    if levels and levels[-1].is_map:
        levels[-1].key = None


def _steps(levels: list[_Level]) -> Steps:
    return tuple(
        (level.key if level.key is not None else "") if level.is_map else level.index
        for level in levels
    )
