"""Where in the config a change stands, as people read it (CFG-4).

`nodes[gpu-a].providers[p1].capacity`; an id with brackets, quotes or white space is quoted, so
that a path reads back unambiguously.
"""

from __future__ import annotations

from typing import NamedTuple

from iop_edge.config.paths import quoted


class Entry(NamedTuple):
    """One step into a collection, by the entry's id."""

    id: str


class ConfigPath(NamedTuple):
    """The steps from the root: field names, and entries of the collection named before."""

    steps: tuple[str | Entry, ...] = ()

    def field(self, name: str) -> ConfigPath:
        return ConfigPath((*self.steps, name))

    def entry(self, entry_id: str) -> ConfigPath:
        return ConfigPath((*self.steps, Entry(entry_id)))

    @property
    def last_entry(self) -> str | None:
        """The id of the entry that the path itself ends at, or None."""
        last = self.steps[-1] if self.steps else None
        return last.id if isinstance(last, Entry) else None

    def entry_of(self, *collections: str) -> str | None:
        """The id of the innermost entry, where the path leads through exactly these collections.

        `entry_of("nodes", "providers")` of `nodes[a].providers[p].capacity` is `p`.
        """
        innermost = None
        for depth, collection in enumerate(collections):
            match self.steps[2 * depth : 2 * depth + 2]:
                case (name, Entry(entry_id)) if name == collection:
                    innermost = entry_id
                case _:
                    return None
        return innermost

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, Entry):
                text += f"[{quoted(step.id)}]"
            else:
                text += f".{step}" if text else step
        return text
