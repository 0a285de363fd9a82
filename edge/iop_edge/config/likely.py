"""The name that somebody probably meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice

MAX_CANDIDATES = 200
MAX_ASKED = 200


class Likely:
    """Finds the nearest known name. Bounded: a file full of nonsense gets no endless comparing."""

    def __init__(self) -> None:
        self._asked = 0

    def nearest(self, name: str, known: Collection[str]) -> str | None:
        """The known name nearest to `name`, or None where none is near."""
        if self._asked >= MAX_ASKED or len(name) > 256:
            return None
        self._asked += 1
        candidates = _candidates(name, known)
        found = get_close_matches(_folded(name), candidates, n=1, cutoff=0.6)
        return candidates[found[0]] if found else None

    def hint(self, name: str, known: Collection[str]) -> str:
        """`; did you mean …?`, or nothing."""
        found = self.nearest(name, known)
        return f"; did you mean `{found}`?" if found is not None and found != name else ""


def _candidates(name: str, known: Collection[str]) -> dict[str, str]:
    """Known names by their folded form; of very many only those that look alike at first sight."""
    if len(known) <= MAX_CANDIDATES:
        return {_folded(one): one for one in known}
    near = (one for one in known if abs(len(one) - len(name)) <= 1 and one[:1] == name[:1])
    return {_folded(one): one for one in islice(near, MAX_CANDIDATES)}


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")
