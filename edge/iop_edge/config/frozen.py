"""A dict that refuses to change, so that an effective config is immutable to its depths."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(dict[K, V]):
    """Reads, compares and serializes like a dict. Every mutator raises TypeError."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("an effective config does not change; load a new one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def frozen(value: Any) -> Any:
    """`value`, a tree of dicts, lists and scalars, with frozen maps and tuples in their place."""
    if isinstance(value, dict):
        return FrozenMap({key: frozen(inner) for key, inner in value.items()})
    if isinstance(value, list):
        return tuple(frozen(inner) for inner in value)
    return value
