from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from iop.runtime_pb2 import (
    Hello,
    NodeConfigPayload,
    NodeReport,
    ProtocolRange,
    ProviderHealth,
    ProviderResource,
)
from iop_edge.runtime.node_hub import JoinRefused, NodeAnswer
from iop_edge.runtime.node_push import MAX_PAYLOAD_BYTES
from iop_node.adapters.base import Responder
from iop_node.runtime.router import Attempt

from .conftest import NODE, Pair, Ports


async def nothing(attempt: Attempt, out: Responder) -> None:
    out.head(200, [])


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():
            await asyncio.sleep(0)


async def push(pair: Pair, generation: int, timeout_s: float = 5.0) -> NodeAnswer:
    payloads = {NODE: NodeConfigPayload(generation=generation)}
    pair.hub.set_desired(payloads)
    [answer] = [answer async for answer in pair.hub.push(payloads, timeout_s)]
    return answer


@pytest.mark.req("POOL-1")
async def test_a_node_is_a_candidate_once_it_has_acknowledged_and_not_before(pair: Pair) -> None:
    ports = Ports(nothing)
    ports.hold_answers.clear()
    await pair.join(nothing, ports=ports)
    await asyncio.sleep(0)
    assert pair.hub.views()[0].state == "joining"
    assert pair.pool.events == []
    ports.hold_answers.set()
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
        while not pair.pool.events:
            await asyncio.sleep(0)
    assert pair.pool.events == [("connected", NODE)]
    assert pair.hub.views()[0].state == "connected"


@pytest.mark.req("REF-9")
async def test_a_push_is_acknowledged_and_all_four_facts_agree(pair: Pair) -> None:
    _, _, ports = await pair.join(nothing)
    answer = await push(pair, 2)
    assert (answer.outcome, answer.generation) == ("acknowledged", 2)
    view = pair.hub.views()[0]
    assert (view.desired, view.sent, view.acknowledged, view.effective) == (2, 2, 2, 2)
    assert ports.applied == [1, 2]


@pytest.mark.req("REF-9", "POOL-1")
async def test_a_node_that_refuses_keeps_what_it_runs_and_stays_a_candidate(pair: Pair) -> None:
    _, _, ports = await pair.join(nothing)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
    ports.refuse = ("missing_ca_file", "adapter a: the file is not there")
    answer = await push(pair, 2)
    assert (answer.outcome, answer.generation) == ("refused", 1)
    view = pair.hub.views()[0]
    assert (view.desired, view.sent, view.acknowledged, view.effective) == (2, 2, 1, 1)
    assert view.last_failure == "missing_ca_file: adapter a: the file is not there"
    assert view.state == "connected"
    assert pair.pool.events == [("connected", NODE)]


@pytest.mark.req("REF-9")
async def test_a_refused_generation_is_not_sent_again_within_its_session(pair: Pair) -> None:
    _, _, ports = await pair.join(nothing)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
    ports.refuse = ("bad", "no")
    assert (await push(pair, 2)).outcome == "refused"
    ports.refuse = None
    assert (await push(pair, 2)).outcome == "refused"
    assert ports.applied == [1]
    assert (await push(pair, 3)).outcome == "acknowledged"


@pytest.mark.req("REF-9")
async def test_a_late_answer_still_counts_for_what_is_shown(pair: Pair) -> None:
    _, _, ports = await pair.join(nothing)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
    ports.hold_answers.clear()
    answer = await push(pair, 2, timeout_s=0.01)
    assert answer.outcome == "timed_out"
    assert pair.hub.views()[0].effective == 1
    ports.hold_answers.set()
    async with asyncio.timeout(5):
        while pair.hub.views()[0].effective != 2:
            await asyncio.sleep(0)
    assert pair.hub.views()[0].last_failure is None


@pytest.mark.req("REF-9")
async def test_a_node_that_is_away_is_told_so_and_gets_the_current_payload_when_it_joins(
    pair: Pair,
) -> None:
    assert (await push(pair, 2)).outcome == "not_connected"
    _, _, ports = await pair.join(nothing)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
    assert ports.applied == [2]


@pytest.mark.req("REF-9")
async def test_a_node_that_is_lost_before_it_answers_is_not_connected(pair: Pair) -> None:
    session, _, ports = await pair.join(nothing)
    async with asyncio.timeout(5):
        await ports.is_connected.wait()
    ports.hold_answers.clear()
    pushing = asyncio.create_task(push(pair, 2))
    await asyncio.sleep(0)
    session.close("gone")
    async with asyncio.timeout(5):
        assert (await pushing).outcome == "not_connected"


@pytest.mark.req("NODE-9")
async def test_a_process_that_comes_back_replaces_its_own_session_at_once(pair: Pair) -> None:
    first, _, _ = await pair.join(nothing, instance_id="same")
    second, _, _ = await pair.join(nothing, instance_id="same")
    assert not first.is_open
    assert second.is_open


@pytest.mark.req("NODE-9")
async def test_another_process_is_refused_while_the_present_one_answers(pair: Pair) -> None:
    first, _, _ = await pair.join(nothing, instance_id="one")
    with pytest.raises(JoinRefused) as caught:
        await pair.join(nothing, instance_id="two")
    assert caught.value.code == "already_connected"
    assert first.is_open


@pytest.mark.req("NODE-9")
async def test_another_process_takes_the_place_of_one_that_answers_no_probe(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iop_edge.runtime.node_hub.PROBE_TIMEOUT_S", 0.05)
    hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id="dead")
    dead = await pair.hub.join(NODE, hello)
    alive, _, _ = await pair.join(nothing, instance_id="alive")
    assert not dead.is_open
    assert alive.is_open


async def test_a_node_of_another_protocol_is_refused_with_both_ranges(pair: Pair) -> None:
    hello = Hello(protocol=ProtocolRange(min=7, max=9), instance_id="new")
    with pytest.raises(JoinRefused, match="1 to 1, the node 7 to 9") as caught:
        await pair.hub.join(NODE, hello)
    assert caught.value.code == "protocol_mismatch"


async def test_frames_of_an_old_epoch_are_counted_and_dropped(pair: Pair) -> None:
    session, end, _ = await pair.join(nothing)
    end.epoch += 1
    end.send_credit(99, 1)
    async with asyncio.timeout(5):
        while not session.dropped["old_epoch"]:
            await asyncio.sleep(0)
    assert session.is_open


@pytest.mark.req("NODE-10")
async def test_what_a_node_finds_lowers_a_provider_and_its_silence_raises_it_again(
    pair: Pair,
) -> None:
    _, end, ports = await pair.join(nothing)
    ports.reported = NodeReport(
        health=[
            ProviderHealth(provider_id="p1", health="unavailable", reason="cooling_down"),
            ProviderHealth(provider_id="p2", health="splendid"),
        ]
    )
    end.report()
    await until(lambda: pair.pool.health == [("p1", "unavailable")])
    ports.reported = NodeReport(active_runs=1)
    end.report()
    await until(lambda: pair.hub.views()[0].active_runs == 1)
    # What nobody knows lowers nothing, so there is nothing to raise.
    assert pair.pool.health[1:] == [("p1", "healthy")]


@pytest.mark.req("NODE-10")
async def test_health_is_forgotten_with_the_session_that_reported_it(pair: Pair) -> None:
    session, end, ports = await pair.join(nothing)
    ports.reported = NodeReport(health=[ProviderHealth(provider_id="p1", health="degraded")])
    end.report()
    await until(lambda: pair.pool.health == [("p1", "degraded")])
    session.close("gone")
    _, end, ports = await pair.join(nothing, instance_id="two")
    ports.reported = NodeReport(active_runs=1)
    end.report()
    await until(lambda: pair.hub.views()[0].active_runs == 1)
    assert pair.pool.health == [("p1", "degraded")]


def too_large_payload(generation: int) -> NodeConfigPayload:
    provider = ProviderResource(id="p", models=["m" * MAX_PAYLOAD_BYTES])
    return NodeConfigPayload(generation=generation, providers=[provider])


@pytest.mark.req("REF-9")
async def test_a_config_that_no_message_can_hold_is_refused_and_costs_no_session(
    pair: Pair,
) -> None:
    session, _, ports = await pair.join(nothing)
    await until(lambda: pair.hub.takes_runs(NODE))
    for _ in range(2):
        answers = pair.hub.push({NODE: too_large_payload(2)}, 5.0)
        [answer] = [answer async for answer in answers]
        assert (answer.outcome, answer.generation) == ("refused", 1)
        assert (answer.detail or "").startswith("payload_too_large: ")
    assert session.is_open
    assert ports.applied == [1]
    assert (await push(pair, 3)).outcome == "acknowledged"


@pytest.mark.req("NODE-6", "REF-9")
async def test_a_node_whose_config_no_message_can_hold_is_told_so_when_it_joins(
    pair: Pair,
) -> None:
    pair.hub.set_desired({NODE: too_large_payload(2)})
    with pytest.raises(JoinRefused, match="spread its providers over more nodes") as caught:
        await pair.join(nothing)
    assert caught.value.code == "payload_too_large"
    assert (pair.hub.views()[0].last_failure or "").startswith("payload_too_large: ")


@pytest.mark.req("POOL-1")
async def test_a_node_that_has_said_goodbye_is_no_candidate_whatever_it_acknowledges(
    pair: Pair,
) -> None:
    _, end, _ = await pair.join(nothing)
    await until(lambda: pair.hub.takes_runs(NODE))
    assert await end.drain("draining", 5.0)
    await until(lambda: not pair.hub.takes_runs(NODE))
    assert (await push(pair, 2)).outcome == "acknowledged"
    assert not pair.hub.takes_runs(NODE)
    assert pair.pool.events == [("connected", NODE), ("lost", NODE)]


@pytest.mark.req("NODE-10")
async def test_health_is_forgotten_even_with_a_session_that_never_acknowledged(
    pair: Pair,
) -> None:
    ports = Ports(nothing)
    ports.hold_answers.clear()
    session, end, _ = await pair.join(nothing, ports=ports)
    ports.reported = NodeReport(health=[ProviderHealth(provider_id="p1", health="degraded")])
    end.report()
    await until(lambda: pair.pool.health == [("p1", "degraded")])
    session.close("gone")
    assert pair.pool.events == [("lost", NODE)]


@pytest.mark.req("NODE-10")
async def test_a_health_that_did_not_change_is_told_once_however_often_it_is_reported(
    pair: Pair,
) -> None:
    _, end, ports = await pair.join(nothing)
    for runs in (1, 2, 3):
        ports.reported = NodeReport(
            active_runs=runs, health=[ProviderHealth(provider_id="p1", health="degraded")]
        )
        end.report()
        await until(lambda runs=runs: pair.hub.views()[0].active_runs == runs)
    assert pair.pool.health == [("p1", "degraded")]
