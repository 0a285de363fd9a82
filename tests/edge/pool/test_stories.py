"""Admission told as stories: a line is what happens and, after the arrow, what follows from it."""

import pytest

from tests.edge.pool.rig import MESSAGES, NORMALIZED, Story, spec


@pytest.mark.req("POOL-2", "POOL-5", "POOL-6")
def test_the_least_loaded_is_served_first_and_those_who_wait_in_order_of_arrival():
    Story([spec("a", capacity=2), spec("b", capacity=1)]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        r3 asks m -> r3 gets a
        r4 asks m -> r4 waits
        r5 asks m -> r5 waits
        r2 ends -> r4 gets b
        r1 ends -> r5 gets a
        r3 ends
        r6 asks m -> r6 gets a
        """
    )


@pytest.mark.req("POOL-2")
def test_equals_take_turns_and_a_refresh_does_not_begin_the_round_again():
    Story([spec("a", capacity=9), spec("b", capacity=9), spec("c", capacity=9)]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r1 ends
        r2 asks m -> r2 gets b
        r2 ends
        refresh a.capacity=8
        r3 asks m -> r3 gets c
        r3 ends
        r4 asks m -> r4 gets a
        """
    )


@pytest.mark.req("POOL-2")
def test_every_model_has_a_turn_of_its_own():
    Story([spec("a", capacity=9), spec("b", capacity=9)], {"m": ["a", "b"], "k": ["a", "b"]}).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r1 ends
        r2 asks k -> r2 gets a
        r2 ends
        r3 asks m -> r3 gets b
        r3 ends
        r4 asks k -> r4 gets b
        """
    )


@pytest.mark.req("POOL-2", "REF-3")
def test_priority_breaks_ties_of_load_alone_and_is_live():
    Story([spec("a", capacity=3, priority=5), spec("b", capacity=3)]).tell(
        """
        n joins
        r1 asks m -> r1 gets b
        r2 asks m -> r2 gets a
        r3 asks m -> r3 gets b
        refresh a.priority=0 b.priority=5
        r2 ends
        r4 asks m -> r4 gets a
        r5 asks m -> r5 gets a
        r6 asks m -> r6 gets a
        """
    )


@pytest.mark.req("POOL-4", "POOL-5")
def test_a_waiting_long_request_blocks_no_short_one_and_is_not_starved_by_them():
    Story([spec("a", capacity=2, long_slots=1)]).tell(
        """
        n joins
        long1 asks m long -> long1 gets a long
        long2 asks m long -> long2 waits
        s1 asks m -> s1 gets a
        s2 asks m -> s2 waits
        s1 ends -> s2 gets a
        s3 asks m -> s3 waits
        long1 ends -> long2 gets a long
        s2 ends -> s3 gets a
        """
    )


@pytest.mark.req("POOL-5")
def test_an_older_short_request_takes_the_slot_that_a_long_one_also_waits_for():
    Story([spec("a", capacity=1, long_slots=1)]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        s1 asks m -> s1 waits
        long1 asks m long -> long1 waits
        s2 asks m -> s2 waits
        r1 ends -> s1 gets a
        s1 ends -> long1 gets a long
        long1 ends -> s2 gets a
        """
    )


@pytest.mark.req("CFG-14", "POOL-4")
def test_long_slots_omitted_take_ordinary_ones_and_an_explicit_zero_takes_no_long_request():
    Story([spec("a", capacity=2), spec("b", capacity=9, long_slots=0)]).tell(
        """
        n joins
        long1 asks m long -> long1 gets a long
        long2 asks m long -> long2 gets a long
        long3 asks m long -> long3 waits
        s1 asks m -> s1 gets b
        """
    )


@pytest.mark.req("POOL-4")
def test_a_long_request_that_no_provider_could_ever_take_is_refused_at_once():
    Story([spec("a", capacity=2, long_slots=0)]).tell(
        """
        n joins
        long1 asks m long -> long1 refused context_length_exceeded
        """
    )


@pytest.mark.req("REF-3", "POOL-7")
def test_long_slots_and_the_threshold_are_live():
    Story([spec("a", capacity=3, long_slots=1)], threshold=100).tell(
        """
        n joins
        long1 asks m long -> long1 gets a long
        long2 asks m long -> long2 waits
        long3 asks m long -> long3 waits
        refresh a.long_slots=2 -> long2 gets a long
        refresh threshold=101 -> long3 gets a
        """
    )


@pytest.mark.req("POOL-3")
def test_models_that_share_a_provider_share_its_slots_and_its_queue():
    Story([spec("a", capacity=1), spec("b", capacity=1)], {"m": ["a"], "k": ["a", "b"]}).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks k -> r2 gets b
        r3 asks k -> r3 waits
        r4 asks m -> r4 waits
        r5 asks k -> r5 waits
        r1 ends -> r3 gets a
        r3 ends -> r4 gets a
        r2 ends -> r5 gets b
        """
    )


@pytest.mark.req("POOL-7")
def test_a_shrink_cancels_nothing_and_admits_nothing_until_it_has_drained():
    Story([spec("a", capacity=4)]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets a
        r3 asks m -> r3 gets a
        r4 asks m -> r4 gets a
        r5 asks m -> r5 waits
        r6 asks m -> r6 waits
        r7 asks m -> r7 waits
        refresh a.capacity=2
        r1 ends
        refresh a.capacity=2
        r2 ends
        r3 ends -> r5 gets a
        refresh a.capacity=3 -> r6 gets a
        r4 ends -> r7 gets a
        """
    )


@pytest.mark.req("POOL-7", "POOL-8")
def test_a_disabled_provider_drains_and_takes_up_again_where_it_was():
    story = Story([spec("a", capacity=2), spec("b", capacity=1)])
    story.tell(
        """
        n joins
        r1 asks m -> r1 gets a
        refresh a.is_enabled=false
        r2 asks m -> r2 gets b
        r3 asks m -> r3 waits
        r4 asks m -> r4 waits
        refresh a.is_enabled=true -> r3 gets a
        r1 ends -> r4 gets a
        """
    )


@pytest.mark.req("POOL-7")
def test_those_who_wait_for_a_provider_that_is_disabled_are_told_that_none_is_left():
    Story([spec("a"), spec("b")], {"m": ["a"], "k": ["a", "b"]}).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks k -> r2 gets b
        r3 asks m -> r3 waits
        r4 asks k -> r4 waits
        refresh a.is_enabled=false -> r3 refused no_provider
        r5 asks m -> r5 refused no_provider
        r2 ends -> r4 gets b
        """
    )


@pytest.mark.req("POOL-7")
def test_a_model_that_a_refresh_removes_is_not_found_also_by_those_who_wait():
    Story([spec("a")], {"m": ["a"], "k": ["a"]}).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        r3 asks k -> r3 waits
        refresh m=gone -> r2 refused model_not_found
        r4 asks m -> r4 refused model_not_found
        r1 ends -> r3 gets a
        """
    )


@pytest.mark.req("POOL-7")
def test_a_provider_mapped_to_a_model_serves_those_who_wait_for_it_at_once():
    Story([spec("a"), spec("b")], {"m": ["a"]}).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        refresh m=a+b -> r2 gets b
        refresh m=b
        r3 asks m -> r3 waits
        r1 ends
        r2 ends -> r3 gets b
        """
    )


@pytest.mark.req("POOL-5", "POOL-7", "CFG-7")
def test_overflow_is_told_at_once_and_a_lowered_bound_drops_nobody_and_adds_nobody():
    Story([spec("a")], max_queue=2).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        r3 asks m -> r3 waits
        r4 asks m -> r4 refused queue_full
        refresh max_queue=1
        r5 asks m -> r5 refused queue_full
        r1 ends -> r2 gets a
        r6 asks m -> r6 refused queue_full
        r2 ends -> r3 gets a
        r7 asks m -> r7 waits
        refresh max_queue=3
        r8 asks m -> r8 waits
        """
    )


@pytest.mark.req("POOL-5")
def test_those_who_have_gone_or_timed_out_leave_their_places_at_once():
    Story([spec("a")], max_queue=2, timeout_ms=200).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        r3 asks m -> r3 waits
        r3 hangs up
        at 0.2
        r4 asks m -> r2 expires, r4 waits
        r5 asks m -> r5 waits
        r6 asks m -> r6 refused queue_full
        """
    )


@pytest.mark.req("POOL-5", "POOL-7", "CFG-7")
def test_the_deadline_counts_from_arrival_and_follows_the_policy_that_holds():
    Story([spec("a")], timeout_ms=10_000).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        at 1
        r2 asks m -> r2 waits
        at 4
        r3 asks m -> r3 waits
        refresh timeout_ms=5000
        at 5.9
        time passes
        at 6
        time passes -> r2 expires
        refresh timeout_ms=0
        at 100000
        time passes
        refresh timeout_ms=20000 -> r3 expires
        r4 asks m -> r4 waits
        """
    )


@pytest.mark.req("POOL-5")
def test_nobody_is_granted_out_of_the_queue_at_or_after_the_deadline():
    Story([spec("a")], timeout_ms=1000).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        at 0.5
        r3 asks m -> r3 waits
        at 1.2
        r1 ends -> r2 expires, r3 gets a
        """
    )


@pytest.mark.req("POOL-1", "POOL-6", "NODE-6")
def test_a_lost_node_frees_no_slot_and_is_a_candidate_again_when_it_is_back():
    Story([spec("a", capacity=2), spec("b", node="o", capacity=1)]).tell(
        """
        r0 asks m -> r0 refused no_provider
        n joins
        o joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        n is lost
        r3 asks m -> r3 waits
        n joins -> r3 gets a
        r4 asks m -> r4 waits
        r1 ends -> r4 gets a
        """
    )


@pytest.mark.req("POOL-1", "POOL-7")
def test_when_the_last_provider_is_lost_those_who_wait_for_it_are_told_in_order():
    Story([spec("a"), spec("b", node="o")], {"m": ["a"], "k": ["b"]}).tell(
        """
        n joins
        o joins
        r1 asks m -> r1 gets a
        r2 asks k -> r2 gets b
        r3 asks m -> r3 waits
        r4 asks k -> r4 waits
        r5 asks m long -> r5 waits
        n is lost -> r3 refused no_provider, r5 refused no_provider
        r2 ends -> r4 gets b
        """
    )


@pytest.mark.req("POOL-13")
def test_a_run_that_failed_early_keeps_its_place_and_avoids_what_it_has_tried():
    Story([spec("a"), spec("b")]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        r3 asks m -> r3 waits
        r4 asks m -> r4 waits
        r1 fails -> r3 gets a, r1 waits
        r3 ends -> r4 gets a
        r5 asks m -> r5 waits
        r2 ends -> r1 gets b
        r1 fails -> r5 gets b, r1 refused no_provider
        """
    )


@pytest.mark.req("POOL-13")
def test_a_run_that_comes_back_is_served_before_all_that_came_later():
    Story([spec("a"), spec("b"), spec("c")]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        r3 asks m -> r3 gets c
        r4 asks m -> r4 waits
        r1 fails -> r4 gets a, r1 waits
        r5 asks m -> r5 waits
        r2 ends -> r1 gets b
        r3 ends -> r5 gets c
        """
    )


@pytest.mark.req("POOL-13")
def test_a_run_that_comes_back_has_its_old_deadline_and_no_room_of_its_own():
    Story([spec("a"), spec("b")], timeout_ms=1000, max_queue=1).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        at 0.4
        r3 asks m -> r3 waits
        r1 fails -> r3 gets a, r1 waits
        at 0.9
        r2 fails -> r1 gets b, r2 waits
        at 1
        time passes -> r2 expires
        r4 asks m -> r4 waits
        r3 fails -> r4 gets a, r3 waits
        r5 asks m -> r5 refused queue_full
        at 1.5
        r1 fails -> r3 expires, r1 refused no_provider
        """
    )


@pytest.mark.req("POOL-1", "NODE-10")
def test_a_degraded_provider_is_used_only_where_no_better_one_has_a_free_slot():
    Story([spec("a", capacity=1), spec("b", capacity=9), spec("c", health="unknown")]).tell(
        """
        n joins
        b probes degraded
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets c
        r3 asks m -> r3 gets b
        r1 ends
        r4 asks m -> r4 gets a
        b probes healthy
        r5 asks m -> r5 gets b
        b probes unavailable
        r6 asks m -> r6 waits
        b probes degraded -> r6 gets b
        """
    )


@pytest.mark.req("NODE-10")
def test_a_probe_lowers_the_declared_health_and_never_raises_it():
    Story([spec("a", capacity=9, health="degraded"), spec("b", capacity=9)]).tell(
        """
        n joins
        a probes healthy
        r1 asks m -> r1 gets b
        r2 asks m -> r2 gets b
        b probes unavailable
        r3 asks m -> r3 gets a
        n is lost
        n joins
        r4 asks m -> r4 gets b
        """
    )


@pytest.mark.req("POOL-9", "POOL-14")
def test_the_kind_of_request_decides_which_providers_of_a_mixed_model_can_serve_it():
    Story(
        [
            spec("chat", capacity=9),
            spec("native", capacity=9, abilities=NORMALIZED),
            spec("claude", capacity=1, abilities=MESSAGES),
        ]
    ).tell(
        """
        n joins
        r1 asks m for messages -> r1 gets chat
        r2 asks m for messages -> r2 gets claude
        r3 asks m for messages -> r3 gets native
        r4 asks m for chat_completions -> r4 gets chat
        r5 asks m for count_tokens -> r5 waits
        r6 asks m for models -> r6 refused unsupported_by_model
        r7 asks m for chat_completions -> r7 gets native
        r2 ends -> r5 gets claude
        """
    )


@pytest.mark.req("POOL-6", "POOL-7")
def test_nobody_but_its_holder_frees_a_slot_however_long_it_is_silent():
    Story([spec("a", capacity=2)], timeout_ms=0).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets a
        r3 asks m -> r3 waits
        at 120
        a probes healthy
        time passes
        refresh
        at 360
        a probes degraded
        refresh
        n joins
        time passes
        a probes healthy
        r4 asks m -> r4 waits
        r2 ends -> r3 gets a
        """
    )


@pytest.mark.req("POOL-6", "POOL-7")
def test_growing_back_after_a_shrink_wakes_exactly_what_fits():
    Story([spec("a", capacity=4)]).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets a
        r3 asks m -> r3 gets a
        r4 asks m -> r4 gets a
        refresh a.capacity=2
        r5 asks m -> r5 waits
        r6 asks m -> r6 waits
        r7 asks m -> r7 waits
        r1 ends
        r2 ends
        refresh a.capacity=2
        refresh a.capacity=3 -> r5 gets a
        refresh a.capacity=5 -> r6 gets a, r7 gets a
        """
    )


@pytest.mark.req("POOL-5")
def test_the_dead_do_not_fill_the_queue():
    Story([spec("a")], max_queue=2, timeout_ms=200).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 waits
        r3 asks m -> r3 waits
        at 0.2
        time passes -> r2 expires, r3 expires
        r4 asks m -> r4 waits
        r4 hangs up
        r5 asks m -> r5 waits
        r1 ends -> r5 gets a
        """
    )


@pytest.mark.req("POOL-3", "POOL-4", "POOL-5")
def test_long_and_short_of_two_models_on_one_provider_share_its_long_slot():
    Story(
        [spec("a", capacity=3, long_slots=1), spec("b", capacity=1)],
        {"big": ["a"], "small": ["a", "b"]},
    ).tell(
        """
        n joins
        r1 asks big long -> r1 gets a long
        r2 asks small long -> r2 gets b long
        r3 asks small long -> r3 waits
        r4 asks big -> r4 gets a
        r5 asks big long -> r5 waits
        r6 asks small -> r6 gets a
        r7 asks small -> r7 waits
        r2 ends -> r3 gets b long
        r1 ends -> r5 gets a long
        r4 ends -> r7 gets a
        """
    )


@pytest.mark.req("POOL-13")
def test_a_run_that_comes_back_after_its_deadline_takes_a_free_slot_and_waits_for_none():
    Story([spec("a"), spec("b")], timeout_ms=1000).tell(
        """
        n joins
        r1 asks m -> r1 gets a
        at 2
        r1 fails -> r1 gets b
        r2 asks m -> r2 gets a
        at 4
        r1 ends
        r3 asks m -> r3 gets b
        r2 fails -> r2 expires
        """
    )
