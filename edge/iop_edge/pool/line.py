"""One line: the resources that can serve a kind of demand, in order, and who waits for one.

Demands whose sets of able resources are equal share a line, whatever model or operation they
name; ordinary and long demands never do. A line keeps

* *the free*: its resources with a free slot, in buckets by rank (tier, in flight, priority). A
  bucket is an integer used as a set of bits, one for each place in the rotation. The best rank
  comes from a heap; the next in turn within a bucket from a shift and a mask. Both are exact, and
  cost little more for thousands of resources than for ten (10,000 bits are 1.3 KB).
* *the waiting*: a queue ("lane") for each set of places that its members must avoid (POOL-13);
  nearly always one, of those that avoid none.

While someone waits in a lane, no resource that the lane may use is free. That is the invariant
which lets a released slot wake only the lines of its own resource. A line knows no model, no
policy and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from msgspec import Struct

from iop_edge.pool.demand import Demand
from iop_edge.pool.explain import Absent, Standing
from iop_edge.pool.queue import Ordered
from iop_shared.ids import Resource, RunId

Rank = tuple[int, int, int]
"""Tier, in flight, priority: the smaller is served first (POOL-1, POOL-2)."""

_SLACK = 64
"""Empty buckets that are not worth a sweep."""


class Line:
    """See the module. `positions` are the places of its resources in the whole rotation, sorted;
    a *local* place is an index into them, and a mask has one bit for each local place."""

    __slots__ = (
        "_buckets", "_ranks", "_standings", "absent", "free_count", "is_long", "lanes",
        "positions", "usable",
    )  # fmt: skip

    def __init__(self, positions: Sequence[int], is_long: bool) -> None:
        self.positions = positions
        self.is_long = is_long
        self.usable = 0
        """Mask of the resources that are candidates but for their load."""
        self.free_count = 0
        self.absent = Absent()
        self.lanes: dict[int, Ordered[Waiter]] = {}
        self._buckets: dict[Rank, int] = {}
        self._ranks: list[Rank] = []
        self._standings: dict[Standing, int] = {}

    # --- the free -------------------------------------------------------------------------

    def fill(self, members: Iterable[tuple[Standing, Rank | None]]) -> None:
        """Say of every place at once, in their order, how it stands and where it ranks."""
        places: dict[Rank, list[int]] = {}
        usable = []
        for local, (standing, rank) in enumerate(members):
            self._standings[standing] = self._standings.get(standing, 0) + 1
            if standing == "available":
                usable.append(local)
            if rank is not None:
                places.setdefault(rank, []).append(local)
                self.free_count += 1
        self.usable = _mask(usable)
        self._buckets = {rank: _mask(locals_) for rank, locals_ in places.items()}
        self._ranks = sorted(self._buckets)
        self._count_absent()

    def stand(self, local: int, before: Standing, after: Standing) -> None:
        """One resource became a candidate, ceased to be one, or is none for another reason."""
        standings = self._standings
        standings[before] -= 1
        standings[after] = standings.get(after, 0) + 1
        if (before == "available") != (after == "available"):
            self.usable ^= 1 << local
        self._count_absent()

    def move(self, local: int, before: Rank | None, after: Rank | None) -> None:
        """One resource went from one rank to another; None is to be without a free slot."""
        if before == after:
            return
        buckets = self._buckets
        bit = 1 << local
        if before is None:
            self.free_count += 1
        else:
            buckets[before] ^= bit
        if after is None:
            self.free_count -= 1
        elif after in buckets:
            buckets[after] |= bit
        else:
            buckets[after] = bit
            heappush(self._ranks, after)
            if len(buckets) > 2 * len(self.positions) + _SLACK:
                self._sweep()

    def pick(self, after: int, avoid: int) -> int | None:
        """The local place of the best free resource that `avoid` leaves; None where there is none.

        Among those of the best rank: the first whose position comes after `after`, and past the
        last one the first of all.
        """
        bits = self._best(avoid) if avoid else self._first()
        if not bits:
            return None
        start = bisect_right(self.positions, after)
        later = bits >> start
        if later:
            return start + (later & -later).bit_length() - 1
        return (bits & -bits).bit_length() - 1

    def _first(self) -> int:
        """The bucket of the best rank; 0 where nothing is free."""
        buckets, ranks = self._buckets, self._ranks
        while ranks:
            bits = buckets[ranks[0]]
            if bits:
                return bits
            del buckets[heappop(ranks)]
        return 0

    def _best(self, avoid: int) -> int:
        """The same of those that `avoid` leaves. Only for a run that has failed before."""
        for rank in sorted(self._buckets):
            bits = self._buckets[rank] & ~avoid
            if bits:
                return bits
        return 0

    def _sweep(self) -> None:
        """Forget the ranks that nobody holds any more."""
        self._buckets = {rank: bits for rank, bits in self._buckets.items() if bits}
        self._ranks = list(self._buckets)
        heapify(self._ranks)

    def _count_absent(self) -> None:
        get = self._standings.get
        self.absent = Absent(get("disabled", 0), get("not_connected", 0), get("unavailable", 0))

    # --- the waiting ----------------------------------------------------------------------

    def mask(self, positions: Container[int]) -> int:
        """The mask of those of these positions that are in the line."""
        return _mask([local for local, p in enumerate(self.positions) if p in positions])

    def places(self, mask: int) -> list[int]:
        """The positions in a mask; the reverse of `mask`."""
        return [p for local, p in enumerate(self.positions) if mask >> local & 1] if mask else []

    def join(self, waiter: Waiter) -> None:
        """Into the lane of those that avoid what it avoids."""
        lane = self.lanes.get(waiter.avoid)
        if lane is None:
            lane = self.lanes[waiter.avoid] = Ordered(by_arrival)
        lane.join(waiter)

    def leave(self, waiter: Waiter) -> None:
        lane = self.lanes[waiter.avoid]
        lane.leave(waiter)
        if not lane:
            del self.lanes[waiter.avoid]


NOWHERE = Line((), is_long=False)
"""The line of a run that was not sent to one."""


class Waiter(Struct, eq=False):
    """One run that asks for a slot.

    `arrival` is its place in the order of arrival, `arrived_at` the clock from which its deadline
    counts, `asked_at` when this admission began (seconds). `line` and `avoid` say where it waits.
    """

    run_id: RunId
    demand: Demand
    arrival: int
    arrived_at: float
    asked_at: float
    tried: frozenset[Resource]
    line: Line = NOWHERE
    avoid: int = 0


by_arrival = attrgetter("arrival")
"""The order in which waiters are served."""

by_deadline = attrgetter("arrived_at", "arrival")
"""The order in which they time out: that of arrival, but for runs whose clock stood still."""


def _mask(places: Sequence[int]) -> int:
    """The set of these places. Linear, where adding bit by bit would copy the whole each time."""
    if not places:
        return 0
    octets = bytearray(places[-1] // 8 + 1)
    for place in places:
        octets[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(octets, "little")
