"""What the stories cannot say shortly: numbers, facts, errors, and what a caller may not do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.effective import Health
from iop_edge.pool.catalog import Abilities, Attribution, Catalog
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Expired, Granted, Lease, Queued, Refused
from iop_edge.pool.pool import LeaseError, Pool
from iop_shared.errors import Code
from iop_shared.ids import NodeId, Resource, RunId
from iop_shared.profiles import Operation
from tests.edge.pool.rig import MESSAGES, NORMALIZED, Story, catalog, demand, policy, spec

R1, R2, R3, R4 = (RunId(f"r{n}") for n in range(1, 5))
N = NodeId("n")


def joined(of: Catalog, max_queue: int = 16, timeout_ms: int = 30_000) -> Pool:
    pool = Pool(of, policy(max_queue, timeout_ms))
    pool.node_connected(N, 0.0)
    return pool


def lease_of(effects: list[Effect]) -> Lease:
    assert isinstance(effects[-1], Granted)
    return effects[-1].lease


def refusal_of(effects: list[Effect]) -> Refused:
    assert isinstance(effects[-1], Refused)
    return effects[-1]


@pytest.mark.req("POOL-9", "POOL-10", "POOL-14")
def test_a_lease_names_where_the_run_goes_how_and_whom_it_is_counted_for():
    pool = joined(catalog([spec("a", abilities=NORMALIZED)]))
    lease = lease_of(pool.admit(R1, demand(), 0.0))
    assert lease.resource == spec("a").resource
    assert (lease.adapter, lease.target, lease.path) == ("adapter-of-a", "m-on-a", "normalized")
    assert lease.attribution == Attribution("provider", "a")
    by_group = joined(catalog([spec("a")], usage_attribution="model_group"))
    lease = lease_of(by_group.admit(R1, demand(), 0.0))
    assert (lease.path, lease.attribution) == ("tunnel", Attribution("model_group", "m"))


@pytest.mark.req("POOL-6")
def test_a_lease_is_released_once_and_a_run_holds_one():
    pool = joined(catalog([spec("a", capacity=2)]))
    lease = lease_of(pool.admit(R1, demand(), 0.0))
    with pytest.raises(LeaseError, match="r1"):
        pool.admit(R1, demand(), 0.0)
    pool.release(lease, 0.0)
    with pytest.raises(LeaseError, match="r1"):
        pool.release(lease, 0.0)
    again = lease_of(pool.admit(R1, demand(), 0.0))
    with pytest.raises(LeaseError):
        pool.release(lease, 0.0)
    assert pool.leases == (again,)
    assert pool.loads()[again.resource].in_flight == 1


@pytest.mark.req("POOL-6")
def test_a_run_that_waits_cannot_ask_again_and_a_lease_is_not_cancelled():
    pool = joined(catalog([spec("a")]))
    lease = lease_of(pool.admit(R1, demand(), 0.0))
    pool.admit(R2, demand(), 0.0)
    with pytest.raises(LeaseError, match="r2"):
        pool.admit(R2, demand(), 0.0)
    assert pool.cancel(R1, 0.0) == []
    assert pool.leases == (lease,)


@pytest.mark.req("POOL-4")
def test_the_context_window_holds_the_lower_bound_and_the_output_that_was_asked_for():
    pool = joined(catalog([spec("a", capacity=9)], window=8192))
    fits = demand(input_tokens=9000, floor=4192, output=4000)
    assert lease_of(pool.admit(R1, fits, 0.0))
    refused = refusal_of(pool.admit(R2, demand(floor=4193, output=4000), 0.0))
    assert refused.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert refused.retry_after_s is None
    for number in ("4193", "4000", "8192"):
        assert number in refused.message
    assert lease_of(pool.admit(R3, demand(floor=8192), 0.0))
    assert "output" not in refusal_of(pool.admit(R4, demand(floor=8193), 0.0)).message


@pytest.mark.req("POOL-4")
@pytest.mark.parametrize("operation", ["chat_completions", "responses", "messages", None])
def test_long_context_is_judged_alike_on_every_surface(operation: Operation | None):
    model = catalog([spec("a", capacity=3, long_slots=1)], window=128_000, threshold=50_000)
    narrow = joined(catalog([spec("a", capacity=3)], window=8192))
    asked = demand(operation=operation, input_tokens=7000, floor=6800, output=4000)
    assert refusal_of(narrow.admit(R1, asked, 0.0)).code is Code.CONTEXT_LENGTH_EXCEEDED
    pool = joined(model)
    long = demand(operation=operation, input_tokens=60_000, floor=50_000)
    first = lease_of(pool.admit(R1, long, 0.0))
    assert first.is_long
    assert isinstance(pool.admit(R2, long, 0.0)[-1], Queued)
    assert lease_of(pool.admit(R3, demand(operation=operation), 0.0))
    huge = demand(operation=operation, input_tokens=200_000, floor=180_000)
    refused = refusal_of(pool.admit(R4, huge, 0.0))
    assert refused.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "180000" in refused.message
    assert lease_of(pool.release(first, 1.0)).run_id == R2


@pytest.mark.req("POOL-4", "CFG-15")
def test_an_unknown_window_is_not_checked():
    pool = joined(catalog([spec("a")], window=None))
    assert lease_of(pool.admit(R1, demand(floor=10**9, output=10**9), 0.0))


@pytest.mark.req("POOL-4")
def test_a_long_request_without_a_taker_is_told_the_numbers():
    pool = joined(catalog([spec("a", long_slots=0)], threshold=100_000))
    refused = refusal_of(pool.admit(R1, demand(input_tokens=200_000), 0.0))
    assert refused.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "200000" in refused.message
    assert "100000" in refused.message


@pytest.mark.req("POOL-4", "CFG-6")
def test_the_estimate_alone_decides_the_class_and_the_threshold_itself_is_long():
    pool = joined(catalog([spec("a", capacity=9, long_slots=9)], threshold=100))
    assert not lease_of(pool.admit(R1, demand(input_tokens=99, floor=99, output=999), 0.0)).is_long
    assert lease_of(pool.admit(R2, demand(input_tokens=100, floor=1), 0.0)).is_long


@pytest.mark.req("POOL-7", "REF-11")
def test_a_narrower_window_is_no_matter_to_those_who_came_before_it():
    pool = joined(catalog([spec("a")], window=1000))
    first = lease_of(pool.admit(R1, demand(), 0.0))
    pool.admit(R2, demand(floor=900), 0.0)
    pool.replace(catalog([spec("a")], window=100), policy(), 1.0)
    assert refusal_of(pool.admit(R3, demand(floor=900), 1.0)).code is Code.CONTEXT_LENGTH_EXCEEDED
    second = lease_of(pool.release(first, 2.0))
    assert second.run_id == R2
    pool.release(second, 3.0)
    retried = pool.admit(R2, demand(floor=900), 3.0, retry_of=second)
    assert refusal_of(retried).code is Code.NO_PROVIDER


@pytest.mark.req("REF-3", "POOL-10")
def test_attribution_and_window_of_a_new_generation_hold_from_the_next_dispatch_on():
    pool = joined(catalog([spec("a", capacity=3)], window=100))
    before = lease_of(pool.admit(R1, demand(), 0.0))
    pool.replace(
        catalog([spec("a", capacity=3)], window=200, usage_attribution="model_group"), policy(), 1.0
    )
    after = lease_of(pool.admit(R2, demand(floor=150), 1.0))
    assert before.attribution == Attribution("provider", "a")
    assert after.attribution == Attribution("model_group", "m")
    assert pool.leases == (before, after)


@pytest.mark.req("POOL-14")
def test_what_no_provider_of_the_model_can_do_is_unsupported_whatever_is_connected():
    pool = Pool(catalog([spec("a", abilities=MESSAGES)]), policy())
    refused = refusal_of(pool.admit(R1, demand(operation="responses"), 0.0))
    assert refused.code is Code.UNSUPPORTED_BY_MODEL
    assert "responses" in refused.message
    asked = demand(operation="messages", capabilities=["tool_calling"])
    assert refusal_of(pool.admit(R1, asked, 0.0)).code is Code.UNSUPPORTED_BY_MODEL
    assert refusal_of(pool.admit(R1, demand(operation="messages"), 0.0)).code is Code.NO_PROVIDER


@pytest.mark.req("CFG-12", "POOL-14")
def test_a_disabled_provider_of_unknown_abilities_means_not_now_rather_than_never():
    unknown = spec("a", is_enabled=False, abilities=Abilities(is_known=False))
    pool = joined(catalog([unknown]))
    assert refusal_of(pool.admit(R1, demand(), 0.0)).code is Code.NO_PROVIDER


@pytest.mark.req("POOL-1")
def test_a_model_without_providers_has_no_provider_now():
    pool = joined(catalog([spec("a")], {"m": []}))
    refused = refusal_of(pool.admit(R1, demand(), 0.0))
    assert refused.code is Code.NO_PROVIDER


@pytest.mark.req("POOL-1")
def test_no_provider_says_what_stands_in_the_way_and_when_to_come_back():
    pool = Pool(
        catalog(
            [spec("a", is_enabled=False), spec("b"), spec("c", node="o", health="unavailable")]
        ),
        policy(),
    )
    pool.node_connected(NodeId("o"), 0.0)
    refused = refusal_of(pool.admit(R1, demand(), 0.0))
    assert refused.code is Code.NO_PROVIDER
    assert refused.message.endswith("1 disabled, 1 not connected, 1 unavailable")
    assert refused.retry_after_s is not None


@pytest.mark.req("POOL-5")
def test_a_full_queue_says_to_come_back_after_as_long_as_its_oldest_has_waited():
    pool = joined(catalog([spec("a")]), max_queue=1)
    lease = lease_of(pool.admit(R1, demand(), 0.0))
    pool.admit(R2, demand(), 0.0)
    assert refusal_of(pool.admit(R3, demand(), 0.1)).retry_after_s == 1.0
    assert refusal_of(pool.admit(R3, demand(), 6.2)).retry_after_s == 7.0
    [expired] = pool.expire(30.0)
    assert isinstance(expired, Expired)
    assert (expired.waited_s, expired.retry_after_s) == (30.0, 1.0)
    pool.release(lease, 31.0)


@pytest.mark.req("POOL-5")
def test_the_wait_is_counted_from_asking_to_the_grant():
    pool = joined(catalog([spec("a")]))
    lease = lease_of(pool.admit(R1, demand(), 1.0))
    pool.admit(R2, demand(), 2.0)
    assert pool.queue_status(4.5).oldest_ms == 2500.0
    [granted] = pool.release(lease, 5.0)
    assert isinstance(granted, Granted)
    assert granted.waited_s == 3.0
    assert pool.queue_status(5.0).oldest_ms is None


@pytest.mark.req("POOL-5", "POOL-13")
def test_status_shows_the_longest_wait_which_need_not_be_that_of_the_oldest_arrival():
    story = Story([spec("a"), spec("b")])
    story.tell(
        """
        n joins
        r1 asks m -> r1 gets a
        r2 asks m -> r2 gets b
        at 1
        r3 asks m -> r3 waits
        r4 asks m -> r4 waits
        at 4
        r1 fails -> r3 gets a, r1 waits
        """
    )
    assert story.pool.queue_status(5.0).oldest_ms == 4000.0


@pytest.mark.req("POOL-8")
def test_status_tells_free_busy_unavailable_and_disabled_apart():
    pool = joined(
        catalog(
            [
                spec("free", capacity=2, long_slots=1, priority=7),
                spec("busy"),
                spec("off", capacity=3, is_enabled=False),
                spec("sick", health="unavailable"),
                spec("away", node="o", health="unknown"),
            ],
            {"m": ["busy"]},
        )
    )
    pool.admit(R1, demand(), 0.0)
    by_name = {resource.provider_id: load for resource, load in pool.loads().items()}
    seen = {name: (load.status, load.health, load.capacity) for name, load in by_name.items()}
    assert seen == {
        "free": ("available", "healthy", 2),
        "busy": ("busy", "healthy", 1),
        "off": ("disabled", "disabled", 0),
        "sick": ("unavailable", "unavailable", 1),
        "away": ("unavailable", "unknown", 1),
    }
    free = by_name["free"]
    assert (free.long_context_capacity, free.priority, free.in_flight) == (1, 7, 0)


@pytest.mark.req("POOL-7", "POOL-8")
def test_a_disabled_provider_still_shows_what_is_in_flight():
    story = Story([spec("a", capacity=3, long_slots=1)])
    story.tell(
        """
        n joins
        r1 asks m long -> r1 gets a long
        r2 asks m -> r2 gets a
        refresh a.is_enabled=false
        """
    )
    [load] = story.pool.loads().values()
    assert (load.status, load.in_flight, load.long_in_flight) == ("disabled", 2, 1)


@pytest.mark.req("POOL-6", "POOL-7")
def test_a_resource_that_a_refresh_removes_is_forgotten_with_its_last_lease():
    pool = joined(catalog([spec("a", capacity=2), spec("b")], {"m": ["a"]}))
    first, second = (lease_of(pool.admit(run, demand(), 0.0)) for run in (R1, R2))
    pool.replace(catalog([spec("b")], {"m": ["b"]}), policy(), 1.0)
    pool.release(first, 2.0)
    pool.replace(catalog([spec("a", capacity=2)], {"m": ["a"]}), policy(), 3.0)
    assert pool.loads()[second.resource].in_flight == 1
    pool.replace(catalog([spec("b")], {"m": ["b"]}), policy(), 4.0)
    pool.release(second, 5.0)
    assert list(pool._resources) == [spec("b").resource]


@pytest.mark.req("NODE-10")
@pytest.mark.parametrize("health", ["healthy", "unavailable"])
def test_a_probe_of_what_the_catalog_does_not_hold_is_ignored(health: Health):
    pool = joined(catalog([spec("a")]))
    assert pool.probed_health(Resource(N, spec("z").resource.provider_id), health, 0.0) == []


@pytest.mark.req("POOL-5")
def test_an_empty_pool_refuses_and_shows_nothing():
    pool = Pool(catalog([], {}), policy())
    assert refusal_of(pool.admit(R1, demand(), 0.0)).code is Code.MODEL_NOT_FOUND
    assert pool.loads() == {}
    assert pool.queue_status(0.0).pending == 0
    assert pool.next_deadline is None


@pytest.mark.req("POOL-5")
@settings(deadline=None)
@given(
    capacity=st.integers(1, 4),
    long_slots=st.integers(1, 3),
    events=st.lists(st.sampled_from(["long", "short", "end"]), max_size=80),
    data=st.data(),
)
def test_an_older_request_is_passed_only_on_slots_it_could_not_use(
    capacity: int, long_slots: int, events: list[str], data: st.DataObject
):
    pool = joined(
        catalog([spec("a", capacity=capacity, long_slots=long_slots)], threshold=100),
        max_queue=1000,
    )
    waiting: dict[int, Demand] = {}
    running: list[Lease] = []
    for arrival, event in enumerate(events):
        if event == "end":
            if not running:
                continue
            lease = running.pop(data.draw(st.integers(0, len(running) - 1)))
            effects = pool.release(lease, 0.0)
        else:
            asked = demand(input_tokens=100 if event == "long" else 1)
            waiting[arrival] = asked
            effects = pool.admit(RunId(str(arrival)), asked, 0.0)
        for effect in effects:
            if not isinstance(effect, Granted):
                continue
            granted = effect.lease
            long_before = sum(lease.is_long for lease in running)
            older = [asked for came, asked in waiting.items() if came < int(granted.run_id)]
            for asked in older:
                assert asked.input_tokens == 100, "a short request was passed"
                assert not granted.is_long, "a long request was passed by a long one"
                assert long_before >= min(long_slots, capacity), (
                    "a slot it could use was given away"
                )
            del waiting[int(granted.run_id)]
            running.append(granted)


@pytest.mark.req("POOL-5")
def test_a_long_request_is_served_however_many_short_ones_keep_coming():
    pool = joined(catalog([spec("a", capacity=2, long_slots=1)], threshold=100), max_queue=100)
    running = [lease_of(pool.admit(RunId("long0"), demand(input_tokens=100), 0.0))]
    running.append(lease_of(pool.admit(RunId("short"), demand(), 0.0)))
    pool.admit(RunId("long1"), demand(input_tokens=100), 0.0)
    for n in range(50):
        pool.admit(RunId(f"s{n}"), demand(), 0.0)
    served = [lease_of(pool.release(lease, 1.0)).run_id for lease in reversed(running)]
    assert served == ["s0", "long1"]
