"""What differs between two effective configs, in the order of the paths (REF-2…4, REF-12).

Entries are matched by id and never by position; where order has no meaning a new order is no
change. Both sides are effective forms, so writing a default out is none either, and what a config
has from elsewhere in itself is reported at its source alone (`inherited`). Whether a change
may take effect is read off the shape; this module holds no list of its own, and it never sees the
value of a secret, only whether two of them have the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from iop_edge.config.effective import EffectiveConfig, SecretRef
from iop_edge.config.reload_class import Reload
from iop_edge.config.view import REDACTED
from iop_edge.refresh.inherited import Inherited
from iop_edge.refresh.path import ConfigPath
from iop_edge.refresh.reasons import SECRET_CHANGED, reason_for
from iop_edge.refresh.render import canonical, shown
from iop_edge.refresh.shape import Keyed, Kind, Leaf, Record, Shape, Table, effective_shape

SameSecret = Callable[[SecretRef], bool]
"""Whether the reference leads both sides to the same secret."""


class Change(NamedTuple):
    """One path whose meaning differs.

    `old` and `new` are JSON values for operators, None where the entry is not there; secrets are
    redacted. `reason` says what a restart path is bound to, and is None for a live one.
    """

    path: ConfigPath
    reload: Reload
    old: Any
    new: Any
    reason: str | None


def diff(
    before: EffectiveConfig, after: EffectiveConfig, same_secret: SameSecret
) -> tuple[Change, ...]:
    """All changes from `before` to `after`, ordered by path. Equal meaning gives none."""
    changes = _compare(effective_shape(), ConfigPath(), before, after, same_secret)
    old, new = Inherited(before), Inherited(after)
    own = (one for one in changes if not (old.holds(one.path) and new.holds(one.path)))
    return tuple(sorted(own, key=lambda change: str(change.path)))


def _compare(
    shape: Shape, path: ConfigPath, old: Any, new: Any, same_secret: SameSecret
) -> Iterator[Change]:
    match shape:
        case Leaf():
            yield from _compare_leaf(shape, path, old, new, same_secret)
        case Record(_, reload, fields, _):
            if old is None and new is None:
                return
            if reload is not None and (old is None or new is None):
                yield _change(shape, path, reload, old, new)
                return
            for name, inner in fields:
                before, after = getattr(old, name), getattr(new, name)
                if not (inner.is_plain and before == after):
                    yield from _compare(inner, path.field(name), before, after, same_secret)
        case Keyed(_, reload, key, entry):
            yield from _compare_entries(
                entry, reload, path, _by_key(old, key), _by_key(new, key), same_secret
            )
        case Table(_, reload, entry):
            yield from _compare_entries(entry, reload, path, old, new, same_secret)


def _compare_leaf(
    leaf: Leaf, path: ConfigPath, old: Any, new: Any, same_secret: SameSecret
) -> Iterator[Change]:
    if _differs(leaf.kind, old, new):
        yield _change(leaf, path, leaf.reload, old, new)
    elif isinstance(new, SecretRef) and not same_secret(new):
        yield Change(path, leaf.reload, REDACTED, REDACTED, SECRET_CHANGED)


def _differs(kind: Kind, old: Any, new: Any) -> bool:
    match kind:
        case Kind.UNORDERED:
            return sorted(map(canonical, old)) != sorted(map(canonical, new))
        case Kind.FREE:
            return canonical(old) != canonical(new)
        case Kind.PLAIN | Kind.SECRET:
            return bool(old != new)


def _compare_entries(
    entry: Shape,
    reload: Reload,
    path: ConfigPath,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    same_secret: SameSecret,
) -> Iterator[Change]:
    for key in sorted(old.keys() | new.keys()):
        at = path.entry(key)
        if key not in old or key not in new:
            yield _change(entry, at, reload, old.get(key), new.get(key))
        elif not (entry.is_plain and old[key] == new[key]):
            yield from _compare(entry, at, old[key], new[key], same_secret)


def _by_key(entries: tuple[Any, ...], key: str) -> Mapping[str, Any]:
    return {getattr(entry, key): entry for entry in entries}


def _change(shape: Shape, path: ConfigPath, reload: Reload, old: Any, new: Any) -> Change:
    reason = reason_for(shape.pattern) if reload is Reload.RESTART else None
    key = path.last_entry or ""
    return Change(path, reload, shown(shape, old, key=key), shown(shape, new, key=key), reason)
