"""Those who wait, oldest arrival first. Knows no slots, no limits and no deadlines.

A heap of arrival numbers beside a table of members. Whoever leaves is out of the table at once,
so lengths are exact; what it leaves behind in the heap is dropped when it comes to the top, and
the heap is rebuilt before such remains outnumber the members. So joining, leaving and asking for
the oldest cost a logarithm at most, also for a run that comes back to its old place.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

_SLACK = 64
"""Remains that are not worth a rebuild."""


class Arrived(Protocol):
    """Whatever came at some time. `arrival` is unique; the smaller came earlier."""

    @property
    def arrival(self) -> int: ...


T = TypeVar("T", bound=Arrived)


class ArrivalQueue(Generic[T]):
    """Members by arrival, each at most once."""

    __slots__ = ("_members", "_order")

    def __init__(self) -> None:
        self._members: dict[int, T] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        """Oldest first. Not for the hot path: it sorts."""
        return iter([self._members[arrival] for arrival in sorted(self._members)])

    def join(self, member: T) -> None:
        """Take it in at the place that its arrival gives it. Raises ValueError for one inside."""
        members, order = self._members, self._order
        if member.arrival in members:
            raise ValueError(f"arrival {member.arrival} is in this queue already")
        members[member.arrival] = member
        heappush(order, member.arrival)
        if len(order) > 2 * len(members) + _SLACK:
            order[:] = members
            heapify(order)

    def leave(self, member: T) -> None:
        """Raises KeyError for one that is not inside."""
        del self._members[member.arrival]

    def oldest(self) -> T | None:
        order, members = self._order, self._members
        while order:
            member = members.get(order[0])
            if member is not None:
                return member
            heappop(order)
        return None
