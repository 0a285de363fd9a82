"""Several files to one tree, later over earlier (CFG-2).

Maps merge. Lists of named entries merge by name; other lists, scalars, headers and references to
secrets are replaced whole. A `null` counts as omitted: over an earlier value it takes that value
away. The trees given are left as they are; what is new is recorded with the places it came from.
"""

from __future__ import annotations

from typing import Any

from iop_edge.config.yaml12.places import Places

_NAMED_LISTS: dict[tuple[str, ...], str] = {
    ("nodes",): "id",
    ("nodes", "adapters"): "key",
    ("nodes", "providers"): "id",
    ("models",): "id",
    ("openai", "model_routes"): "id",
    ("openai", "principal_tokens"): "token_ref",
}

Pattern = tuple[str, ...]


def merge(base: dict[str, Any], over: dict[str, Any], places: Places) -> dict[str, Any]:
    """`over` laid over `base`."""
    return _maps(base, over, (), places)


def without_nulls(node: Any) -> None:
    """Take every key out of `node` whose value is null, at every depth."""
    if isinstance(node, dict):
        for key in [key for key, value in node.items() if value is None]:
            del node[key]
        for value in node.values():
            if isinstance(value, dict | list):
                without_nulls(value)
    elif isinstance(node, list):
        for value in node:
            if isinstance(value, dict | list):
                without_nulls(value)


def _maps(
    base: dict[str, Any], over: dict[str, Any], pattern: Pattern, places: Places
) -> dict[str, Any]:
    merged = dict(base)
    marks = dict(places.marks_of(base))
    over_marks = places.marks_of(over)
    for key, value in over.items():
        mark = over_marks.get(key)
        if key in merged:
            combined = _values(merged[key], value, (*pattern, key), places)
            if combined is not value:
                mark = marks.get(key, mark)
            value = combined
        merged[key] = value
        if mark is not None:
            marks[key] = mark
    places.add(merged, marks)
    return merged


def _values(base: Any, over: Any, pattern: Pattern, places: Places) -> Any:
    if isinstance(base, dict) and isinstance(over, dict) and not _is_whole(pattern):
        return _maps(base, over, pattern, places)
    name = _NAMED_LISTS.get(pattern)
    if name is not None and isinstance(base, list) and isinstance(over, list):
        return _lists(base, over, name, pattern, places)
    return over


def _is_whole(pattern: Pattern) -> bool:
    """Whether a mapping at `pattern` is one value: a reference to a secret, or a header."""
    match pattern:
        case ("nodes", "token") | ("protocol_profiles", _, "auth", "value"):
            return True
        case ("nodes", "adapters" | "providers", "headers", _):
            return True
        case _:
            return False


def _lists(
    base: list[Any], over: list[Any], name: str, pattern: Pattern, places: Places
) -> list[Any]:
    """Entries of one name merge once; a second one of the same file stays, to be refused."""
    merged = list(base)
    marks = dict(places.marks_of(base))
    over_marks = places.marks_of(over)
    positions: dict[Any, int] = {}
    for position, entry in enumerate(base):
        if isinstance(entry, dict) and isinstance(entry.get(name), str):
            positions.setdefault(entry[name], position)
    for number, entry in enumerate(over):
        known = entry.get(name) if isinstance(entry, dict) else None
        position_of_base = positions.pop(known, None) if isinstance(known, str) else None
        if position_of_base is None:
            marks[len(merged)] = over_marks[number]
            merged.append(entry)
        else:
            merged[position_of_base] = _maps(merged[position_of_base], entry, pattern, places)
    places.add(merged, marks)
    return merged
