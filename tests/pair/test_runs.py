"""Runs over the whole pair, sockets aside: run service, pool, hub, sessions, scripted adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from iop.runtime_pb2 import (
    ChatMessage,
    ContentPart,
    Hello,
    NodeConfigPayload,
    ProtocolRange,
    RunEvent,
    RunRequest,
)
from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    ModelGroup,
    Node,
    Provider,
    QueuePolicy,
    SecretRef,
)
from iop_edge.config.vault import Vault
from iop_edge.pool.catalog import Catalog
from iop_edge.pool.demand import Demand
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_edge.runtime.usage import UsageLedger, UsageRecord
from iop_edge.runtime.work import HeaderPairs, ReportedUsage, RunSpec
from iop_node.adapters.base import Finish, Responder, RunCall, TextDelta, TunnelCall
from iop_node.link.session import NodeSessionEnd
from iop_node.runtime.router import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, Generation, ModelId, NodeId, ProviderId, RunId, Target
from iop_shared.profiles import Operation, ProtocolProfile
from iop_shared.session.flow import WindowBudget
from tests.batches import next_batch

from .conftest import Ports, _pump

MODEL = ModelId("smart")
Execute = Callable[[Attempt, Responder], Awaitable[None]]


def config_of(*capacities: int, max_queue: int = 16, is_ollama: bool = False) -> EffectiveConfig:
    """A model that is served by one provider on each of the nodes n0, n1, …"""
    profile = ProtocolProfile(
        id="vllm",
        driver="openai_chat",
        operation_urls={"chat_completions": "http://127.0.0.1:9/v1/chat/completions"},
        capabilities=frozenset({"chat", "streaming"}),
        model_mapping={},
        extensions={},
    )
    nodes = tuple(
        Node(
            id=NodeId(f"n{index}"),
            token=SecretRef(env="T"),
            adapters=(
                Adapter(
                    key=AdapterKey("main"),
                    type="ollama" if is_ollama else "openai_compat",
                    base_url="http://127.0.0.1:9",
                    profile=None if is_ollama else profile,
                ),
            ),
            providers=(
                Provider(
                    id=ProviderId(f"p{index}"),
                    type="vllm",
                    category="local_inference",
                    adapter=AdapterKey("main"),
                    models=(Target(f"served-{index}"),),
                    capacity=capacity,
                    priority=index,
                ),
            ),
        )
        for index, capacity in enumerate(capacities)
    )
    model = ModelGroup(
        id=MODEL,
        providers={
            ProviderId(f"p{index}"): Target(f"served-{index}") for index in range(len(capacities))
        },
    )
    policy = QueuePolicy(max_queue=max_queue)
    return EffectiveConfig(models=(model,), nodes=nodes, provider_pool=policy)


class PlainReader:
    """Gives the bytes on, and demands that they end in a full stop.

    The answer tells its end itself with `!.`, and an error in place of it with `?.`.
    """

    usage = ReportedUsage(input_tokens=3, output_tokens=0)
    headers: HeaderPairs = ()
    told_end: str | None = None

    def __init__(self) -> None:
        self._last = b""

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return 0

    def feed(self, chunk: bytes) -> bytes:
        self._last = chunk
        if chunk.endswith((b"!.", b"?.")):
            self.told_end = "completed" if chunk.endswith(b"!.") else "error:upstream_error"
        return chunk

    def end(self) -> bytes:
        if not self._last.endswith(b"."):
            raise Fault(Code.UPSTREAM_CLOSED, "the answer is cut")
        return b""


class EventReader:
    """Gives the text of a run's events on, and demands that they finish."""

    usage = ReportedUsage(input_tokens=5)
    headers: HeaderPairs = (("content-type", "text/plain"),)
    told_end = None

    def __init__(self) -> None:
        self._is_finished = False
        self._said = 0

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return self._said

    def feed(self, event: RunEvent) -> bytes:
        self._is_finished = self._is_finished or bool(event.finish_reason)
        self._said += len(event.text_delta)
        return event.text_delta.encode()

    def end(self) -> bytes:
        if not self._is_finished:
            raise Fault(Code.UPSTREAM_CLOSED, "the run did not finish")
        return b"!"


class PlainWork:
    operation: Operation = "chat_completions"
    prompt = "hi"
    is_stream = True
    auth_override: tuple[str, str] | None = None

    def upstream_headers(self) -> HeaderPairs:
        return ()

    def upstream_body(self, target: Target) -> bytes:
        return target.encode()

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> PlainReader:
        return PlainReader()

    def run_request(self) -> RunRequest:
        parts = [ContentPart(text=self.prompt)]
        return RunRequest(messages=[ChatMessage(role="user", parts=parts)])

    def run_reader(self) -> EventReader:
        return EventReader()


class World:
    def __init__(self, config: EffectiveConfig) -> None:
        self.records: list[UsageRecord] = []
        self.traceparent = ""
        snapshot = RuntimeSnapshot(
            generation=Generation(1),
            config=config,
            config_digest="sha256:0",
            vault=Vault(values={}, token_digests={}, fingerprint_key=b"k"),
            catalog=Catalog.from_config(config),
            applied_at=datetime.now(UTC),
        )
        self.dispatcher = Dispatcher(snapshot.catalog, config.provider_pool)
        self.hub = NodeHub(
            boot_id="boot", version="test", pool=self.dispatcher, budget=WindowBudget()
        )
        self.hub.set_desired({node.id: NodeConfigPayload(generation=1) for node in config.nodes})
        self.runs = RunService(
            snapshots=SnapshotStore(snapshot),
            dispatcher=self.dispatcher,
            hub=self.hub,
            ledger=UsageLedger(observe=lambda finished: self.records.append(finished.record)),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._ids = 0

    async def join(self, node_id: str, execute: Execute) -> None:
        hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id=node_id)
        session = await self.hub.join(NodeId(node_id), hello)
        first = await next_batch(session)
        assert first is not None
        end = NodeSessionEnd(first.frames[0].welcome, Ports(execute), WindowBudget())
        self._tasks += [
            asyncio.create_task(_pump(session, end)),
            asyncio.create_task(_pump(end, session)),
        ]
        async with asyncio.timeout(5):
            while not self.hub.takes_runs(NodeId(node_id)):
                await asyncio.sleep(0)

    def lose(self, node_id: str) -> None:
        session = self.hub._nodes[NodeId(node_id)].session
        assert session is not None
        session.close("the cable was cut")

    def spec(self) -> RunSpec:
        self._ids += 1
        return RunSpec(
            run_id=RunId(f"run-{self._ids}"),
            request_id=f"req-{self._ids}",
            surface="chat",
            model=MODEL,
            demand=Demand(model=MODEL, operation="chat_completions"),
            work=PlainWork(),
            traceparent=self.traceparent,
        )

    async def ask(self) -> bytes:
        async with self.runs.open(self.spec()) as answer:
            return b"".join([piece async for piece in answer])

    @property
    def in_flight(self) -> int:
        return sum(load.in_flight for load in self.dispatcher.loads().values())

    async def close(self) -> None:
        self.hub.close_all("over")
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.dispatcher.close()


@pytest.fixture
async def make_world() -> AsyncIterator[Callable[[EffectiveConfig], World]]:
    made: list[World] = []

    def make(config: EffectiveConfig) -> World:
        made.append(World(config))
        return made[-1]

    yield make
    for world in made:
        await world.close()


Make = Callable[[EffectiveConfig], World]


def target_of(attempt: Attempt) -> str:
    assert isinstance(attempt.work, TunnelCall)
    return attempt.work.target


async def polite(attempt: Attempt, out: Responder) -> None:
    out.started()
    out.head(200, [])
    await out.chunk(f"hello from {target_of(attempt)}.".encode())


async def refusing(attempt: Attempt, out: Responder) -> None:
    raise Fault(Code.UPSTREAM_REFUSED, "the upstream refused the connection")


async def breaking(attempt: Attempt, out: Responder) -> None:
    out.started()
    raise Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection")


@pytest.mark.req("POOL-6", "POOL-10")
async def test_a_run_answers_frees_its_slot_and_leaves_one_record(make_world: Make) -> None:
    world = make_world(config_of(1))
    await world.join("n0", polite)
    assert await world.ask() == b"hello from served-0."
    assert world.in_flight == 0
    [record] = world.records
    assert (record.end, record.provider_id, record.target) == ("completed", "p0", "served-0")
    assert (record.input_tokens, record.output_tokens) == (3, 0)
    assert (record.usage_source, record.attempts) == ("reported", 1)
    assert record.attribution is not None
    assert (record.attribution.kind, record.attribution.id) == ("provider", "p0")


@pytest.mark.req("POOL-13")
async def test_a_refused_connection_is_tried_on_the_next_provider(make_world: Make) -> None:
    world = make_world(config_of(1, 1))
    await world.join("n0", refusing)
    await world.join("n1", polite)
    assert await world.ask() == b"hello from served-1."
    assert [record.attempts for record in world.records] == [2]
    assert world.in_flight == 0


@pytest.mark.req("POOL-13")
async def test_each_provider_is_tried_once_and_then_the_fault_is_told(make_world: Make) -> None:
    world = make_world(config_of(1, 1))
    await world.join("n0", refusing)
    await world.join("n1", refusing)
    with pytest.raises(Fault) as caught:
        await world.ask()
    assert caught.value.code is Code.UPSTREAM_REFUSED
    assert [record.attempts for record in world.records] == [2]
    assert [record.end for record in world.records] == ["error:upstream_refused"]
    assert world.in_flight == 0


@pytest.mark.req("POOL-13")
async def test_a_request_that_was_sent_is_never_sent_again(make_world: Make) -> None:
    world = make_world(config_of(1, 1))
    await world.join("n0", breaking)
    await world.join("n1", polite)
    with pytest.raises(Fault) as caught:
        await world.ask()
    assert caught.value.code is Code.UPSTREAM_CLOSED
    assert [record.attempts for record in world.records] == [1]


@pytest.mark.req("NODE-6", "POOL-13")
async def test_a_run_whose_upstream_was_not_asked_yet_survives_the_loss_of_its_node(
    make_world: Make,
) -> None:
    world = make_world(config_of(1, 1))
    began = asyncio.Event()

    async def stuck_before_the_upstream(attempt: Attempt, out: Responder) -> None:
        began.set()
        await asyncio.Event().wait()

    await world.join("n0", stuck_before_the_upstream)
    await world.join("n1", polite)
    asking = asyncio.create_task(world.ask())
    async with asyncio.timeout(5):
        await began.wait()
        world.lose("n0")
        assert await asking == b"hello from served-1."


@pytest.mark.req("NODE-6", "OAI-7")
async def test_a_run_past_its_first_byte_ends_with_node_lost_and_not_twice(
    make_world: Make,
) -> None:
    world = make_world(config_of(1, 1))

    async def begins(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await out.chunk(b"half")
        await asyncio.Event().wait()

    await world.join("n0", begins)
    await world.join("n1", polite)
    pieces = []
    async with asyncio.timeout(5):
        with pytest.raises(Fault) as caught:
            async with world.runs.open(world.spec()) as answer:
                async for piece in answer:
                    pieces.append(piece)
                    world.lose("n0")
    assert (pieces, caught.value.code) == ([b"half"], Code.NODE_LOST)
    assert [record.end for record in world.records] == ["error:node_lost"]
    assert world.in_flight == 0


@pytest.mark.req("OAI-7")
async def test_an_answer_without_its_end_mark_is_a_fault(make_world: Make) -> None:
    world = make_world(config_of(1))

    async def cut(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await out.chunk(b"no full stop")

    await world.join("n0", cut)
    with pytest.raises(Fault, match="cut"):
        await world.ask()
    assert [record.end for record in world.records] == ["error:upstream_closed"]


@pytest.mark.req("NODE-7", "POOL-6")
@pytest.mark.parametrize("has_head", [False, True])
async def test_a_caller_that_leaves_frees_the_slot_and_ends_the_upstream(
    make_world: Make, has_head: bool
) -> None:
    world = make_world(config_of(1))
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(attempt: Attempt, out: Responder) -> None:
        out.started()
        if has_head:
            out.head(200, [])
            await out.chunk(b"x")
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await world.join("n0", endless)
    asking = asyncio.create_task(world.ask())
    async with asyncio.timeout(5):
        await began.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        assert world.in_flight == 0
        await ended.wait()
    assert [record.end for record in world.records] == ["cancelled"]


@pytest.mark.req("POOL-6")
@pytest.mark.parametrize(
    ("last", "end"), [(b"yes!.", "completed"), (b"no?.", "error:upstream_error")]
)
@pytest.mark.parametrize("then", ["the upstream ends", "it is cut", "the caller leaves"])
async def test_what_comes_after_an_answer_has_told_its_end_changes_nothing(
    make_world: Make, last: bytes, end: str, then: str
) -> None:
    world = make_world(config_of(1))

    async def telling(attempt: Attempt, out: Responder) -> None:
        out.started()
        out.head(200, [])
        await out.chunk(last)
        if then == "it is cut":
            raise Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection")
        if then == "the caller leaves":
            await asyncio.Event().wait()

    await world.join("n0", telling)
    told = asyncio.Event()
    pieces = []

    async def ask() -> None:
        async with world.runs.open(world.spec()) as answer:
            async for piece in answer:
                pieces.append(piece)
                told.set()

    asking = asyncio.create_task(ask())
    async with asyncio.timeout(5):
        await told.wait()
        if then == "the caller leaves":
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        else:
            await asking
    assert pieces == [last]
    assert [record.end for record in world.records] == [end]
    assert world.in_flight == 0


@pytest.mark.req("POOL-5", "POOL-6")
async def test_a_caller_that_leaves_the_queue_makes_room(make_world: Make) -> None:
    world = make_world(config_of(1, max_queue=1))
    go_on = asyncio.Event()

    async def held(attempt: Attempt, out: Responder) -> None:
        await go_on.wait()
        await polite(attempt, out)

    await world.join("n0", held)
    first = asyncio.create_task(world.ask())
    second = asyncio.create_task(world.ask())
    async with asyncio.timeout(5):
        while world.dispatcher.queue_status().pending != 1:
            await asyncio.sleep(0)
        with pytest.raises(Fault) as caught:
            await world.ask()
        assert caught.value.code is Code.QUEUE_FULL
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        third = asyncio.create_task(world.ask())
        go_on.set()
        assert await first == await third == b"hello from served-0."
    ends = sorted(record.end for record in world.records)
    assert ends == ["cancelled", "completed", "completed", "error:queue_full"]


async def test_a_model_that_nobody_knows_is_told_and_recorded(make_world: Make) -> None:
    world = make_world(EffectiveConfig())
    with pytest.raises(Fault) as caught:
        await world.ask()
    assert caught.value.code is Code.MODEL_NOT_FOUND
    assert [record.end for record in world.records] == ["error:model_not_found"]


@pytest.mark.req("OPS-3")
async def test_a_drain_lets_runs_end_and_admits_no_others(make_world: Make) -> None:
    world = make_world(config_of(2))
    go_on = asyncio.Event()

    async def held(attempt: Attempt, out: Responder) -> None:
        await go_on.wait()
        await polite(attempt, out)

    await world.join("n0", held)
    running = asyncio.create_task(world.ask())
    await asyncio.sleep(0)
    world.runs.stop_admitting()
    with pytest.raises(Fault) as caught:
        await world.ask()
    assert caught.value.code is Code.DRAINING
    draining = asyncio.create_task(world.runs.drained(10))
    go_on.set()
    async with asyncio.timeout(5):
        assert await running == b"hello from served-0."
        assert await draining == 0


@pytest.mark.req("POOL-6", "OPS-3")
@pytest.mark.parametrize("has_head", [False, True])
async def test_a_run_past_the_drain_deadline_is_cut_with_a_clear_error(
    make_world: Make, has_head: bool
) -> None:
    world = make_world(config_of(1))
    began = asyncio.Event()

    async def endless(attempt: Attempt, out: Responder) -> None:
        out.started()
        if has_head:
            out.head(200, [])
        began.set()
        await asyncio.Event().wait()

    await world.join("n0", endless)
    running = asyncio.create_task(world.ask())
    async with asyncio.timeout(5):
        await began.wait()
        assert await world.runs.drained(0.01) == 1
        with pytest.raises(Fault) as caught:
            await running
    assert caught.value.code is Code.DRAIN_DEADLINE
    assert [record.end for record in world.records] == ["error:drain_deadline"]
    assert world.in_flight == 0


async def talking(attempt: Attempt, out: Responder) -> None:
    assert isinstance(attempt.work, RunCall)
    prompt = attempt.work.request.messages[0].parts[0].text
    out.started()
    await out.event(TextDelta(f"{attempt.work.request.target} heard {len(prompt)}"))
    await out.event(Finish("stop"))


@pytest.mark.req("POOL-14", "POOL-9")
@pytest.mark.parametrize("length", [2, 16 * 1024, 700_000])
async def test_a_provider_that_does_not_speak_the_callers_protocol_runs_it_normalized(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(PlainWork, "prompt", "x" * length)
    world = make_world(config_of(1, is_ollama=True))
    await world.join("n0", talking)
    assert await world.ask() == f"served-0 heard {length}!".encode()
    [record] = world.records
    assert (record.end, record.input_tokens) == ("completed", 5)
    assert world.in_flight == 0


@pytest.mark.req("OAI-7", "POOL-14")
async def test_a_normalized_run_that_does_not_finish_is_a_fault(make_world: Make) -> None:
    async def stops(attempt: Attempt, out: Responder) -> None:
        await out.event(TextDelta("half"))

    world = make_world(config_of(1, is_ollama=True))
    await world.join("n0", stops)
    with pytest.raises(Fault, match="did not finish"):
        await world.ask()
    assert [record.end for record in world.records] == ["error:upstream_closed"]


@pytest.mark.req("OAI-5")
async def test_the_field_that_a_node_blames_is_named_to_the_caller(make_world: Make) -> None:
    world = make_world(config_of(1))

    async def choosy(attempt: Attempt, out: Responder) -> None:
        raise Fault(Code.UNSUPPORTED_FIELD, "not this one", param="tool_choice")

    await world.join("n0", choosy)
    with pytest.raises(Fault) as caught:
        await world.ask()
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED_FIELD, "tool_choice")


@pytest.mark.req("POOL-14", "OAI-5")
async def test_an_upstream_that_refuses_a_normalized_run_is_heard(make_world: Make) -> None:
    async def busy(attempt: Attempt, out: Responder) -> None:
        out.head(429, [("content-type", "text/plain")])
        await out.chunk(b"busy.")

    world = make_world(config_of(1, is_ollama=True))
    await world.join("n0", busy)
    async with world.runs.open(world.spec()) as answer:
        assert answer.status == 429
        assert b"".join([piece async for piece in answer]) == b"busy."
    assert [record.end for record in world.records] == ["error:upstream_429"]


@pytest.mark.req("NODE-8", "POOL-14")
async def test_a_run_of_many_events_waits_for_a_slow_reader_and_loses_none(
    make_world: Make,
) -> None:
    world = make_world(config_of(1, is_ollama=True))

    async def long_talk(attempt: Attempt, out: Responder) -> None:
        for _ in range(300):
            await out.event(TextDelta("y" * 1000))
        await out.event(TextDelta("z" * 100_000))
        await out.event(Finish("stop"))

    await world.join("n0", long_talk)
    async with asyncio.timeout(10):
        assert len(await world.ask()) == 300 * 1000 + 100_000 + 1


async def test_an_attempt_that_ends_without_an_answer_is_our_own_fault(make_world: Make) -> None:
    async def mute(attempt: Attempt, out: Responder) -> None:
        out.started()

    world = make_world(config_of(1))
    await world.join("n0", mute)
    async with asyncio.timeout(5):
        with pytest.raises(Fault) as caught:
            await world.ask()
    assert caught.value.code is Code.INTERNAL


@pytest.mark.req("POOL-6", "OPS-3")
async def test_a_run_that_still_waits_at_the_drain_deadline_is_told_so(make_world: Make) -> None:
    world = make_world(config_of(1))

    async def endless(attempt: Attempt, out: Responder) -> None:
        await asyncio.Event().wait()

    await world.join("n0", endless)
    running, waiting = asyncio.create_task(world.ask()), asyncio.create_task(world.ask())
    async with asyncio.timeout(5):
        while world.dispatcher.queue_status().pending != 1:
            await asyncio.sleep(0)
        assert await world.runs.drained(0.01) == 2
        for task in (running, waiting):
            with pytest.raises(Fault) as caught:
                await task
            assert caught.value.code is Code.DRAIN_DEADLINE
    assert world.in_flight == 0
    assert world.dispatcher.queue_status().pending == 0


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("is_ollama", [False, True])
@pytest.mark.parametrize("trace", ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
async def test_the_callers_trace_goes_on_at_the_upstream(
    make_world: Make, is_ollama: bool, trace: str
) -> None:
    seen: list[tuple[tuple[str, str], ...]] = []

    async def note(attempt: Attempt, out: Responder) -> None:
        seen.append(attempt.work.headers)
        await (talking if is_ollama else polite)(attempt, out)

    world = make_world(config_of(1, is_ollama=is_ollama))
    world.traceparent = trace
    await world.join("n0", note)
    await world.ask()
    assert seen == [(("traceparent", trace),) if trace else ()]
