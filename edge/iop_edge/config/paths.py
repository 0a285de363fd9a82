"""Config paths as people read them: `nodes[gpu-a].providers[p1].capacity` (CFG-4)."""

from __future__ import annotations

import json
from typing import Any

from iop_edge.config.yaml12.places import Steps

LIST_KEYS = {
    "nodes": "id",
    "providers": "id",
    "models": "id",
    "adapters": "key",
    "model_routes": "id",
    "principal_tokens": "token_ref",
    "filters": "filter",
}
"""What names an entry of a list in a path; an index stands where it is missing."""

FREE_MAPS = frozenset({"protocol_profiles", "headers", "operations", "model_mapping", "extensions"})
"""Mappings whose keys are names that the operator chose."""


def quoted(name: str) -> str:
    """The name as it stands in a path's brackets: as it is, or as a JSON string."""
    is_plain = (
        name != ""
        and name.isprintable()
        and not any(character.isspace() or character in "[]\"'" for character in name)
    )
    return name if is_plain else json.dumps(name, ensure_ascii=not name.isprintable())


def render(root: Any, steps: Steps) -> str:
    """The path of the steps from `root`, which may end anywhere along them."""
    text = ""
    node = root
    parent: str | int | None = None
    is_free = False
    for step in steps:
        entry = _child(node, step)
        if isinstance(step, int):
            text += f"[{_entry_name(entry, parent, step)}]"
            is_free = False
        elif is_free:
            text += f"[{quoted(step)}]"
            is_free = parent == "extensions" and isinstance(entry, dict)
        else:
            shown = quoted(step)
            text += f".{shown}" if text else shown
            is_free = step in FREE_MAPS or (step == "providers" and isinstance(entry, dict))
        parent = step if isinstance(step, str) else None
        node = entry
    return text


def _entry_name(entry: Any, parent: str | int | None, index: int) -> str:
    key = LIST_KEYS.get(parent) if isinstance(parent, str) else None
    name = entry.get(key) if key is not None and isinstance(entry, dict) else None
    return quoted(name) if isinstance(name, str) and name else str(index)


def _child(node: Any, step: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return None
