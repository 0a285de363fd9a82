"""The name that somebody probably meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from heapq import nsmallest

MAX_CANDIDATES = 200
BUDGET = 500_000
"""Known names looked at in one load; a file full of nonsense gets no endless comparing."""


class Likely:
    """Finds the nearest known name, as long as its budget lasts."""

    def __init__(self) -> None:
        self._left = BUDGET

    def nearest(self, name: str, known: Collection[str]) -> str | None:
        """The known name nearest to `name`, or None where none is near."""
        self._left -= max(len(known), MAX_CANDIDATES)
        if self._left < 0 or len(name) > 256:
            return None
        candidates = _candidates(name, known)
        found = get_close_matches(_folded(name), candidates, n=1, cutoff=0.6)
        return candidates[found[0]] if found else None

    def hint(self, name: str, known: Collection[str]) -> str:
        """`; did you mean …?`, or nothing."""
        found = self.nearest(name, known)
        return f"; did you mean `{found}`?" if found is not None and found != name else ""


def _candidates(name: str, known: Collection[str]) -> dict[str, str]:
    """Known names by their folded form; of very many only those that look most alike."""
    near = known
    if len(known) > MAX_CANDIDATES:
        near = nsmallest(
            MAX_CANDIDATES,
            (one for one in known if abs(len(one) - len(name)) <= 1),
            key=lambda one: sum(a != b for a, b in zip(one, name, strict=False)),
        )
    return {_folded(one): one for one in near}


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")
