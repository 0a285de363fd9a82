"""Why a decision fell as it did (POOL-12): who was seen, and why each was passed over.

A `Decision` is what the pool knew at that moment, kept in a handful of references to immutable
values: taking one costs a fraction of an admission, whether there are ten candidates or ten
thousand. It is worked out into words only when somebody looks, and looking later changes nothing:
it holds no reference to anything that moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from iop_edge.pool.catalog import ResourceSpec
from iop_shared.ids import ModelId, NodeId, ProviderId, Resource, RunId
from iop_shared.profiles import Capability

SHOWN = 16
"""Candidates beside the chosen one that an explanation shows in full."""

Standing = Literal["available", "disabled", "not_connected", "unavailable"]
"""Whether a resource can be a candidate at all, and why not (POOL-1)."""

State = tuple[int, int, Standing, int]
"""In flight, long in flight, standing, tier (0, or 1 for degraded) of a resource at a moment."""

Unfit = Literal["cannot_serve", "lacks_gate_capability", "takes_no_long_request"]
"""Why a provider of the model is no candidate for this kind of request, whatever the load. One
that `lacks_gate_capability` could serve it if no filter of the gate were blocking there."""

Reason = (
    Standing
    | Unfit
    | Literal[
        "chosen",
        "already_tried",
        "no_free_slot",
        "no_free_long_slot",
        "degraded",
        "more_in_flight",
        "later_priority",
        "not_its_turn",
        "ranked_behind",
        "request_refused",
    ]
)


_IN_COUNTS: dict[Reason, Reason] = {
    "no_free_long_slot": "no_free_slot",
    "degraded": "ranked_behind",
    "more_in_flight": "ranked_behind",
    "later_priority": "ranked_behind",
    "not_its_turn": "ranked_behind",
}
"""What a count calls the reasons that only a look at the single candidate tells apart."""


class Absent(Struct, frozen=True):
    """How many of a line's resources cannot be candidates now, by standing."""

    disabled: int = 0
    not_connected: int = 0
    unavailable: int = 0

    @property
    def total(self) -> int:
        return self.disabled + self.not_connected + self.unavailable


class Roster(Struct, frozen=True, kw_only=True):
    """A model's providers as one kind of demand divides them; shared by all its decisions."""

    model: ModelId
    is_long: bool
    able_count: int
    able: tuple[ResourceSpec, ...]
    """The first SHOWN + 1 that could serve, in the order of the rotation."""
    unfit: tuple[tuple[ResourceSpec, Unfit], ...]
    """The first SHOWN that could not."""
    unfit_counts: tuple[tuple[Unfit, int], ...]
    lacking_for_gate: frozenset[Capability] = frozenset()
    """What the gate asks for and those passed over for it do not have."""


class Seen(Struct, frozen=True, kw_only=True):
    """One candidate at the moment of the decision."""

    node_id: NodeId
    provider_id: ProviderId
    reason: Reason
    in_flight: int | None
    """None where the load was not looked at, because it could not have mattered."""
    capacity: int
    long_in_flight: int | None
    long_context_capacity: int | None
    priority: int


class Explanation(Struct, frozen=True, kw_only=True):
    """A decision in words. `rest` counts by reason the candidates that `others` does not show;
    there, `ranked_behind` had a free slot and was not the best. `request_refused` had a free slot,
    and nobody was chosen: what was refused is the request, as `outcome` says."""

    run_id: RunId
    model: ModelId
    outcome: str
    context_class: Literal["ordinary", "long"] | None
    waited_ms: float
    chosen: Seen | None
    others: tuple[Seen, ...]
    rest: dict[str, int]


class Decision(Struct, frozen=True, eq=False):
    """What was known when a run was granted, queued or refused.

    `outcome` is `granted`, `queued`, or the code of the refusal. `roster` is None where there
    were no candidates to look at (unknown model). `states` belong to `roster.able`, `tried_states`
    to the resources of earlier attempts. All of it is as it was *before* the decision.
    """

    run_id: RunId
    model: ModelId
    outcome: str
    waited_s: float
    roster: Roster | None = None
    states: tuple[State, ...] = ()
    free_count: int = 0
    absent: Absent = Absent()
    chosen: tuple[ResourceSpec, State] | None = None
    tried_states: tuple[tuple[ResourceSpec, State], ...] = ()

    def explain(self) -> Explanation:
        """Work it out. The counts are exact: chosen, others and rest add up to the providers."""
        roster = self.roster
        full = [] if roster is None else list(self._full(roster))
        rest = Counter(_IN_COUNTS.get(seen.reason, seen.reason) for seen in full[SHOWN:])
        if roster is not None:
            rest.update(self._unseen(roster))
            for reason, count in roster.unfit_counts:
                rest[reason] += count - sum(seen.reason == reason for seen in full)
        return Explanation(
            run_id=self.run_id,
            model=self.model,
            outcome=self.outcome,
            context_class=None if roster is None else "long" if roster.is_long else "ordinary",
            waited_ms=self.waited_s * 1000,
            chosen=None if self.chosen is None else _seen(*self.chosen, "chosen"),
            others=tuple(full[:SHOWN]),
            rest={str(reason): count for reason, count in sorted(rest.items()) if count},
        )

    def _known(self, roster: Roster) -> dict[Resource, tuple[ResourceSpec, State]]:
        """Every able resource whose state was kept, the tried ones first; the chosen one apart."""
        known = {spec.resource: (spec, state) for spec, state in self.tried_states}
        for spec, state in zip(roster.able, self.states, strict=False):
            known.setdefault(spec.resource, (spec, state))
        if self.chosen is not None:
            known.pop(self.chosen[0].resource, None)
        return known

    def _full(self, roster: Roster) -> Iterator[Seen]:
        for spec, state in self._known(roster).values():
            yield _seen(spec, state, self._reason(roster, spec, state))
        for spec, reason in roster.unfit:
            yield _seen(spec, None, reason)

    def _unseen(self, roster: Roster) -> Counter[Reason]:
        """Counts of the able resources whose state was not kept one by one."""
        known = list(self._known(roster).values())
        standings = Counter(state[2] for _, state in known)
        free = self.free_count - sum(_free(roster, spec, state) is None for spec, state in known)
        if self.chosen is not None:
            known.append(self.chosen)
            free -= 1
        counts: Counter[Reason] = Counter()
        counts["disabled"] = self.absent.disabled - standings["disabled"]
        counts["not_connected"] = self.absent.not_connected - standings["not_connected"]
        counts["unavailable"] = self.absent.unavailable - standings["unavailable"]
        counts["request_refused" if self.chosen is None else "ranked_behind"] = free
        counts["no_free_slot"] = roster.able_count - len(known) - counts.total()
        return counts

    def _reason(self, roster: Roster, spec: ResourceSpec, state: State) -> Reason:
        """Why one able resource was not the chosen one. The first that holds, in POOL-1's order."""
        if state[2] != "available":
            return state[2]
        if any(spec.resource == tried.resource for tried, _ in self.tried_states):
            return "already_tried"
        not_free = _free(roster, spec, state)
        if not_free is not None:
            return not_free
        if self.chosen is None:
            return "request_refused"
        best, best_state = self.chosen
        if state[3] != best_state[3]:
            return "degraded"
        if state[0] != best_state[0]:
            return "more_in_flight"
        return "later_priority" if spec.priority != best.priority else "not_its_turn"


def _free(roster: Roster, spec: ResourceSpec, state: State) -> Reason | None:
    """None where the resource had a free slot for such a request; else what was missing."""
    in_flight, long_in_flight, standing, _ = state
    if standing != "available":
        return standing
    if in_flight >= spec.capacity:
        return "no_free_slot"
    if roster.is_long and spec.long_slots is not None and long_in_flight >= spec.long_slots:
        return "no_free_long_slot"
    return None


def _seen(spec: ResourceSpec, state: State | None, reason: Reason) -> Seen:
    return Seen(
        node_id=spec.resource.node_id,
        provider_id=spec.resource.provider_id,
        reason=reason,
        in_flight=None if state is None else state[0],
        capacity=spec.capacity,
        long_in_flight=None if state is None else state[1],
        long_context_capacity=spec.long_slots,
        priority=spec.priority,
    )
