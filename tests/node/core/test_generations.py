"""The machine of generations: by example, and against a deliberately dumb reference."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from iop_node.core.generations import Abandoned, DeadlineReached, Drained, Draining, Generations


def installed(*registries: tuple[int, str, str]) -> Generations[str]:
    """A machine with these installed one after the other, at time 0, without deadlines."""
    machine: Generations[str] = Generations()
    for generation, token, held in registries:
        machine.prepare(generation, token, held)
        machine.install(token, 0.0, None)
    return machine


class TestReplacing:
    @pytest.mark.req("NODE-4")
    def test_a_registry_without_leases_stops_as_soon_as_it_is_replaced(self):
        machine = installed((1, "one", "a"))
        machine.prepare(2, "two", "b")
        assert machine.install("two", 0.0, 60.0) == [Drained(1, "one", ("a",))]

    @pytest.mark.req("NODE-4")
    def test_a_registry_with_leases_stops_with_the_last_of_them(self):
        machine = installed((1, "one", "a"))
        first, second = machine.take(), machine.take()
        machine.prepare(2, "two", "b")
        assert machine.install("two", 0.0, 60.0) == []
        assert machine.give_back(first) == []
        assert machine.give_back(second) == [Drained(1, "one", ("a",))]

    @pytest.mark.req("NODE-4")
    def test_several_registries_drain_at_once_and_stop_in_the_order_of_their_last_lease(self):
        machine = installed((1, "one", "a"))
        on_one = machine.take()
        machine.prepare(2, "two", "b")
        machine.install("two", 0.0, 60.0)
        on_two = machine.take()
        machine.prepare(3, "three", "c")
        machine.install("three", 10.0, 60.0)
        assert machine.draining(20.0) == (Draining(1, 1, 40.0), Draining(2, 1, 50.0))
        assert machine.give_back(on_two) == [Drained(2, "two", ("b",))]
        assert machine.give_back(on_one) == [Drained(1, "one", ("a",))]
        assert machine.tokens == ("three",)

    def test_the_current_registry_never_stops_for_want_of_leases(self):
        machine = installed((1, "one", "a"))
        assert machine.give_back(machine.take()) == []
        assert machine.current == "one"

    def test_a_lease_is_on_the_registry_that_was_current_when_it_was_taken(self):
        machine = installed((1, "one", "a"))
        before = machine.take()
        machine.prepare(2, "two", "b")
        assert machine.take().token == "one", "a prepared registry serves nobody"
        machine.install("two", 0.0, None)
        assert (before.token, machine.take().token) == ("one", "two")

    def test_generation_numbers_may_repeat_because_edges_begin_anew(self):
        machine = installed((1, "one", "a"), (1, "one of another edge", "b"))
        assert machine.current == "one of another edge"


class TestSharing:
    @pytest.mark.req("NODE-3")
    def test_what_two_registries_hold_is_released_with_the_last(self):
        machine = installed((1, "one", "ab"))
        lease = machine.take()
        machine.prepare(2, "two", "bc")
        machine.install("two", 0.0, None)
        assert machine.give_back(lease) == [Drained(1, "one", ("a",))]
        machine.prepare(3, "three", "")
        assert machine.install("three", 0.0, None) == [Drained(2, "two", ("b", "c"))]

    def test_what_a_prepared_registry_holds_outlives_its_other_holders(self):
        """A registry that drains may end while the next one still starts."""
        machine = installed((1, "one", "a"))
        lease = machine.take()
        machine.prepare(2, "two", "")
        machine.install("two", 0.0, None)
        machine.prepare(3, "three", "a")
        assert machine.give_back(lease) == [Drained(1, "one", ())]
        assert machine.abandon("three") == [Abandoned(3, "three", ("a",))]

    def test_an_abandoned_registry_releases_only_what_nobody_else_holds(self):
        machine = installed((1, "one", "a"))
        machine.prepare(2, "two", "ab")
        assert machine.abandon("two") == [Abandoned(2, "two", ("b",))]
        assert machine.current == "one"


class TestDeadlines:
    @pytest.mark.req("NODE-4")
    def test_a_deadline_names_the_leases_that_are_left_and_is_told_once(self):
        machine = installed((1, "one", "a"))
        returned, left = machine.take(), machine.take()
        machine.prepare(2, "two", "b")
        machine.install("two", 100.0, 5.0)
        machine.give_back(returned)
        assert machine.next_due() == 105.0
        assert machine.due(104.9) == []
        assert machine.due(105.0) == [DeadlineReached(1, (left,))]
        assert machine.due(200.0) == []
        assert machine.next_due() is None
        assert machine.draining(200.0) == (Draining(1, 1, 0.0),)
        assert machine.give_back(left) == [Drained(1, "one", ("a",))]

    def test_a_registry_without_deadline_drains_for_ever(self):
        machine = installed((1, "one", "a"))
        machine.take()
        machine.prepare(2, "two", "b")
        machine.install("two", 0.0, None)
        assert machine.next_due() is None
        assert machine.due(1e9) == []
        assert machine.draining(1e9) == (Draining(1, 1, None),)

    @pytest.mark.parametrize("own", [None, 5.0, 500.0])
    def test_an_end_of_the_whole_bounds_those_that_drain_already(self, own):
        machine = installed((1, "one", "a"))
        first = machine.take()
        machine.prepare(2, "two", "b")
        machine.install("two", 0.0, own)
        second = machine.take()
        assert machine.retire(1.0, 30.0) == []
        due = machine.due(31.0)
        assert due == [DeadlineReached(1, (first,)), DeadlineReached(2, (second,))]
        assert machine.give_back(first) == [Drained(1, "one", ("a",))]
        assert machine.give_back(second) == [Drained(2, "two", ("b",))]


class TestMisuse:
    def test_a_lease_comes_back_once(self):
        machine = installed((1, "one", "a"))
        lease = machine.take()
        machine.give_back(lease)
        with pytest.raises(ValueError):
            machine.give_back(lease)

    def test_nothing_is_taken_before_the_first_registry_or_after_the_last(self):
        machine: Generations[str] = Generations()
        with pytest.raises(LookupError):
            machine.take()
        machine = installed((1, "one", "a"))
        assert machine.retire(0.0, None) == [Drained(1, "one", ("a",))]
        with pytest.raises(LookupError):
            machine.take()

    def test_only_a_prepared_registry_is_installed_or_abandoned(self):
        machine = installed((1, "one", "a"))
        for act in (lambda: machine.install("one", 0.0, None), lambda: machine.abandon("one")):
            with pytest.raises(ValueError):
                act()
        with pytest.raises(ValueError):
            machine.prepare(1, "one", "a")
        assert machine.current == "one"


class GenerationsAgainstTheDumbOne(RuleBasedStateMachine):
    """The reference keeps a list of everything that ever happened, and asks it each time."""

    leases = Bundle("leases")
    prepared = Bundle("prepared")

    @initialize()
    def begin(self) -> None:
        self.machine: Generations[int] = Generations()
        self.now = 0.0
        self.serial = 0
        self.alive: dict[int, dict[str, object]] = {}
        self.current: int | None = None
        self.stopped: list[int] = []
        self.released: list[str] = []
        self.born: set[str] = set()

    def take_in(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Drained | Abandoned):
                self.stopped.append(effect.token)
                self.released.extend(effect.released)

    @rule(target=prepared, shared=st.sets(st.integers(0, 30)), fresh=st.integers(0, 2))
    def prepare(self, shared: set[int], fresh: int) -> int:
        """Share some of what lives, as the applier does, and add something new."""
        living = sorted(set().union(*(entry["held"] for entry in self.alive.values())))
        held = {living[index] for index in shared if index < len(living)}
        token = self.serial
        held |= {f"thing {token}.{number}" for number in range(fresh)}
        self.serial += 1
        self.born |= held
        self.alive[token] = {"held": held, "state": "prepared", "leases": 0}
        self.machine.prepare(token, token, held)
        return token

    @rule(token=consumes(prepared), drain_s=st.none() | st.floats(0, 50))
    def install(self, token: int, drain_s: float | None) -> None:
        if self.current is not None:
            self.alive[self.current]["state"] = "draining"
        self.alive[token]["state"] = "current"
        self.current = token
        self.take_in(self.machine.install(token, self.now, drain_s))

    @rule(token=consumes(prepared))
    def abandon(self, token: int) -> None:
        self.alive[token]["state"] = "over"
        self.take_in(self.machine.abandon(token))

    @precondition(lambda self: self.current is not None)
    @rule(target=leases)
    def take(self) -> object:
        lease = self.machine.take()
        assert lease.token == self.current
        self.alive[lease.token]["leases"] += 1
        return lease

    @rule(lease=consumes(leases))
    def give_back(self, lease) -> None:
        self.alive[lease.token]["leases"] -= 1
        self.take_in(self.machine.give_back(lease))

    @rule(passes=st.floats(0, 30))
    def time_passes(self, passes: float) -> None:
        self.now += passes
        for effect in self.machine.due(self.now):
            assert isinstance(effect, DeadlineReached)
            assert len(effect.leases) == self.alive[effect.generation]["leases"]
        assert self.machine.due(self.now) == [], "a deadline is told once"

    @invariant()
    def stops_exactly_what_has_no_user_left(self) -> None:
        if not hasattr(self, "machine"):
            return
        for entry in self.alive.values():
            if entry["state"] == "draining" and not entry["leases"]:
                entry["state"] = "over"
        over = [token for token, entry in self.alive.items() if entry["state"] == "over"]
        assert sorted(self.stopped) == over, "each registry stops exactly once, and none early"
        held = set().union(
            *(entry["held"] for entry in self.alive.values() if entry["state"] != "over")
        )
        assert len(self.released) == len(set(self.released)), "each thing is released once"
        assert set(self.released) == self.born - held, "with its last holder, and not before"
        assert self.machine.current == self.current
        assert self.machine.leases == sum(entry["leases"] for entry in self.alive.values())
        for token in over:
            self.alive[token]["held"] = set()


TestGenerationsAgainstTheDumbOne = pytest.mark.req("NODE-3", "NODE-4")(
    GenerationsAgainstTheDumbOne.TestCase
)
TestGenerationsAgainstTheDumbOne.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
