"""An edge, its nodes, their links and their callers, out of one seed, in virtual time.

Run service, dispatcher, pool, hub and both ends of every session are the real ones. What is played
is the world: callers who come, read at their own pace and hang up; upstreams that refuse, stall,
break off or answer; links that delay, go silent for a while, or break; nodes that crash, drain and
come back as another process; a second machine with a node's token; refreshes that nodes may
refuse. Frames of one session keep their order, as they do on a wire.

`simulate(seed)` returns the log of what happened; the same seed gives the same log. What must hold
is asserted as it goes, and at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import Any

from msgspec.structs import replace

from iop.runtime_pb2 import (
    EdgeBatch,
    EdgeFrame,
    Hello,
    NodeBatch,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeReport,
    ProtocolRange,
    ProviderHealth,
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
from iop_edge.runtime.attempt import Attempt as EdgeAttempt
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.node_hub import JoinRefused, NodeHub
from iop_edge.runtime.node_session import NodeSession
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_edge.runtime.usage import UsageLedger, UsageRecord
from iop_edge.runtime.work import HeaderPairs, ReportedUsage, RunReader, RunSpec
from iop_node.adapters.base import Responder, TunnelCall
from iop_node.link.session import NodeSessionEnd
from iop_node.runtime.router import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, Generation, ModelId, NodeId, ProviderId, RunId, Target
from iop_shared.profiles import Operation, ProtocolProfile
from iop_shared.session.flow import WindowBudget
from tests.batches import next_batch
from tests.simulation.virtual import run_virtually

NODES = ("n0", "n1", "n2")
MODEL = ModelId("smart")
CALLERS = 30
LASTS_S = 90.0
NOTICED_WITHIN_S = 15.0
BUDGET_BYTES = 4 * 1024 * 1024
EXPECTED = {
    Code.NODE_LOST,
    Code.NO_PROVIDER,
    Code.QUEUE_FULL,
    Code.QUEUE_TIMEOUT,
    Code.UPSTREAM_REFUSED,
    Code.UPSTREAM_CLOSED,
    Code.DRAINING,
    "whole",
    "hung up",
}


def answer_to(run_id: str) -> bytes:
    """The answer that belongs to a run, and to no other."""
    size = Random(run_id).choice((3, 200, 5_000, 150_000))
    return (f"{run_id}:" * (size // (len(run_id) + 1) + 1)).encode()[:size] + b"."


class Reader:
    usage = ReportedUsage()
    headers: HeaderPairs = ()
    told_end = None

    def __init__(self) -> None:
        self._last = b""

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return 0

    def feed(self, chunk: bytes) -> bytes:
        self._last = chunk
        return chunk

    def end(self) -> bytes:
        if not self._last.endswith(b"."):
            raise Fault(Code.UPSTREAM_CLOSED, "the answer is cut")
        return b""


class Work:
    operation: Operation = "chat_completions"
    is_stream = True
    auth_override: tuple[str, str] | None = None

    def __init__(self, run_id: str, padding: int) -> None:
        self._body = run_id.encode() + b" " * padding

    def upstream_headers(self) -> HeaderPairs:
        return ()

    def upstream_body(self, target: Target) -> bytes:
        return self._body

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> Reader:
        return Reader()

    def run_request(self) -> RunRequest:
        raise AssertionError("every provider relays")

    def run_reader(self) -> RunReader:
        raise AssertionError("every provider relays")


class Hub(NodeHub):
    """The hub, with an eye on who is open."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.of_run: dict[str, list[EdgeAttempt]] = {}
        self.sessions: list[NodeSession] = []

    def open_attempt(self, node_id: NodeId, frame: EdgeFrame, body: bytes) -> EdgeAttempt:
        earlier = self.of_run.setdefault(frame.attempt_open.run_id, [])
        assert all(attempt._ended for attempt in earlier), "a run is open twice"
        assert not any(attempt.has_upstream_started for attempt in earlier), "asked, and asked anew"
        attempt = super().open_attempt(node_id, frame, body)
        earlier.append(attempt)
        return attempt

    async def join(self, node_id: NodeId, hello: Hello) -> NodeSession:
        session = await super().join(node_id, hello)
        self.sessions.append(session)
        alive = Counter(s.node_id for s in self.sessions if s.is_open)
        assert alive[node_id] == 1, "a node has two sessions"
        return session


class Machine:
    """One node process after the other, under one node's name, behind one link."""

    def __init__(self, world: Simulation, node_id: str, name: str) -> None:
        self._world = world
        self._random = world.random
        self.node_id = NodeId(node_id)
        self.name = name
        self.link_is_up = asyncio.Event()
        self.link_is_up.set()
        self.is_wanted = asyncio.Event()
        self.session: NodeSession | None = None
        self.end: NodeSessionEnd | None = None
        self.budget = WindowBudget(BUDGET_BYTES)
        self._process = 0
        self._pumps: set[asyncio.Task[None]] = set()
        self._applied = 0
        self.open_upstreams = 0

    # NodePorts

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        await asyncio.sleep(self._random.uniform(0, 0.5))
        is_refused = self._random.random() < 0.1
        if not is_refused:
            self._applied = payload.generation
        return NodeConfigAnswer(
            generation=payload.generation,
            is_acknowledged=not is_refused,
            effective_generation=self._applied,
            code="no_file" if is_refused else "",
        )

    def report(self) -> NodeReport:
        names = [ProviderId(f"p{self.node_id}")] if self._random.random() < 0.1 else []
        return NodeReport(
            active_runs=self.open_upstreams,
            health=[ProviderHealth(provider_id=name, health="degraded") for name in names],
        )

    def connected(self, is_connected: bool) -> None: ...

    async def execute(self, attempt: Attempt, out: Responder) -> None:
        chance = self._random.random
        assert isinstance(attempt.work, TunnelCall)
        self.open_upstreams += 1
        try:
            body = attempt.work.body
            whole = body if isinstance(body, bytes) else b"".join([part async for part in body])
            await asyncio.sleep(self._random.expovariate(10))
            if chance() < 0.1:
                raise Fault(Code.UPSTREAM_REFUSED, "the upstream refused the connection")
            out.started()
            await asyncio.sleep(self._random.expovariate(2))
            out.head(200, [])
            answer = answer_to(whole.decode().strip())
            breaks_at = self._random.randint(0, len(answer)) if chance() < 0.1 else None
            position = 0
            while position < len(answer):
                if breaks_at is not None and position >= breaks_at:
                    raise Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection")
                size = self._random.choice((1, 100, 20_000))
                await out.chunk(answer[position : position + size])
                position += size
                if chance() < 0.2:
                    await asyncio.sleep(self._random.expovariate(3))
        finally:
            self.open_upstreams -= 1

    # its life

    async def live(self) -> None:
        while True:
            await self.is_wanted.wait()
            self._process += 1
            await self._process_life(f"{self.name}-{self._process}")

    async def _process_life(self, instance_id: str) -> None:
        while self.is_wanted.is_set():
            await asyncio.sleep(self._random.uniform(0.05, 3))
            await self._lag()
            hello = Hello(protocol=ProtocolRange(min=1, max=1), instance_id=instance_id)
            try:
                session = await self._world.hub.join(self.node_id, hello)
            except JoinRefused as refusal:
                self._world.tell(f"{instance_id} {refusal.code}")
                continue
            self._world.tell(f"{instance_id} joined as {session.epoch}")
            first = await next_batch(session)
            await self._lag()
            if first is None or not self.is_wanted.is_set():
                session.close("the dial was given up")
                continue
            end = NodeSessionEnd(first.frames[0].welcome, self, self.budget)
            self.session, self.end = session, end
            pumps = [
                asyncio.create_task(self._pump(session, end)),
                asyncio.create_task(self._pump(end, session)),
            ]
            self._pumps.update(pumps)
            for pump in pumps:
                pump.add_done_callback(self._pumps.discard)
            await end.closed
            self._world.tell(f"{instance_id} lost {session.epoch}: {end.close_reason}")

    async def _lag(self) -> None:
        await asyncio.sleep(self._random.expovariate(50))
        await self.link_is_up.wait()

    async def _pump(
        self, source: NodeSession | NodeSessionEnd, sink: NodeSession | NodeSessionEnd
    ) -> None:
        """Carry batches, late but in order, until one end is gone; the other then hears of it."""
        while (batch := await next_batch(source)) is not None:
            await self._lag()
            if not sink.is_open:
                source.close("reset by the other end")
                return
            # What arrives is a copy: no end can reach into the other's memory.
            kind = NodeBatch if isinstance(batch, NodeBatch) else EdgeBatch
            sink.receive(kind.FromString(batch.SerializeToString()))  # type: ignore[arg-type]
        await self._lag()
        sink.close("the other end is gone")

    def reset(self) -> None:
        if self.end is not None and self.session is not None:
            self.session.close("reset")
            self.end.close("reset")

    def crash(self) -> None:
        """The process is gone; what it had handed over still arrives."""
        self.is_wanted.clear()
        if self.end is not None:
            self.end.close("crashed")

    async def leave(self) -> None:
        if self.end is not None and self.end.is_open:
            await self.end.drain("draining", 5.0)
            self.crash()

    async def stop(self, life: asyncio.Task[None]) -> None:
        self.crash()
        self.link_is_up.set()
        life.cancel()
        await asyncio.gather(life, *self._pumps, return_exceptions=True)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log: list[str] = []
        self.outcomes: dict[str, str] = {}
        self._unseen: list[Any] = []

    async def run(self) -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: self._unseen.append(told))
        self._generation = 1
        config = self._config()
        first = RuntimeSnapshot(
            generation=Generation(1),
            config=config,
            config_digest="sha256:0",
            vault=Vault(values={}, token_digests={}, fingerprint_key=b"k"),
            catalog=Catalog.from_config(config),
            applied_at=datetime.now(UTC),
        )
        self._snapshots = SnapshotStore(first)
        self._records: list[UsageRecord] = []
        self._dispatcher = Dispatcher(first.catalog, config.provider_pool)
        budget = WindowBudget(BUDGET_BYTES)
        self.hub = Hub(boot_id="boot", version="test", pool=self._dispatcher, budget=budget)
        self._set_desired()
        self._runs = RunService(
            snapshots=self._snapshots,
            dispatcher=self._dispatcher,
            hub=self.hub,
            ledger=UsageLedger(observe=lambda finished: self._records.append(finished.record)),
        )
        machines = [Machine(self, name, name) for name in NODES]
        self._machines = [*machines, Machine(self, "n0", "clone-of-n0")]
        for machine in machines:
            machine.is_wanted.set()
        lives = [asyncio.create_task(machine.live()) for machine in self._machines]
        world = asyncio.create_task(self._world())
        callers = [asyncio.create_task(self._caller(f"r{n:02}")) for n in range(CALLERS)]
        for caller in callers:
            if self.random.random() < 0.2:
                loop.call_later(self.random.uniform(0, LASTS_S), caller.cancel)
        ends = await asyncio.gather(*callers, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        world.cancel()
        await asyncio.wait([world])
        if not world.cancelled():
            world.result()
        await asyncio.sleep(1)
        for machine, life in zip(self._machines, lives, strict=True):
            await machine.stop(life)
        self.hub.close_all("over")
        await asyncio.sleep(1)
        self._check_end(callers, budget)
        self._dispatcher.close()
        return self.log

    def tell(self, what: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    # -- callers -------------------------------------------------------------------------------

    async def _caller(self, run_id: str) -> None:
        await asyncio.sleep(self.random.uniform(0, LASTS_S))
        padding = self.random.choice((0, 10, 100_000))
        spec = RunSpec(
            run_id=RunId(run_id),
            request_id=run_id,
            surface="chat",
            model=MODEL,
            demand=Demand(model=MODEL, operation="chat_completions"),
            work=Work(run_id, padding),
        )
        received = b""
        expected = answer_to(run_id)
        outcome = "hung up"
        try:
            # The clocks of a run end it whatever happens: silence, queue, and its own pace.
            async with asyncio.timeout(300), self._runs.open(spec) as answer:
                async for piece in answer:
                    received += piece
                    if self.random.random() < 0.1:
                        await asyncio.sleep(self.random.expovariate(1))
            outcome = "whole"
            assert received == expected, "an answer is not what its upstream said"
        except Fault as fault:
            outcome = fault.code.value
        finally:
            assert run_id not in self.outcomes
            assert outcome in EXPECTED, outcome
            assert expected.startswith(received), "bytes were lost, doubled or mixed up"
            self.outcomes[run_id] = outcome
            self.tell(f"{run_id} {outcome} after {len(received)}")

    # -- the world -----------------------------------------------------------------------------

    async def _world(self) -> None:
        choose = self.random.choice
        while True:
            await asyncio.sleep(self.random.expovariate(0.5))
            machine = choose(self._machines)
            move = choose(("silence", "silence", "reset", "crash", "leave", "want", "want", "new"))
            match move:
                case "silence" if machine.link_is_up.is_set():
                    machine.link_is_up.clear()
                    # Some end before anybody noticed, some long after.
                    lasts_s = choose((0.5, 5.0, 11.9, 12.1, 30.0))
                    loop = asyncio.get_running_loop()
                    loop.call_later(lasts_s, machine.link_is_up.set)
                    if lasts_s > NOTICED_WITHIN_S:
                        ends = [end for end in (machine.session, machine.end) if end is not None]
                        loop.call_later(NOTICED_WITHIN_S, _must_be_over, ends)
                case "reset":
                    machine.reset()
                case "crash":
                    machine.crash()
                case "leave":
                    await machine.leave()
                case "want":
                    machine.is_wanted.set()
                case "new":
                    await self._refresh()
                case _:
                    continue
            self.tell(f"{move} {machine.name}")
            self._check()

    async def _refresh(self) -> None:
        config = self._config()
        self._generation += 1
        catalog = Catalog.from_config(config)
        self._snapshots.swap(
            replace(
                self._snapshots.current,
                generation=Generation(self._generation),
                config=config,
                catalog=catalog,
            )
        )
        self._dispatcher.replace(catalog, config.provider_pool)
        async for answer in self.hub.push(self._set_desired(), 5.0):
            self.tell(f"{answer.node_id} {answer.outcome} {self._generation}")

    def _set_desired(self) -> dict[NodeId, NodeConfigPayload]:
        payloads = {NodeId(name): NodeConfigPayload(generation=self._generation) for name in NODES}
        self.hub.set_desired(payloads)
        return payloads

    def _config(self) -> EffectiveConfig:
        profile = ProtocolProfile(
            id="vllm",
            driver="openai_chat",
            operation_urls={"chat_completions": "http://127.0.0.1:9/v1/chat/completions"},
            capabilities=frozenset({"chat", "streaming"}),
            model_mapping={},
            extensions={},
        )
        adapter = Adapter(
            key=AdapterKey("main"),
            type="openai_compat",
            base_url="http://127.0.0.1:9",
            profile=profile,
        )
        nodes = tuple(
            Node(
                id=NodeId(name),
                token=SecretRef(env="T"),
                adapters=(adapter,),
                providers=(
                    Provider(
                        id=ProviderId(f"p{name}"),
                        type="vllm",
                        category="local_inference",
                        adapter=AdapterKey("main"),
                        models=(Target("served"),),
                        capacity=self.random.randint(1, 3),
                        enabled=self.random.random() < 0.9,
                    ),
                ),
            )
            for name in NODES
        )
        model = ModelGroup(
            id=MODEL, providers={ProviderId(f"p{name}"): Target("served") for name in NODES}
        )
        policy = QueuePolicy(
            max_queue=self.random.randint(1, 10),
            queue_timeout_ms=self.random.choice((1000, 20_000)),
        )
        return EffectiveConfig(models=(model,), nodes=nodes, provider_pool=policy)

    # -- what must hold ------------------------------------------------------------------------

    def _check(self) -> None:
        in_flight = sum(load.in_flight for load in self._dispatcher.loads().values())
        assert in_flight == self._dispatcher.lease_count <= self._runs.active_runs
        for machine in self._machines:
            if machine.end is not None and machine.end.is_open:
                assert len(machine.end._running) <= machine.open_upstreams + CALLERS

    def _check_end(self, callers: list[asyncio.Task[None]], budget: WindowBudget) -> None:
        assert not self._unseen, self._unseen
        began = {record.run_id for record in self._records}
        assert len(self._records) == len(began), "a run has two records"
        assert began <= set(self.outcomes)
        for run_id, outcome in self.outcomes.items():
            assert run_id in began or outcome == "hung up"
        assert self._dispatcher.lease_count == 0
        assert self._dispatcher.queue_status().pending == 0
        assert all(load.in_flight == 0 for load in self._dispatcher.loads().values())
        assert self._runs.active_runs == 0
        assert all(a._ended for attempts in self.hub.of_run.values() for a in attempts)
        assert not any(session.is_open or session.open_attempts for session in self.hub.sessions)
        assert budget.left_bytes == BUDGET_BYTES
        for machine in self._machines:
            assert machine.open_upstreams == 0
            assert machine.budget.left_bytes == BUDGET_BYTES
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert not tasks, tasks


def _must_be_over(ends: list[NodeSession | NodeSessionEnd]) -> None:
    assert not any(end.is_open for end in ends), "a silent loss was not noticed in time"


def simulate(seed: int) -> list[str]:
    """One run. An error carries the seed that repeats it."""
    try:
        return run_virtually(Simulation(seed).run())
    except BaseException as error:
        error.add_note(f"seed {seed}: tests.simulation.pair.simulate({seed}) repeats it")
        raise
