"""The order of the free, against sorting; and what keeps its index small."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.pool.explain import Absent, Standing
from iop_edge.pool.line import Line, Rank, Waiter
from iop_shared.ids import RunId
from tests.edge.pool.rig import demand

ranks = st.none() | st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2))


def filled(positions: list[int], at: list[Rank | None]) -> Line:
    line = Line(positions, is_long=False)
    line.fill([("available", rank) for rank in at])
    return line


@pytest.mark.req("POOL-2")
@settings(deadline=None)
@given(
    positions=st.sets(st.integers(0, 99), min_size=1, max_size=20).map(sorted),
    data=st.data(),
)
def test_it_picks_what_sorting_would(positions: list[int], data: st.DataObject):
    places = len(positions)
    now: list[Rank | None] = data.draw(st.lists(ranks, min_size=places, max_size=places))
    line = filled(positions, now)
    moves = data.draw(st.lists(st.tuples(st.integers(0, places - 1), ranks), max_size=40))
    for local, rank in moves:
        line.move(local, now[local], rank)
        now[local] = rank
        after = data.draw(st.integers(-1, 100))
        avoid = data.draw(st.just(0) | st.integers(0, 2**places - 1))
        free = [(r, i) for i, r in enumerate(now) if r is not None and not avoid >> i & 1]
        best = [i for r, i in free if r == min(free)[0]]
        in_turn = [i for i in best if positions[i] > after] or best
        assert line.pick(after, avoid) == (in_turn[0] if in_turn else None)
        assert line.free_count == sum(rank is not None for rank in now)


def test_ranks_that_nobody_holds_any_more_are_forgotten():
    line = filled([0, 1], [(0, 0, 0), (0, 0, 0)])
    rank: Rank = (0, 0, 0)
    for in_flight in range(1, 1000):
        after = (0, in_flight, 0)
        line.move(1, rank, after)
        rank = after
    assert len(line._buckets) == len(line._ranks) < 100
    assert line.pick(-1, 0) == 0


def test_a_lane_that_is_empty_leaves_nothing_behind():
    line = filled([0, 1, 2], [None] * 3)
    waiters = [
        Waiter(RunId(f"r{n}"), demand(), n, 0.0, 0.0, frozenset(), line, avoid)
        for n, avoid in enumerate((0, 0b001, 0b110))
    ]
    for waiter in waiters:
        line.join(waiter)
    assert {avoid: lane.first() for avoid, lane in line.lanes.items()} == {
        waiter.avoid: waiter for waiter in waiters
    }
    for waiter in waiters:
        line.leave(waiter)
    assert line.lanes == {}


def test_a_mask_names_the_positions_that_are_in_the_line():
    line = filled([3, 5, 8, 13], [None] * 4)
    assert line.places(line.mask({5, 13, 99})) == [5, 13]
    assert line.places(0) == []


def test_standings_are_counted_and_say_who_can_be_used():
    line = Line([0, 1, 2], is_long=True)
    line.fill([("available", None), ("disabled", None), ("not_connected", None)])
    assert line.usable == 0b001
    assert line.absent == Absent(disabled=1, not_connected=1)
    changes: list[tuple[int, Standing, Standing]] = [
        (1, "disabled", "available"),
        (0, "available", "unavailable"),
        (2, "not_connected", "disabled"),
    ]
    for local, before, after in changes:
        line.stand(local, before, after)
    assert line.usable == 0b010
    assert line.absent == Absent(disabled=1, unavailable=1)
