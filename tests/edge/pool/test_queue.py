"""Who is the oldest, whoever came and went."""

from operator import attrgetter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.pool.queue import Ordered


class Member(NamedTuple):
    arrival: int


def test_the_oldest_arrival_is_first_whenever_it_joined():
    queue: Ordered[Member] = Ordered(attrgetter("arrival"))
    for arrival in (5, 2, 9):
        queue.join(Member(arrival))
    assert queue.first() == Member(2)
    assert [member.arrival for member in queue] == [2, 5, 9]


def test_whoever_leaves_is_gone_at_once_and_may_come_back_to_the_same_place():
    queue: Ordered[Member] = Ordered(attrgetter("arrival"))
    for arrival in (1, 2):
        queue.join(Member(arrival))
    queue.leave(Member(1))
    assert (len(queue), queue.first()) == (1, Member(2))
    queue.join(Member(1))
    assert (len(queue), queue.first()) == (2, Member(1))


def test_a_member_joins_once_and_leaves_once():
    queue: Ordered[Member] = Ordered(attrgetter("arrival"))
    queue.join(Member(1))
    with pytest.raises(ValueError, match="1 is in"):
        queue.join(Member(1))
    queue.leave(Member(1))
    with pytest.raises(KeyError):
        queue.leave(Member(1))


def test_what_the_departed_leave_behind_stays_bounded_behind_one_that_never_goes():
    queue: Ordered[Member] = Ordered(attrgetter("arrival"))
    queue.join(Member(0))
    for arrival in range(1, 10_000):
        queue.join(Member(arrival))
        queue.leave(Member(arrival))
    assert queue.first() == Member(0)
    assert len(queue._order) < 100


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=400))
def test_it_agrees_with_a_sorted_list(events: list[tuple[bool, int]]):
    queue: Ordered[Member] = Ordered(attrgetter("arrival"))
    plain: set[int] = set()
    for joins, arrival in events:
        if joins and arrival not in plain:
            queue.join(Member(arrival))
            plain.add(arrival)
        elif not joins and arrival in plain:
            queue.leave(Member(arrival))
            plain.remove(arrival)
        oldest = queue.first()
        assert (oldest and oldest.arrival) == min(plain, default=None)
        assert len(queue) == len(plain)
