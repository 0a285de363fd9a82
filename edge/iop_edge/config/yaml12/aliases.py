"""What an alias stands for: a copy of its anchor, within bounds (CFG-3).

A copy, so that no two places of a tree share a container. Bombs end here: every node that an alias
brings in is counted, however the aliases are nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from iop_edge.config.yaml12.places import Places, Steps

MAX_DEPTH = 64
MAX_ALIASED_NODES = 50_000

REFERENCE = "${"


class Reference(NamedTuple):
    """A scalar that holds `${`, before expansion."""

    container: Any
    step: str | int
    steps: Steps
    text: str
    is_plain: bool


class References:
    """The unexpanded scalars of a tree, found by the container they stand in."""

    def __init__(self) -> None:
        self._of: dict[int, list[Reference]] = {}

    def __iter__(self) -> Iterator[Reference]:
        return chain.from_iterable(self._of.values())

    def add(self, reference: Reference) -> None:
        self._of.setdefault(id(reference.container), []).append(reference)

    def copy(self, origin: Any, copied: Any, steps: Steps) -> None:
        """What stands in `origin` stands in `copied`, at `steps`, too."""
        for one in self._of.get(id(origin), ()):
            self.add(one._replace(container=copied, steps=(*steps, one.step)))


class AliasesTooMany(Exception):
    """Aliases expand past a bound."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Aliases:
    """Copies anchored values. Places and unexpanded references are copied along."""

    def __init__(self, places: Places, references: References) -> None:
        self._places = places
        self._references = references
        self._count = 0

    def copy(self, value: Any, steps: Steps) -> Any:
        """The value for the place at `steps`. Raises AliasesTooMany."""
        self._count += 1
        if self._count > MAX_ALIASED_NODES:
            raise AliasesTooMany(
                "alias_bomb",
                f"aliases expand to more than {MAX_ALIASED_NODES} nodes here; write less with them",
            )
        if type(value) is not dict and type(value) is not list:
            return value
        if len(steps) > MAX_DEPTH:
            raise AliasesTooMany("too_deep", f"aliases nest deeper than {MAX_DEPTH} levels here")
        copied: Any
        if type(value) is dict:
            copied = {key: self.copy(inner, (*steps, key)) for key, inner in value.items()}
        else:
            copied = [self.copy(inner, (*steps, index)) for index, inner in enumerate(value)]
        self._references.copy(value, copied, steps)
        self._places.add(copied, self._places.marks_of(value))
        return copied
