"""How a config value is shown to an operator: plain JSON values, and never a secret (SEC-1).

A reference to a secret is no secret and is shown, but for the digest of a node's token. In a free
map a value is hidden where its key speaks of a secret. URLs are shown without userinfo and query.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from iop_edge.config.effective import SecretRef
from iop_edge.config.view import REDACTED, free, without_credentials
from iop_edge.refresh.shape import Keyed, Kind, Leaf, Record, Shape, Table


def shown(shape: Shape, value: Any, *, key: str = "") -> Any:
    """The value as JSON may carry it, for operators. `key` is its own in the map it stands in."""
    if value is None:
        return None
    match shape:
        case Record(_, _, fields, _):
            return {name: shown(inner, getattr(value, name)) for name, inner in fields}
        case Keyed(_, _, _, entry):
            return [shown(entry, element) for element in value]
        case Table(_, _, entry):
            return {name: shown(entry, value[name], key=name) for name in sorted(value)}
        case Leaf(_, _, Kind.UNORDERED):
            return sorted((_plain(element) for element in value), key=canonical)
        case Leaf(_, _, Kind.FREE):
            return free(key, value)
        case Leaf():
            return _plain(value)


def canonical(value: Any) -> bytes:
    """Bytes that are equal exactly where two values mean the same to JSON."""
    return msgspec.json.encode(value, order="deterministic")


def _plain(value: Any) -> Any:
    match value:
        case SecretRef():
            return _reference(value)
        case Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        case str():
            return without_credentials(value)
        case _:
            return value


def _reference(reference: SecretRef) -> dict[str, str]:
    """The one field that is set: a name or a path as it is, a digest never."""
    fields = ((name, getattr(reference, name)) for name in reference.__struct_fields__)
    return {
        name: REDACTED if name == "sha256" else value for name, value in fields if value is not None
    }
