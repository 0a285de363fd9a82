"""Legacy forms of the tree, rewritten to the present ones before files are merged (CFG-9)."""

from __future__ import annotations

from typing import Any

from iop_edge.config.report import Report
from iop_edge.config.yaml12.places import Marks, Steps, at_key


def normalize_legacy(root: dict[str, Any], report: Report) -> None:
    """Rewrite `root` in place: `adapters: {ollama: {…}}` becomes a list of named instances."""
    nodes = root.get("nodes")
    if not isinstance(nodes, list):
        return
    for number, node in enumerate(nodes):
        if isinstance(node, dict) and isinstance(node.get("adapters"), dict):
            node["adapters"] = _named(node["adapters"], ("nodes", number, "adapters"), report)


def _named(adapters: dict[str, Any], steps: Steps, report: Report) -> list[Any]:
    """Each body under the name of its type, which is its key too. Everything keeps its place."""
    places = report.places
    entries: list[Any] = []
    marks: Marks = {}
    for adapter_type, body in adapters.items():
        if body is None or report.is_closed((*steps, adapter_type)):
            continue
        mark = places.mark_at(adapters, adapter_type) or 0
        entry: Any = body
        if isinstance(body, dict):
            for key in ("key", "type"):
                if key in body:
                    report.error(
                        "unknown_key",
                        f"`{key}` has no place in this form, where the type stands above the "
                        "body; write `adapters` as a list to name an instance",
                        (*steps, adapter_type, key),
                        on_key=True,
                    )
            entry = {**body, "key": adapter_type, "type": adapter_type}
            name = at_key(mark)
            places.add(entry, {**places.marks_of(body), "key": name, "type": name})
        marks[len(entries)] = mark
        entries.append(entry)
    places.add(entries, marks)
    return entries
