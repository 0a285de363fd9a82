"""Those who wait, in one order: of arrival, or of deadline. Knows no slots and no limits.

A heap of keys beside a table of members. Whoever leaves is out of the table at once, so lengths
are exact; what it leaves behind in the heap is dropped when it comes to the top, and the heap is
rebuilt before such remains outnumber the members. So joining, leaving and asking for the first
cost a logarithm at most, also for a run that comes back to its old place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

_SLACK = 64
"""Remains that are not worth a rebuild."""


T = TypeVar("T")


class Ordered(Generic[T]):
    """Members by a key that is unique and never changes, the least first; each at most once."""

    __slots__ = ("_key", "_members", "_order")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._members: dict[Any, T] = {}
        self._order: list[Any] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        """In order. Not for the hot path: it sorts."""
        return iter([self._members[key] for key in sorted(self._members)])

    def join(self, member: T) -> None:
        """Take it in at the place that its key gives it. Raises ValueError for one inside."""
        key, members, order = self._key(member), self._members, self._order
        if key in members:
            raise ValueError(f"{key} is in this queue already")
        members[key] = member
        heappush(order, key)
        if len(order) > 2 * len(members) + _SLACK:
            order[:] = members
            heapify(order)

    def leave(self, member: T) -> None:
        """Raises KeyError for one that is not inside."""
        del self._members[self._key(member)]

    def first(self) -> T | None:
        order, members = self._order, self._members
        while order:
            member = members.get(order[0])
            if member is not None:
                return member
            heappop(order)
        return None
