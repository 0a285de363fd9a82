"""What a node claims of itself: held to what it may know, and never as long as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from iop.runtime_pb2 import (
    AttemptEnd,
    AttemptOpen,
    DrainingRegistry,
    EdgeFrame,
    Goodbye,
    Hello,
    NodeBatch,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeFrame,
    NodeReport,
    ProtocolRange,
    ProviderHealth,
    ProviderTunnelRequest,
)
from iop.runtime_pb2 import Fault as FaultFrame
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.line_quota import BURST_LINES
from iop_edge.runtime.node_claims import MAX_DRAINING, MAX_REASON_CHARS
from iop_edge.runtime.node_hub import NodeHub, NodeView
from iop_edge.runtime.node_session import NodeSession
from iop_shared.errors import Code, Fault
from iop_shared.ids import Generation
from iop_shared.session.flow import WindowBudget

from .conftest import NODE, PoolEars

ENDLESS = "x" * 1_000_000


class Claims:
    """A session of a hub, and what its node says on it."""

    def __init__(self, pool: PoolEars, hub: NodeHub, session: NodeSession) -> None:
        self.pool = pool
        self.hub = hub
        self.session = session

    def say(self, *frames: NodeFrame) -> None:
        self.session.receive(NodeBatch(session_epoch=self.session.epoch, frames=frames))

    def answer(self, generation: int, **facts: object) -> None:
        answer = NodeConfigAnswer(generation=generation, **facts)  # type: ignore[arg-type]
        self.say(NodeFrame(config_answer=answer))

    def opened(self) -> Attempt:
        tunnel = ProviderTunnelRequest(adapter="a", target="t")
        opening = AttemptOpen(run_id="run", tunnel=tunnel)
        return self.hub.open_attempt(NODE, EdgeFrame(attempt_open=opening), b"{}")

    @property
    def view(self) -> NodeView:
        return self.hub.views()[0]


async def joined(payload: NodeConfigPayload | None = None, **hello: object) -> Claims:
    pool = PoolEars()
    hub = NodeHub(boot_id="boot", version="test", pool=pool, budget=WindowBudget())
    hub.set_desired({NODE: payload or NodeConfigPayload(generation=3)})
    said = Hello(
        protocol=ProtocolRange(min=1, max=1),
        instance_id="one",
        **hello,  # type: ignore[arg-type]
    )
    return Claims(pool, hub, await hub.join(NODE, said))


@pytest.mark.req("OAI-5", "NODE-9")
@pytest.mark.parametrize("code", ["invalid_api_key", "queue_full", "node_lost", "", ENDLESS])
async def test_a_node_cannot_claim_a_fault_that_is_the_edges_to_judge(code: str) -> None:
    node = await joined()
    attempt = node.opened()
    fault = FaultFrame(code=code, message="m", upstream_may_have_started=True)
    node.say(NodeFrame(attempt_end=AttemptEnd(attempt_id=1, fault=fault)))
    with pytest.raises(Fault) as caught:
        await attempt.head()
    assert caught.value.code is Code.INTERNAL
    assert len(caught.value.message) < 100


@pytest.mark.req("OAI-5", "SEC-1")
async def test_what_a_node_says_of_a_fault_reaches_the_caller_in_bounded_length() -> None:
    node = await joined()
    attempt = node.opened()
    fault = FaultFrame(code="upstream_invalid", message=ENDLESS, param=ENDLESS)
    node.say(NodeFrame(attempt_end=AttemptEnd(attempt_id=1, fault=fault)))
    with pytest.raises(Fault) as caught:
        await attempt.head()
    assert caught.value.code is Code.UPSTREAM_INVALID
    assert caught.value.message == "x" * MAX_REASON_CHARS + "…"
    assert len(caught.value.param or "") < MAX_REASON_CHARS


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    "claim",
    [
        lambda node: node.answer(3, code=ENDLESS, reason=ENDLESS),
        lambda node: (
            node.answer(3, is_acknowledged=True),
            node.say(NodeFrame(goodbye=Goodbye(reason=ENDLESS))),
        ),
        lambda node: node.session.close("gone"),
    ],
    ids=["refusal", "goodbye", "hello"],
)
async def test_no_word_of_a_node_stands_in_a_log_or_in_status_at_any_length(
    claim: Callable[[Claims], object],
) -> None:
    with capture_logs() as lines:
        node = await joined(version=ENDLESS)
        claim(node)
    assert lines
    assert all(len(str(line)) < 2000 for line in lines)
    assert len(str(node.view)) < 2000


@pytest.mark.req("OPS-3", "NODE-10")
async def test_a_node_that_changes_its_mind_without_end_fills_no_log_and_hides_nothing() -> None:
    payload = NodeConfigPayload(generation=3)
    payload.providers.add(id="p1")
    bad = NodeReport(health=[ProviderHealth(provider_id="p1", health="unavailable")])
    with capture_logs() as lines:
        node = await joined(payload)
        for _ in range(500):
            node.say(NodeFrame(report=bad), NodeFrame(report=NodeReport()))
    assert len(lines) == BURST_LINES
    assert len(node.pool.health) == 1000


@pytest.mark.req("NODE-10")
async def test_the_health_of_what_is_not_the_nodes_own_is_ignored() -> None:
    payload = NodeConfigPayload(generation=3)
    payload.providers.add(id="p1")
    node = await joined(payload)
    bad = [ProviderHealth(provider_id=one, health="unavailable") for one in ("p1", "p2", "")]
    node.say(NodeFrame(report=NodeReport(health=bad)))
    assert node.pool.health == [("p1", "unavailable")]


async def test_status_shows_a_bounded_number_of_old_registries() -> None:
    node = await joined()
    many = [DrainingRegistry(generation=number) for number in range(10_000)]
    node.say(NodeFrame(report=NodeReport(draining=many)))
    assert len(node.view.draining) == MAX_DRAINING


@pytest.mark.req("REF-9")
async def test_what_a_node_acknowledged_never_goes_back() -> None:
    node = await joined()
    for generation in (4, 5):
        payloads = {NODE: NodeConfigPayload(generation=generation)}
        node.hub.set_desired(payloads)
        asked = asyncio.ensure_future(anext(node.hub.push(payloads, 0.0)))
        assert (await asked).outcome == "timed_out"
    node.answer(5, is_acknowledged=True, effective_generation=5)
    node.answer(4, is_acknowledged=True, effective_generation=4)
    node.answer(5, code="second_thoughts")
    assert (node.view.acknowledged, node.view.effective) == (5, 5)
    assert node.view.last_failure is None
    assert node.view.dropped_frames == {"unasked": 2}


@pytest.mark.req("REF-9")
@pytest.mark.parametrize("claimed", [4, 2**64 - 1])
async def test_a_generation_that_the_edge_never_made_runs_nowhere(claimed: int) -> None:
    node = await joined(last_boot_id="boot", effective_generation=claimed)
    assert node.view.effective is None
    node.answer(3, code="missing_env", effective_generation=claimed)
    assert node.view.effective is None
    node = await joined(last_boot_id="boot", effective_generation=2)
    assert node.view.effective == Generation(2)
