"""The shape of the effective config as a diff sees it: leaves, records, keyed entries.

Read from the struct annotations and from nowhere else, so a field's refresh class stands in one
place (REF-6): the nearest enclosing `Reload` mark counts, and a leaf that none encloses is a
`TypeError` when the shape is read. A field marked `Derived` says nothing that others do not say,
and is no part of the shape. This module never looks at a value.

A *pattern* is a config path with empty brackets for the ids: `nodes[].providers[].capacity`.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    GateFilter,
    HeaderValue,
    ModelGroup,
    ModelRoute,
    Node,
    PrincipalToken,
    Provider,
    SecretRef,
)
from iop_edge.config.reload_class import Derived, Reload

ENTRY_KEYS: Mapping[type, str] = {
    Node: "id",
    Provider: "id",
    Adapter: "key",
    ModelGroup: "id",
    ModelRoute: "id",
    PrincipalToken: "token_ref",
    GateFilter: "filter",
    HeaderValue: "name",
}
"""What tells two entries of a collection apart. Entries of any other type are compared as one
unordered whole, so a type that is missing here costs detail and never hides a change."""


class Kind(enum.Enum):
    """How two values of a leaf are compared."""

    PLAIN = "plain"
    UNORDERED = "unordered"
    """A collection in which order has no meaning."""
    SECRET = "secret"  # noqa: S105 - a kind of leaf
    """May hold a reference to a secret: the value behind an equal reference can differ."""
    FREE = "free"
    """A free map's value: `1` and `true` differ, though Python calls them equal."""


@dataclass(frozen=True, slots=True)
class Leaf:
    pattern: str
    reload: Reload
    kind: Kind

    @property
    def is_plain(self) -> bool:
        """Equal values mean the same, so that nothing in here needs a closer look."""
        return self.kind in (Kind.PLAIN, Kind.UNORDERED)


@dataclass(frozen=True, slots=True)
class Record:
    pattern: str
    reload: Reload | None
    fields: tuple[tuple[str, Shape], ...]
    is_plain: bool


@dataclass(frozen=True, slots=True)
class Keyed:
    """A collection of structs, told apart by the field `key`."""

    pattern: str
    reload: Reload
    key: str
    entry: Record

    @property
    def is_plain(self) -> bool:
        return self.entry.is_plain


@dataclass(frozen=True, slots=True)
class Table:
    """A map with free keys."""

    pattern: str
    reload: Reload
    entry: Shape

    @property
    def is_plain(self) -> bool:
        return self.entry.is_plain


Shape = Leaf | Record | Keyed | Table


@dataclass(frozen=True, slots=True)
class Row:
    """One path that can change. `is_entry` marks the coming and going of whole entries."""

    pattern: str
    reload: Reload
    is_entry: bool


@cache
def effective_shape() -> Record:
    """The shape of the whole effective config."""
    return shape_of(EffectiveConfig)


def shape_of(struct: type[Struct]) -> Record:
    """The shape of `struct` as a root. Raises `TypeError` where a leaf has no refresh class."""
    return _record(struct, "", None)


def rows(shape: Shape) -> Iterator[Row]:
    """Every path that can change with its class, in declaration order. Keys are not rows."""
    match shape:
        case Leaf(pattern, reload, _):
            yield Row(pattern, reload, is_entry=False)
        case Record(_, _, fields, _):
            for _, inner in fields:
                yield from rows(inner)
        case Keyed(pattern, reload, key, entry):
            yield Row(f"{pattern}[]", reload, is_entry=True)
            for name, inner in entry.fields:
                if name != key:
                    yield from rows(inner)
        case Table(pattern, reload, entry):
            if isinstance(entry, Leaf):
                yield Row(f"{pattern}[]", reload, is_entry=False)
            else:
                yield Row(f"{pattern}[]", reload, is_entry=True)
                yield from rows(entry)


def _record(struct: type[Struct], pattern: str, enclosing: Reload | None) -> Record:
    hints = get_type_hints(struct, include_extras=True)
    fields = tuple(
        (name, _shape(hints[name], f"{pattern}.{name}" if pattern else name, enclosing))
        for name in struct.__struct_fields__
        if Derived.DERIVED not in get_args(hints[name])
    )
    return Record(pattern, enclosing, fields, all(inner.is_plain for _, inner in fields))


def _shape(hint: Any, pattern: str, enclosing: Reload | None) -> Shape:
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        own = [mark for mark in marks if isinstance(mark, Reload)]
        return _shape(inner, pattern, own[-1] if own else enclosing)
    choices = _choices(hint)
    if len(choices) == 1 and _is_struct(choices[0]) and choices[0] is not SecretRef:
        return _record(choices[0], pattern, enclosing)
    if enclosing is None:
        raise TypeError(f"{pattern}: no refresh class at this field or around it")
    if SecretRef in choices:
        return Leaf(pattern, enclosing, Kind.SECRET)
    if len(choices) == 1:
        return _collection(choices[0], pattern, enclosing)
    return Leaf(pattern, enclosing, Kind.PLAIN)


def _collection(hint: Any, pattern: str, reload: Reload) -> Shape:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (tuple, frozenset, set, list):
        element = arguments[0]
        if _is_struct(element) and element in ENTRY_KEYS:
            entry = _record(element, f"{pattern}[]", reload)
            return Keyed(pattern, reload, ENTRY_KEYS[element], entry)
        if _holds_a_secret(element):
            raise TypeError(f"{pattern}: entries that hold secrets need a key to be compared by")
        return Leaf(pattern, reload, Kind.UNORDERED)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Table(pattern, reload, _shape(arguments[1], f"{pattern}[]", reload))
    return Leaf(pattern, reload, Kind.FREE if hint is Any else Kind.PLAIN)


def _choices(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union without None; the hint itself where it is no union."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(choice for choice in get_args(hint) if choice is not type(None))
    return (hint,)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _holds_a_secret(hint: Any) -> bool:
    if hint is SecretRef:
        return True
    if _is_struct(hint):
        return any(_holds_a_secret(inner) for inner in get_type_hints(hint).values())
    return any(_holds_a_secret(inner) for inner in get_args(hint))
