"""One model group as the pool sees it: its turn, and its slates.

A *slate* is what one kind of demand makes of the model's providers: which could serve it, in
which line they stand, and which could not and why. Kinds are few (operation, capabilities, long
or ordinary), so a slate is made at the first such demand after a refresh and kept until the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from iop_edge.pool.catalog import Candidate, ModelSpec, ResourceSpec
from iop_edge.pool.explain import SHOWN, Roster, State, Unfit
from iop_edge.pool.line import Line
from iop_edge.pool.resource import LiveResource
from iop_shared.ids import Resource
from iop_shared.profiles import Capability, Operation

Kind = tuple[Operation | None, frozenset[Capability], bool]
"""Operation, capabilities beside its own, and whether the demand is long."""

States = Callable[[Sequence[State]], tuple[State, ...]]


class Slate:
    """One kind of demand for one model. `line` is None where no provider could ever serve it."""

    __slots__ = ("group", "line", "roster", "shown_states")

    def __init__(
        self, group: Group, line: Line | None, roster: Roster, able: Sequence[int]
    ) -> None:
        self.group = group
        self.line = line
        self.roster = roster
        self.shown_states = _states_of(able[: SHOWN + 1])
        """Takes the states of `roster.able` out of the states of all resources."""


class Group:
    """One model. `last` is the resource it was last granted, and `turn` the position after which
    its next turn begins. A new catalog gets a new group, which takes over `last`: the rotation
    outlives a refresh, even one that removes that resource (POOL-2).
    """

    __slots__ = ("by_position", "last", "slates", "spec", "turn")

    def __init__(
        self,
        spec: ModelSpec,
        resources: Mapping[Resource, LiveResource],
        last: Resource | None,
        turn: int,
    ) -> None:
        self.spec = spec
        self.last = last
        self.turn = turn
        self.by_position: dict[int, Candidate] = {
            resources[candidate.resource].position: candidate for candidate in spec.candidates
        }
        self.slates: dict[Kind, Slate] = {}

    def divide(self, kind: Kind, order: Sequence[LiveResource]) -> tuple[list[int], Roster]:
        """The positions of those that could serve such a demand, and the division in full."""
        operation, capabilities, is_long = kind
        able: list[int] = []
        unfit: list[tuple[ResourceSpec, Unfit]] = []
        lacking: set[Capability] = set()
        for position, candidate in self.by_position.items():
            spec = order[position].spec
            if spec.abilities.path_for(operation, capabilities) is None:
                unfit.append((spec, "cannot_serve"))
            elif lacks := spec.abilities.lacks_for_gate(operation, candidate.gate_needs):
                unfit.append((spec, "lacks_gate_capability"))
                lacking |= lacks
            elif is_long and spec.long_slots == 0:
                unfit.append((spec, "takes_no_long_request"))
            else:
                able.append(position)
        return able, Roster(
            model=self.spec.id,
            is_long=is_long,
            able_count=len(able),
            able=tuple(order[position].spec for position in able[: SHOWN + 1]),
            unfit=tuple(unfit[:SHOWN]),
            unfit_counts=tuple(sorted(Counter(reason for _, reason in unfit).items())),
            lacking_for_gate=frozenset(lacking),
        )


def _states_of(positions: Sequence[int]) -> States:
    if len(positions) > 1:
        return itemgetter(*positions)
    if positions:
        only = positions[0]
        return lambda states: (states[only],)
    return lambda states: ()
