"""Every key that the config knows, and where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from msgspec import Struct, inspect

from iop_edge.config.document import Document

MAX_HOMES = 2


@cache
def _homes() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for pattern, _ in struct_fields(Document):
        home, _, key = pattern.rpartition(".")
        if home:
            found.setdefault(key, []).append(home)
    return {key: tuple(homes) for key, homes in found.items()}


def homes_of(key: str) -> tuple[str, ...]:
    """The patterns under which `key` is known, where they are few; none otherwise."""
    homes = _homes().get(key, ())
    return homes if len(homes) <= MAX_HOMES else ()


def struct_fields(cls: type[Struct], pattern: str = "") -> Iterator[tuple[str, inspect.Field]]:
    """Every field below `cls` with its pattern: `nodes[].providers[].capacity`."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        path = f"{pattern}.{field.encode_name}" if pattern else field.encode_name
        yield path, field
        yield from _below(field.type, path)


def _below(node: inspect.Type, path: str) -> Iterator[tuple[str, inspect.Field]]:
    while isinstance(node, inspect.Metadata):
        node = node.type
    if isinstance(node, inspect.UnionType):
        for variant in node.types:
            yield from _below(variant, path)
    elif isinstance(node, inspect.StructType):
        yield from struct_fields(node.cls, path)
    elif isinstance(node, inspect.ListType):
        yield from _below(node.item_type, f"{path}[]")
    elif isinstance(node, inspect.DictType):
        yield from _below(node.value_type, f"{path}[]")


def scalar_patterns(cls: type[Struct]) -> Iterator[str]:
    """Every pattern below `cls` at which a scalar may stand: `nodes[].providers[].models[]`."""
    for pattern, field in struct_fields(cls):
        yield from _scalars(field.type, pattern)


def _scalars(node: inspect.Type, pattern: str) -> Iterator[str]:
    match node:
        case inspect.Metadata():
            yield from _scalars(node.type, pattern)
        case inspect.UnionType():
            for variant in node.types:
                yield from _scalars(variant, pattern)
        case inspect.ListType():
            yield from _scalars(node.item_type, f"{pattern}[]")
        case inspect.DictType():
            yield from _scalars(node.value_type, f"{pattern}[]")
        case inspect.StructType() | inspect.NoneType():
            return
        case _:
            yield pattern


def structs_below(cls: type[Struct]) -> list[type[Struct]]:
    """`cls` and every struct that stands in it, each once, in the order of the fields."""
    found: dict[type[Struct], None] = {}
    _collect(inspect.type_info(cls), found)
    return list(found)


def _collect(node: inspect.Type, found: dict[type[Struct], None]) -> None:
    if isinstance(node, inspect.Metadata):
        _collect(node.type, found)
    elif isinstance(node, inspect.UnionType):
        for variant in node.types:
            _collect(variant, found)
    elif isinstance(node, inspect.ListType):
        _collect(node.item_type, found)
    elif isinstance(node, inspect.DictType):
        _collect(node.value_type, found)
    elif isinstance(node, inspect.StructType) and node.cls not in found:
        found[node.cls] = None
        for field in node.fields:
            _collect(field.type, found)
