"""Explanations: complete, exact, bounded, and of the moment of the decision."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.pool.catalog import ResourceSpec
from iop_edge.pool.explain import SHOWN, Decision, Explanation
from iop_edge.pool.pool import Pool
from iop_shared.ids import NodeId, RunId
from tests.edge.pool.rig import MESSAGES, NORMALIZED, TUNNEL, Story, catalog, demand, policy, spec

N = NodeId("n")


def explained(pool: Pool, run_id: str, **asked: int) -> Explanation:
    return pool.admit(RunId(run_id), demand(**asked), 0.0)[-1].decision.explain()


@pytest.mark.req("POOL-12")
def test_every_reason_why_one_is_passed_over_has_a_name():
    pool = Pool(
        catalog(
            [
                spec("a1"),
                spec("a2"),
                spec("b-later", priority=1),
                spec("c-busy"),
                spec("d-loaded", capacity=9),
                spec("e-degraded", health="degraded"),
                spec("f-disabled", is_enabled=False),
                spec("g-sick", health="unavailable"),
                spec("h-away", node="o"),
                spec("i-messages", abilities=MESSAGES),
            ],
            {"m": ["a1", "a2", "b-later", "c-busy", "d-loaded", "e-degraded", "f-disabled",
                   "g-sick", "h-away", "i-messages"],
             "c": ["c-busy"], "d": ["d-loaded"]},
        ),
        policy(),
    )  # fmt: skip
    pool.node_connected(N, 0.0)
    pool.admit(RunId("c"), demand("c"), 0.0)
    pool.admit(RunId("d"), demand("d"), 0.0)
    explanation = explained(pool, "r")
    assert explanation.outcome == "granted"
    assert explanation.chosen is not None
    assert explanation.chosen.provider_id == "a1"
    assert {seen.provider_id: seen.reason for seen in explanation.others} == {
        "a2": "not_its_turn",
        "b-later": "later_priority",
        "c-busy": "no_free_slot",
        "d-loaded": "more_in_flight",
        "e-degraded": "degraded",
        "f-disabled": "disabled",
        "g-sick": "unavailable",
        "h-away": "not_connected",
        "i-messages": "cannot_serve",
    }
    assert explanation.rest == {}


@pytest.mark.req("POOL-12")
def test_a_long_request_is_told_about_long_slots():
    pool = Pool(catalog([spec("a", capacity=2, long_slots=1), spec("b", long_slots=0)]), policy())
    pool.node_connected(N, 0.0)
    assert explained(pool, "r1", input_tokens=1000).chosen is not None
    waits = explained(pool, "r2", input_tokens=1000)
    assert (waits.outcome, waits.context_class, waits.chosen) == ("queued", "long", None)
    assert [(seen.reason, seen.long_in_flight) for seen in waits.others] == [
        ("no_free_long_slot", 1),
        ("takes_no_long_request", None),
    ]


@pytest.mark.req("POOL-12", "GATE-3")
def test_a_provider_that_lacks_what_the_gate_needs_there_is_told_apart():
    pool = Pool(
        catalog(
            [spec("a"), spec("b"), spec("c", abilities=MESSAGES)],
            gate_needs={("m", "b"): ("count_tokens",), ("m", "c"): ("tool_calling",)},
        ),
        policy(),
    )
    pool.node_connected(N, 0.0)
    explanation = explained(pool, "r")
    assert explanation.chosen is not None
    assert explanation.chosen.provider_id == "a"
    assert [(seen.provider_id, seen.reason) for seen in explanation.others] == [
        ("b", "lacks_gate_capability"),
        ("c", "cannot_serve"),
    ]


@pytest.mark.req("POOL-12", "POOL-13")
def test_what_an_earlier_attempt_has_tried_is_shown_first():
    story = Story([spec("a", capacity=2), spec("b")])
    story.tell("n joins\nr1 asks m -> r1 gets a")
    lease = story.leases["r1"]
    story.pool.release(lease, 0.0)
    [granted] = story.pool.admit(RunId("r1"), demand(), 0.0, retry_of=lease)
    [tried] = granted.decision.explain().others
    assert (tried.provider_id, tried.reason, tried.in_flight) == ("a", "already_tried", 0)


@pytest.mark.req("POOL-7", "POOL-12")
def test_who_is_turned_away_by_a_refresh_is_told_of_the_new_catalog_not_the_old():
    story = Story([spec("a"), spec("b"), spec("c"), spec("d")], {"m": ["c", "d"], "k": ["d"]})
    story.tell(
        """
        n joins
        r1 asks m -> r1 gets c
        r2 asks m -> r2 gets d
        r3 asks m -> r3 waits
        r1 fails -> r3 gets c, r1 waits
        """
    )
    smaller = catalog([spec("c"), spec("d", is_enabled=False)], {"m": ["c", "d"]})
    [refused] = story.pool.replace(smaller, policy(), 1.0)
    told = [(seen.provider_id, seen.reason) for seen in refused.decision.explain().others]
    assert told == [("c", "already_tried"), ("d", "disabled")]


@pytest.mark.req("POOL-12")
def test_a_refusal_and_an_expiry_are_explained_as_a_grant_is():
    story = Story([spec("a")], max_queue=1, timeout_ms=1000)
    story.tell("n joins\nr1 asks m -> r1 gets a\nr2 asks m -> r2 waits")
    full = explained(story.pool, "r3")
    assert (full.outcome, full.others[0].reason) == ("queue_full", "no_free_slot")
    [late] = story.pool.expire(1.5)
    explanation = late.decision.explain()
    assert (explanation.outcome, explanation.waited_ms) == ("queue_timeout", 1500.0)
    unknown = story.pool.admit(RunId("r4"), demand("nobody"), 2.0)[-1].decision.explain()
    assert (unknown.outcome, unknown.others, unknown.rest) == ("model_not_found", (), {})


@pytest.mark.req("POOL-4", "POOL-12")
@pytest.mark.parametrize("providers", [1, SHOWN + 5])
def test_a_free_provider_is_not_blamed_for_a_request_that_nobody_could_serve(providers: int):
    pool = Pool(catalog([spec(f"p{n:02}") for n in range(providers)], window=100), policy())
    pool.node_connected(N, 0.0)
    explanation = explained(pool, "r", floor=101)
    assert (explanation.outcome, explanation.chosen) == ("context_length_exceeded", None)
    assert {seen.reason for seen in explanation.others} == {"request_refused"}
    beyond = providers - len(explanation.others)
    assert explanation.rest == ({"request_refused": beyond} if beyond else {})


@pytest.mark.req("POOL-12")
def test_an_explanation_is_of_the_moment_however_late_one_looks():
    story = Story([spec("a", capacity=2), spec("b", capacity=2)])
    story.tell("n joins")
    decision = story.pool.admit(RunId("r1"), demand(), 0.0)[-1].decision
    at_once = decision.explain()
    story.tell(
        """
        r2 asks m -> r2 gets b
        refresh a.capacity=9 b.is_enabled=false
        n is lost
        """
    )
    assert decision.explain() == at_once


@pytest.mark.req("POOL-12")
def test_an_explanation_is_plain_json():
    pool = Pool(catalog([spec("a")]), policy())
    encoded = msgspec.json.decode(msgspec.json.encode(explained(pool, "r")))
    assert encoded["outcome"] == "no_provider"
    assert encoded["others"][0]["reason"] == "not_connected"


kinds = st.builds(
    dict,
    capacity=st.integers(1, 2),
    long_slots=st.sampled_from([None, 0, 1]),
    priority=st.integers(0, 1),
    is_enabled=st.sampled_from([True, True, False]),
    health=st.sampled_from(["healthy", "healthy", "degraded", "unavailable"]),
    abilities=st.sampled_from([TUNNEL, NORMALIZED, MESSAGES]),
    node=st.sampled_from(["n", "n", "o"]),
)


@pytest.mark.req("POOL-12")
@settings(deadline=None)
@given(
    kinds=st.lists(kinds, min_size=1, max_size=40),
    tokens=st.sampled_from([1, 1000]),
    before=st.integers(0, 30),
)
def test_chosen_others_and_rest_count_every_provider_of_the_model_once(
    kinds: list[dict[str, object]], tokens: int, before: int
):
    specs = [spec(f"p{i:02}", **kind) for i, kind in enumerate(kinds)]
    pool = Pool(catalog(specs), policy())
    pool.node_connected(N, 0.0)
    for n in range(before):
        pool.admit(RunId(f"b{n}"), demand(input_tokens=tokens if n % 2 else 1), 0.0)
    loads = {resource: load.in_flight for resource, load in pool.loads().items()}
    longs = {resource: load.long_in_flight for resource, load in pool.loads().items()}
    explanation = explained(pool, "r", input_tokens=tokens)

    def plain(one: ResourceSpec) -> str:
        if one.abilities is MESSAGES:
            return "cannot_serve"
        if tokens == 1000 and one.long_slots == 0:
            return "takes_no_long_request"
        if not one.is_enabled:
            return "disabled"
        if one.resource.node_id == "o":
            return "not_connected"
        if one.health == "unavailable":
            return "unavailable"
        if loads[one.resource] >= one.capacity:
            return "no_free_slot"
        if tokens == 1000 and one.long_slots is not None and longs[one.resource] >= one.long_slots:
            return "no_free_slot"
        return "ranked_behind"

    coarse = {
        "no_free_long_slot": "no_free_slot",
        **dict.fromkeys(
            ("degraded", "more_in_flight", "later_priority", "not_its_turn"), "ranked_behind"
        ),
    }
    expected = Counter(map(plain, specs))
    if explanation.chosen is not None:
        expected["ranked_behind"] -= 1
    told = Counter(coarse.get(seen.reason, seen.reason) for seen in explanation.others)
    assert told + Counter(explanation.rest) == +expected
    assert len(explanation.others) <= SHOWN
    assert len(explanation.others) == SHOWN or not explanation.rest
    by_name = {one.resource.provider_id: one for one in specs}
    for seen in explanation.others:
        assert coarse.get(seen.reason, seen.reason) == plain(by_name[seen.provider_id])


def test_a_decision_keeps_nothing_that_grows_with_the_number_of_candidates():
    pool = Pool(catalog([spec(f"p{n:04}") for n in range(2000)]), policy())
    pool.node_connected(N, 0.0)
    decision = pool.admit(RunId("r"), demand(), 0.0)[-1].decision
    assert isinstance(decision, Decision)
    assert len(decision.states) == SHOWN + 1
    assert decision.roster is not None
    assert len(decision.roster.able) == SHOWN + 1
    assert decision.explain().rest == {"ranked_behind": 2000 - 1 - SHOWN}
