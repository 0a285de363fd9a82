"""Where everything in a tree of plain dicts and lists was written.

The tree itself stays plain, so that a decoder can take it as it is; places lie beside it, found by
the identity of a container. A *mark* packs file number, offset of the key and offset of the value
into one integer, which keeps ten thousand entries cheap for the garbage collector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from iop_edge.config.yaml12.text import Lines

Steps = tuple[str | int, ...]
"""From the root: keys of mappings and indices of lists."""

OFFSET_BITS = 27  # 64 MiB of text and one offset past its end
FILE_SHIFT = 2 * OFFSET_BITS
_OFFSET = (1 << OFFSET_BITS) - 1

Marks = dict[str | int, int]
"""Mark by key, or by index. A dict of integers alone is nothing the garbage collector looks at."""


class Place(NamedTuple):
    """File name, and line and column from 1."""

    file: str
    line: int
    column: int


def mark_of(file_number: int, key_offset: int, value_offset: int) -> int:
    return file_number << FILE_SHIFT | key_offset << OFFSET_BITS | value_offset


def at_key(mark: int) -> int:
    """The mark of a value that stands where the key of `mark` does."""
    key = mark >> OFFSET_BITS & _OFFSET
    return mark >> FILE_SHIFT << FILE_SHIFT | key << OFFSET_BITS | key


class Places:
    """The places of all trees of one candidate."""

    def __init__(self) -> None:
        self._files: list[tuple[str, Lines]] = []
        self._marks: dict[int, Marks] = {}
        # An identity names a container only while that container lives.
        self._containers: list[Any] = []
        self.expanded: set[int] = set()
        """Marks of the scalars whose value came from the environment."""

    def add_file(self, name: str, text: str) -> int:
        """Register a file and return its number."""
        self._files.append((name, Lines(text)))
        return len(self._files) - 1

    def add(self, container: dict[str, Any] | list[Any], marks: Marks) -> None:
        """Say where the entries of `container` stand: by key, or by index."""
        self._marks[id(container)] = marks
        self._containers.append(container)

    def marks_of(self, container: Any) -> Marks:
        """The marks of a container's entries; none where nothing is known of it."""
        return self._marks.get(id(container), {})

    def file_number(self, name: str) -> int:
        """The first file of that name; past the end where there is none."""
        for number, (known, _) in enumerate(self._files):
            if known == name:
                return number
        return len(self._files)

    def is_expanded(self, root: Any, steps: Steps) -> bool:
        """Whether the scalar at the steps came from the environment."""
        return bool(self.expanded) and self.mark_of(root, steps) in self.expanded

    def mark_of(self, root: Any, steps: Steps) -> int | None:
        """The mark of exactly what the steps lead to, or None where it was not written."""
        node, mark = root, None
        for step in steps:
            mark = self.mark_at(node, step)
            if mark is None:
                return None
            node = _entry(node, step)
        return mark

    def mark_at(self, container: Any, step: str | int) -> int | None:
        """The mark of one entry, or None where it was not written."""
        return self.marks_of(container).get(step)

    def place(self, mark: int, *, on_key: bool = False) -> Place:
        name, lines = self._files[mark >> FILE_SHIFT]
        offset = (mark >> OFFSET_BITS if on_key else mark) & _OFFSET
        return Place(name, *lines.place(offset))

    def find(self, root: Any, steps: Steps, *, on_key: bool = False) -> Place:
        """The place of what the steps lead to, or of the deepest part of them that was written.

        A scalar is found at its value, a mapping or list under a key at its key, an entry of a
        list at its beginning. `on_key` asks for the last key itself.
        """
        found: int | None = None
        node = root
        is_whole = True
        for step in steps:
            mark = self.mark_at(node, step)
            if mark is None:
                is_whole = False
                break
            found = mark
            node = _entry(node, step)
        if found is None:
            return Place(self._files[0][0], 1, 1) if self._files else Place("", 0, 0)
        wants_key = isinstance(node, dict | list) or (on_key and is_whole)
        return self.place(found, on_key=wants_key)


def _entry(node: Any, step: str | int) -> Any:
    """The entry, or None where it was null and has been taken out."""
    if isinstance(node, dict):
        return node.get(step)
    return node[step]
