"""Traces over the whole pair: what the next hop is told is the span that the last one sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from iop.runtime_pb2 import NodeConfigPayload
from iop_edge.config.effective import EffectiveConfig
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.tracing import RunTraces, TracedNodeHub
from iop_edge.runtime.usage import UsageLedger
from iop_node.adapters.base import Responder
from iop_node.runtime.router import Attempt
from iop_node.tracing import AttemptTraces
from iop_shared.errors import Code, Fault
from iop_shared.session.flow import WindowBudget
from iop_shared.tracing import Span, TraceContext

from .test_runs import Execute, World, config_of

CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


class TracedWorld(World):
    """A world whose edge and nodes are traced; `spans` in the order of their ends."""

    def __init__(self, config: EffectiveConfig, *, known_models: tuple[str, ...]) -> None:
        super().__init__(config)
        self.spans: list[Span] = []
        self.told_upstream: list[str] = []
        self.traces = RunTraces(self, has_model=lambda name: name in known_models)
        self.hub = TracedNodeHub(
            self.traces, boot_id="boot", version="t", pool=self.dispatcher, budget=WindowBudget()
        )
        self.hub.set_desired({node.id: NodeConfigPayload(generation=1) for node in config.nodes})
        self.runs = RunService(
            snapshots=self.runs.snapshots,
            dispatcher=self.dispatcher,
            hub=self.hub,
            ledger=UsageLedger(
                observe=lambda finished: self.records.append(finished.record),
                trace=self.traces.finished,
            ),
        )

    def take(self, span: Span) -> None:
        self.spans.append(span)

    async def join(self, node_id: str, execute: Execute, *, is_traced: bool = True) -> None:
        async def told(attempt: Attempt, out: Responder) -> None:
            self.told_upstream += [
                value for name, value in attempt.work.headers if name == "traceparent"
            ]
            await execute(attempt, out)

        traces = AttemptTraces(self, node_id=lambda: node_id)
        await super().join(node_id, traces.observing(told) if is_traced else told)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    async def until_spans(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.spans) < count:
                await asyncio.sleep(0)


Make = Callable[..., TracedWorld]


@pytest.fixture
async def make_world() -> AsyncIterator[Make]:
    made: list[TracedWorld] = []

    def make(config: EffectiveConfig, *, known_models: tuple[str, ...] = ("smart",)) -> TracedWorld:
        made.append(TracedWorld(config, known_models=known_models))
        return made[-1]

    yield make
    for world in made:
        await world.close()


async def polite(attempt: Attempt, out: Responder) -> None:
    out.started()
    out.head(200, [])
    await out.chunk(b"Yes.")


async def refused(attempt: Attempt, out: Responder) -> None:
    raise Fault(Code.UPSTREAM_REFUSED, "nobody listens")


async def overloaded(attempt: Attempt, out: Responder) -> None:
    out.started()
    out.head(529, [])
    await out.chunk(b"No.")


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("is_called_in_a_trace", [True, False])
async def test_every_hop_is_the_parent_of_the_next_up_to_the_upstream(
    make_world: Make, is_called_in_a_trace: bool
) -> None:
    world = make_world(config_of(1))
    world.traceparent = CALLER.traceparent if is_called_in_a_trace else ""
    await world.join("n0", polite)
    await world.ask()
    node, attempt, run = world.spans
    assert [span.name for span in world.spans] == ["node attempt", "attempt", "run"]
    assert [span.kind for span in world.spans] == ["server", "client", "server"]
    if is_called_in_a_trace:
        assert run.context.trace_id == CALLER.trace_id
    assert run.parent_id == (CALLER.span_id if is_called_in_a_trace else "")
    assert attempt.parent_id == run.context.span_id
    assert node.parent_id == attempt.context.span_id
    assert world.told_upstream == [node.context.traceparent]
    assert len({span.context.trace_id for span in world.spans}) == 1
    assert len({span.context.span_id for span in world.spans}) == 3
    assert run.started_ns <= attempt.started_ns <= node.started_ns
    assert node.ended_ns <= attempt.ended_ns <= run.ended_ns
    assert not any(span.is_error for span in world.spans)


@pytest.mark.req("OPS-3", "SEC-1")
async def test_spans_name_ids_codes_and_counts_and_nothing_else(make_world: Make) -> None:
    world = make_world(config_of(1))
    await world.join("n0", polite)
    await world.ask()
    node, attempt, run = (span.attributes for span in world.spans)
    common = {"iop.run_id": "run-1", "iop.generation": 1, "iop.node_id": "n0"}
    common |= {"iop.provider_id": "p0", "iop.end": "completed"}
    sent = common | {"iop.attempt": 1, "iop.upstream_status": 200}
    assert attempt == sent
    assert node == sent | {"iop.adapter": "main"}
    assert run == common | {
        "iop.request_id": "req-1",
        "iop.model": "smart",
        "iop.attempts": 1,
        "iop.input_tokens": 3,
        "iop.output_tokens": 0,
    }


@pytest.mark.req("OPS-3", "SEC-1")
async def test_a_model_that_the_config_does_not_have_is_no_attribute(make_world: Make) -> None:
    world = make_world(config_of(1), known_models=())
    await world.join("n0", polite)
    await world.ask()
    assert "smart" not in str(world.spans)


@pytest.mark.req("OPS-3", "POOL-13")
async def test_each_attempt_has_a_span_of_its_own_below_its_run(make_world: Make) -> None:
    world = make_world(config_of(1, 1))
    await world.join("n0", refused)
    await world.join("n1", polite)
    await world.ask()
    [run] = world.named("run")
    first, second = world.named("attempt")
    assert (first.parent_id, second.parent_id) == (run.context.span_id, run.context.span_id)
    assert first.attributes["iop.end"] == "error:upstream_refused"
    assert (first.is_error, second.is_error, run.is_error) == (True, False, False)
    assert [span.attributes["iop.attempt"] for span in (first, second)] == [1, 2]
    assert [span.attributes["iop.node_id"] for span in (first, second)] == ["n0", "n1"]
    assert [span.parent_id for span in world.named("node attempt")] == [
        first.context.span_id,
        second.context.span_id,
    ]
    assert run.attributes["iop.attempts"] == 2
    assert first.ended_ns <= second.started_ns


@pytest.mark.req("OPS-3", "NODE-7")
async def test_a_caller_that_leaves_ends_every_span_as_cancelled(make_world: Make) -> None:
    world = make_world(config_of(1))

    async def endless(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await asyncio.Event().wait()

    await world.join("n0", endless)
    async with world.runs.open(world.spec()):
        pass
    await world.until_spans(3)
    assert {span.attributes["iop.end"] for span in world.spans} == {"cancelled"}
    assert not any(span.is_error for span in world.spans)


@pytest.mark.req("OPS-3")
async def test_an_upstreams_error_status_marks_the_spans_of_all_who_saw_it(
    make_world: Make,
) -> None:
    world = make_world(config_of(1))
    await world.join("n0", overloaded)
    await world.ask()
    node, attempt, run = world.spans
    assert all(span.is_error for span in world.spans)
    assert node.attributes["iop.upstream_status"] == attempt.attributes["iop.upstream_status"]
    assert run.attributes["iop.end"] == "error:upstream_529"


@pytest.mark.req("OPS-3")
async def test_a_bug_in_a_node_is_an_error_of_its_span(make_world: Make) -> None:
    world = make_world(config_of(1))

    async def broken(attempt: Attempt, out: Responder) -> None:
        raise RuntimeError("a bug")

    await world.join("n0", broken)
    with pytest.raises(Fault):
        await world.ask()
    assert {span.attributes["iop.end"] for span in world.spans} == {"error:internal"}
    assert all(span.is_error for span in world.spans)


@pytest.mark.req("OPS-3")
async def test_a_run_that_no_node_ever_saw_is_a_span_of_the_callers_trace(
    make_world: Make,
) -> None:
    world = make_world(config_of(1))
    world.traceparent = CALLER.traceparent
    with pytest.raises(Fault):
        await world.ask()
    [run] = world.spans
    assert (run.context.trace_id, run.parent_id) == (CALLER.trace_id, CALLER.span_id)
    assert (run.attributes["iop.end"], run.is_error) == ("error:no_provider", True)


@pytest.mark.req("OPS-3")
async def test_a_trace_that_its_caller_does_not_sample_passes_through_and_is_not_sent(
    make_world: Make,
) -> None:
    world = make_world(config_of(1))
    world.traceparent = TraceContext(CALLER.trace_id, CALLER.span_id, False).traceparent
    await world.join("n0", polite)
    await world.ask()
    assert world.spans == []
    assert world.told_upstream == [world.traceparent]


@pytest.mark.req("OPS-3")
async def test_behind_a_node_that_sends_no_spans_the_upstream_is_told_the_edges(
    make_world: Make,
) -> None:
    world = make_world(config_of(1))
    await world.join("n0", polite, is_traced=False)
    await world.ask()
    [attempt] = world.named("attempt")
    assert world.told_upstream == [attempt.context.traceparent]


@pytest.mark.req("OPS-3")
async def test_nothing_is_kept_of_a_run_that_is_over(make_world: Make) -> None:
    world = make_world(config_of(1, 1))
    await world.join("n0", refused)
    await world.join("n1", polite)
    for _ in range(3):
        await world.ask()
    world.lose("n1")
    with pytest.raises(Fault):
        await world.ask()
    assert world.traces.open_traces == 0
