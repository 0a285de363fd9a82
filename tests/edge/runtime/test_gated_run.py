"""Runs under the gate: what the caller reads, which attempts there are, who holds the slot.

The hub is scripted: what each attempt's upstream says and how it ends is the test's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from iop.runtime_pb2 import Header, ResponseHead
from iop_edge.config.effective import GateFilter, StreamEvidenceGate
from iop_edge.gate.options import GateOptions
from iop_edge.pool.catalog import Attribution, Catalog, DirectTarget
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.snapshot import SnapshotStore
from iop_edge.runtime.usage import RunReport, UsageLedger
from iop_edge.runtime.work import RunSpec
from iop_edge.serve.dialect.caller_protocols import CHAT
from iop_edge.serve.dialect.request import parse
from iop_edge.serve.openai.work import CallerWork
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, ModelId, NodeId, RunId, Target
from tests.edge.pool.rig import TUNNEL, catalog, demand, policy, spec

N = NodeId("n")
LOST = Fault(Code.NODE_LOST, "the node was lost")
SILENT = Fault(Code.UPSTREAM_IDLE_TIMEOUT, "nothing came")
LOOP = "I will check the door, and then I will go home again. "
GUARD = GateFilter(filter="repeat_guard", capability="output.repeat_guard")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
DIRECT = DirectTarget(
    node_id=N,
    adapter=AdapterKey("a"),
    target=Target("served"),
    attribution=Attribution("provider", None),
    abilities=TUNNEL,
    route_id=None,
)


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 7, "model": "up"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


def says(text: str, size: int = 6) -> list[bytes]:
    return [event({"content": text[at : at + size]}) for at in range(0, len(text), size)]


def calls(arguments: str) -> list[bytes]:
    function = {"name": "weather", "arguments": arguments}
    return [event({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})]


END = [event({}, "stop"), b"data: [DONE]\n\n"]


def as_sent(read: bytes) -> bytes:
    """What was read, with the name that the upstream uses for the model."""
    return re.sub(rb'"model": ?"[^"]*"', b'"model": "up"', read)


Step = bytes | Fault | asyncio.Event


class Hub:
    """Each attempt plays the next script: chunks of a 200, then a clean end or a fault. A status
    in its place is an error response."""

    def __init__(self, scripts: Sequence[Sequence[Step] | int]) -> None:
        self.scripts = list(scripts)
        self.bodies: list[dict[str, Any]] = []
        self.providers: list[str] = []
        self.left: list[Step] = []
        self.goes_away = False
        """The node is connected for the first attempt alone."""

    def takes_runs(self, node_id: NodeId) -> bool:
        return not (self.goes_away and self.bodies)

    def open_attempt(self, node_id: NodeId, frame: Any, body: bytes) -> Attempt:
        attempt = Attempt(
            cast(Any, Link()), 1, receive_window=cast(Any, Window()), send_window=cast(Any, None)
        )
        self.bodies.append(json.loads(body))
        self.providers.append(frame.attempt_open.provider_id)
        script = self.scripts.pop(0)
        self.left = [] if isinstance(script, int) else list(script)
        asyncio.get_running_loop().call_soon(play, attempt, script)
        return attempt


def play(attempt: Attempt, script: Sequence[Step] | int) -> None:
    if isinstance(script, int):
        attempt.on_head(ResponseHead(attempt_id=1, status=script))
        attempt.on_chunk(b'{"error":{"message":"no"}}')
        attempt.on_end(None)
        return
    if script and isinstance(script[0], Fault):
        attempt.on_end(script[0])
        return
    kind = Header(name="content-type", value="text/event-stream")
    attempt.on_head(ResponseHead(attempt_id=1, status=200, headers=[kind]))
    left = list(script)

    def go_on() -> None:
        if not left:
            attempt.on_end(None)
        elif isinstance(left[0], Fault):
            attempt.on_end(left[0])
        elif isinstance(left[0], asyncio.Event):
            # Comes again until the event has.
            if left[0].is_set():
                left.pop(0)
            asyncio.get_running_loop().call_later(0.005, go_on)
        else:
            attempt.on_chunk(left.pop(0))
            asyncio.get_running_loop().call_soon(go_on)

    go_on()


class Link:
    def cancel_attempt(self, attempt_id: int, reason: str) -> None:
        pass

    def send_credit(self, attempt_id: int, size: int) -> None:
        pass


class Window:
    unread_bytes = 0

    def received(self, size: int) -> None:
        pass

    def consumed(self, size: int) -> int:
        return 0

    def close(self) -> None:
        pass


class Snapshot:
    def __init__(self, of: Catalog, generation: int = 1) -> None:
        self.catalog = of
        self.generation = generation


class World:
    def __init__(
        self,
        *scripts: Sequence[Step] | int,
        providers: str = "ab",
        of: Catalog | None = None,
    ) -> None:
        of = of or catalog([spec(name) for name in providers])
        self.hub = Hub(scripts)
        self.dispatcher = Dispatcher(of, policy(timeout_ms=0))
        self._ledger = UsageLedger()
        self.snapshots = SnapshotStore(cast(Any, Snapshot(of)))
        self.service = RunService(
            snapshots=self.snapshots,
            dispatcher=self.dispatcher,
            hub=cast(Any, self.hub),
            ledger=self._ledger,
        )
        self.dispatcher.node_connected(N)
        self.read = b""

    async def ask(
        self,
        *,
        gate: StreamEvidenceGate | None = None,
        window: int | None = 8192,
        **members: Any,
    ) -> tuple[bytes, Fault | None]:
        """Everything that the caller reads, and the fault that ended it."""
        asked = {
            "model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}], **members
        }  # fmt: skip
        work = CallerWork(
            CHAT,
            parse(json.dumps(asked).encode(), CHAT.fields, CHAT.required),
            {},
            model=ModelId("m"),
            headers=[],
            run_id=RunId("run_1"),
            request_id="req_1",
            created=1,
            is_stream=asked["stream"],
            auth_override=None,
        )
        options = GateOptions.freeze(gate or gate_with(), window)
        run = RunSpec(
            run_id=RunId("run_1"),
            request_id="req_1",
            surface="chat",
            model=ModelId("m"),
            demand=demand(),
            work=work,
            gated=work,
            gate=options,
        )
        try:
            async with asyncio.timeout(10), self.service.open(run) as answer:
                async for piece in answer:
                    assert self.dispatcher.lease_count <= 1
                    self.read += piece
        except Fault as fault:
            return self.read, fault
        finally:
            assert self.dispatcher.lease_count == 0
        return self.read, None

    @property
    def last(self) -> RunReport:
        return self._ledger.latest(1)[0]


def gate_with(request: int = 3, strategy: int | None = None, *filters: Any) -> StreamEvidenceGate:
    return StreamEvidenceGate(
        enabled=True,
        max_request_fault_recovery=request,
        max_strategy_fault_recovery=request if strategy is None else strategy,
        filters=filters or (GUARD,),
    )


def text_of(read: bytes) -> str:
    text = ""
    for line in read.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text


def assert_one_answer(read: bytes) -> None:
    """One id, one model, one role, one finish and one end, whoever told it."""
    chunks = [json.loads(line[6:]) for line in read.split(b"\n") if line.startswith(b"data: {")]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["model"] for chunk in chunks} == {"m"}
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert sum("role" in choice["delta"] for choice in choices) <= 1
    assert read.count(b"[DONE]") == 1
    assert read.endswith(b"data: [DONE]\n\n")


@pytest.mark.req("GATE-1")
async def test_an_answer_in_which_nothing_goes_wrong_is_the_upstreams_to_the_byte_but_its_model():
    script = [*says("Once upon a time there was a quiet house."), *END]
    read, fault = await World(script).ask()
    assert fault is None
    assert read == b"".join(script).replace(b'"model": "up"', b'"model": "m"')


@pytest.mark.req("GATE-7", "GATE-5", "POOL-6")
async def test_a_stream_whose_node_dies_goes_on_from_what_was_read_on_another_provider():
    world = World([*says("The cat sat on the m"), LOST], [*says("at and slept."), *END])
    read, fault = await world.ask()
    assert fault is None
    assert text_of(read) == "The cat sat on the mat and slept."
    assert_one_answer(read)
    assert sorted(world.hub.providers) == ["a", "b"]
    second = world.hub.bodies[1]
    assert second["messages"][1] == {"role": "assistant", "content": "The cat sat on the m"}
    assert second["messages"][2]["role"] == "user"
    assert second["temperature"] == 0.2
    run = world.last.run
    assert (run.repaired, run.attempts, run.end) == (True, 2, "completed")
    assert world.last.gate is not None
    assert [one.strategy for one in world.last.gate.recoveries] == ["continuation_repair"]


@pytest.mark.req("GATE-7")
async def test_a_stream_that_died_unread_is_asked_for_once_more_unchanged():
    world = World([LOST], [*says("An answer."), *END])
    read, fault = await world.ask()
    assert fault is None
    assert text_of(read) == "An answer."
    assert_one_answer(read)
    first, second = world.hub.bodies
    assert first | {"model": ""} == second | {"model": ""}


@pytest.mark.req("GATE-5")
async def test_a_temperature_of_the_callers_own_is_kept():
    world = World([*says("some words"), LOST], [*says(" and more"), *END])
    await world.ask(temperature=0.9)
    assert [body["temperature"] for body in world.hub.bodies] == [0.9, 0.9]


@pytest.mark.req("GATE-7", "GATE-4")
async def test_a_loop_is_caught_before_the_caller_has_read_it_twice_and_the_answer_set_right():
    world = World([*says("So. " + LOOP * 20), *END], [*says("At home it was quiet."), *END])
    read, fault = await world.ask()
    assert fault is None
    text = text_of(read)
    assert text.count("check the door") == 1
    assert text.endswith("At home it was quiet.")
    assert_one_answer(read)
    assert world.last.run.repaired


@pytest.mark.req("GATE-7", "GATE-4")
async def test_what_comes_in_one_great_piece_is_cut_where_it_begins_to_repeat():
    told = "It was late. " + "".join(
        f"House {n} was dark and so was house {n * 7}. " for n in range(9)
    )
    world = World([event({"content": told + LOOP * 900}), *END], [*says("At home."), *END])
    read, fault = await world.ask()
    assert fault is None
    text = text_of(read)
    assert text.startswith(told)
    assert text.count("check the door") == 1
    assert text.endswith("At home.")


@pytest.mark.req("GATE-2", "CFG-19")
@pytest.mark.parametrize("budget", [0, 1, 3])
async def test_as_many_repairs_are_tried_as_the_budget_says_and_then_the_loop_is_told(budget: int):
    looping = [*says(LOOP * 20), *END]
    world = World(*[looping] * (budget + 1))
    read, fault = await world.ask(gate=gate_with(budget))
    assert fault is not None
    assert fault.code is Code.UPSTREAM_INVALID
    assert text_of(read).count("check the door") == 1
    assert world.last.run.attempts == budget + 1
    assert world.last.run.end == "error:upstream_invalid"
    assert not world.last.run.repaired
    temperatures = [body.get("temperature") for body in world.hub.bodies]
    assert temperatures == [None, 0.2, 0.4, 0.6][: budget + 1]


@pytest.mark.req("GATE-3")
async def test_a_filter_that_only_observes_lets_the_loop_pass_and_says_that_it_saw_it():
    observing = GateFilter(
        filter="repeat_guard", enforcement="observe_only", capability="output.repeat_guard"
    )
    world = World([*says(LOOP * 20), *END])
    read, fault = await world.ask(gate=gate_with(3, None, observing))
    assert fault is None
    assert text_of(read) == LOOP * 20
    assert world.last.gate is not None
    assert [one.matches for one in world.last.gate.filters] == [1]
    assert world.last.run.attempts == 1


@pytest.mark.req("GATE-7")
async def test_tool_arguments_that_do_not_fit_are_asked_for_again():
    finish = [event({}, "tool_calls"), b"data: [DONE]\n\n"]
    world = World([*calls('{"town": "Oslo"}'), *finish], [*calls('{"city": "Oslo"}'), *finish])
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is None
    assert b"town" not in read
    assert b"city" in read
    assert_one_answer(read)
    assert "weather" in world.hub.bodies[1]["messages"][-1]["content"]
    assert "temperature" not in world.hub.bodies[1]


@pytest.mark.req("GATE-4", "GATE-7")
async def test_no_other_fault_and_no_error_response_is_tried_again():
    silent = World([*says("some words"), SILENT])
    read, fault = await silent.ask()
    assert (text_of(read), fault) == ("some words", SILENT)
    refused = World(503)
    read, fault = await refused.ask()
    assert fault is None
    assert b"no" in read
    assert refused.last.run.end == "error:upstream_503"


@pytest.mark.req("GATE-5", "GATE-7")
@pytest.mark.parametrize("second", [503, [SILENT]])
async def test_a_repair_that_the_next_provider_refuses_ends_with_the_fault_it_was_to_mend(
    second: Any,
):
    world = World([*says("some words"), LOST], second)
    read, fault = await world.ask()
    assert (text_of(read), fault) == ("some words", LOST)
    assert world.last.gate is not None
    [recovery] = world.last.gate.recoveries
    assert (recovery.outcome, recovery.refusal) == ("refused", "provider_refused")
    assert world.last.run.end == "error:node_lost"
    assert not world.last.run.repaired


@pytest.mark.req("GATE-5")
async def test_an_unknown_window_refuses_the_rebuild_before_anything_is_asked_for():
    world = World([*says("some words"), LOST])
    read, fault = await world.ask(window=None)
    assert (text_of(read), fault) == ("some words", LOST)
    assert world.last.run.attempts == 1
    assert world.last.gate is not None
    assert [one.refusal for one in world.last.gate.recoveries] == ["context_window_unknown"]


@pytest.mark.req("GATE-7")
async def test_the_only_provider_may_be_asked_again():
    world = World([*says("some words"), LOST], [*says(" and more."), *END], providers="a")
    read, fault = await world.ask()
    assert fault is None
    assert text_of(read) == "some words and more."


@pytest.mark.req("GATE-5", "GATE-1")
@pytest.mark.parametrize(
    ("members", "bound", "reason"),
    [({"n": 2}, 1 << 20, "several_choices"), ({}, 10, "snapshot_too_large")],
)
async def test_what_cannot_be_repaired_goes_past_the_gate_and_its_record_says_so(
    members: dict[str, Any], bound: int, reason: str
):
    world = World([*says(LOOP * 20), *END])
    gate = StreamEvidenceGate(enabled=True, max_ingress_snapshot_bytes=bound, filters=(GUARD,))
    read, fault = await world.ask(gate=gate, **members)
    assert fault is None
    assert text_of(read) == LOOP * 20
    assert world.last.gate is not None
    assert world.last.gate.unrepaired == reason


@pytest.mark.req("GATE-3", "CFG-19")
async def test_what_is_suspected_for_too_long_is_let_go():
    brief = GateFilter(filter="repeat_guard", capability="output.repeat_guard", timeout_ms=20)
    told = "A verse. " + LOOP + LOOP[:30]
    is_all_read = asyncio.Event()
    world = World([*says(told), is_all_read, LOST])
    asking = asyncio.ensure_future(world.ask(gate=gate_with(0, 0, brief)))
    async with asyncio.timeout(10):
        while text_of(world.read) != told:
            await asyncio.sleep(0.005)
    is_all_read.set()
    assert await asking == (world.read, LOST)
    assert world.last.gate is not None
    assert world.last.gate.longest_hold_chars > 0


@pytest.mark.req("GATE-7", "CFG-28")
@pytest.mark.parametrize("before", [[], says("some words")])
async def test_a_route_whose_node_has_gone_ends_with_the_loss_that_a_repair_was_to_mend(
    before: list[bytes],
):
    none = catalog([], {})
    world = World([*before, LOST], of=structs.replace(none, fallback=DIRECT))
    world.hub.goes_away = True
    read, fault = await world.ask()
    assert (text_of(read), fault) == (text_of(b"".join(before)), LOST)
    assert world.last.gate is not None
    [recovery] = world.last.gate.recoveries
    assert (recovery.outcome, recovery.refusal) == ("refused", "no_provider")


@pytest.mark.req("GATE-7", "POOL-7")
@pytest.mark.parametrize("before", [[], says("some words")])
async def test_a_model_that_is_removed_meanwhile_ends_with_the_loss_that_a_repair_was_to_mend(
    before: list[bytes],
):
    world = World([*before, asyncio.Event(), LOST])
    asking = asyncio.ensure_future(world.ask())
    while not world.hub.bodies or text_of(world.read) != text_of(b"".join(before)):
        await asyncio.sleep(0)
    none = catalog([], {})
    world.snapshots.swap(cast(Any, Snapshot(none, 2)))
    world.dispatcher.replace(none, policy(timeout_ms=0))
    assert isinstance(world.hub.left[-2], asyncio.Event)
    world.hub.left[-2].set()
    read, fault = await asking
    assert (text_of(read), fault) == (text_of(b"".join(before)), LOST)
    assert world.last.gate is not None
    assert [one.refusal for one in world.last.gate.recoveries] == ["no_provider"]


@pytest.mark.req("POOL-6", "OPS-3", "GATE-7")
async def test_a_drain_cuts_a_run_whose_repair_waits_for_a_slot():
    is_cut = asyncio.Event()
    world = World([*says("some words"), is_cut, LOST], providers="a")
    asking = asyncio.ensure_future(world.ask())
    while text_of(world.read) != "some words":
        await asyncio.sleep(0)
    other = asyncio.ensure_future(world.dispatcher.acquire(RunId("run_2"), demand()))
    while world.dispatcher.queue_status().pending != 1:
        await asyncio.sleep(0)
    is_cut.set()
    lease = (await other).lease
    while world.dispatcher.queue_status().pending != 1:
        await asyncio.sleep(0)
    assert await world.service.drained(0) == 1
    world.dispatcher.release(lease)
    read, fault = await asking
    assert text_of(read) == "some words"
    assert fault is not None
    assert fault.code is Code.DRAIN_DEADLINE
    assert world.last.run.attempts == 1


@pytest.mark.req("OAI-7", "GATE-7")
@pytest.mark.parametrize("first", [[event({"role": "assistant"}), LOST], [*says("words"), LOST]])
async def test_a_later_attempt_that_says_nothing_at_all_is_no_clean_end(first: list[Step]):
    read, fault = await World(first, [event({"role": "assistant"}), END[1]]).ask()
    assert fault is not None
    assert fault.code is Code.UPSTREAM_CLOSED
    assert b"[DONE]" not in read


@pytest.mark.req("OAI-7", "GATE-7")
@pytest.mark.parametrize("said", [says("words"), calls('{"city": "Oslo"}')], ids=["text", "call"])
async def test_an_upstream_that_tells_no_end_after_its_finish_is_not_asked_for_one(
    said: list[Step],
):
    world = World([*said, END[0]])
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is not None
    assert fault.code is Code.UPSTREAM_CLOSED
    assert as_sent(read) == b"".join([*said, END[0]])
    assert world.last.run.attempts == 1


@pytest.mark.req("GATE-7")
async def test_calls_that_all_have_one_number_are_told_apart_by_their_ids():
    def one(call_id: str, arguments: str) -> bytes:
        function = {"name": "weather", "arguments": arguments}
        return event({"tool_calls": [{"index": 0, "id": call_id, "function": function}]})

    def more(arguments: str) -> bytes:
        return event({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})

    together = [one("c1", '{"city": "Oslo"}'), one("c2", '{"city": '), more('"Rome"}'), *END]
    world = World(together)
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is None
    assert as_sent(read) == b"".join(together)
    assert world.last.run.attempts == 1


@pytest.mark.req("OAI-7", "GATE-7")
async def test_an_answer_that_was_cut_behind_its_finish_ends_once_an_upstream_has_ended_it():
    for second in ([END[1]], END, [*says("And more."), *END]):
        read, fault = await World([*says("words"), END[0], LOST], second).ask()
        assert fault is None
        assert text_of(read) == "words"
        assert_one_answer(read)


@pytest.mark.req("GATE-7", "OAI-7")
async def test_an_error_that_a_later_attempt_tells_is_the_end_and_is_told_once():
    told = b'data: {"error":{"message":"hot","type":"server_error"}}\n\n'
    world = World([*says("some words"), LOST], [*says(" and more"), told])
    read, fault = await world.ask()
    assert fault is None
    assert read.endswith(told)
    assert read.count(b"error") == 2
    assert world.last.run.end == "error:upstream_error"
    assert not world.last.run.repaired


@pytest.mark.req("GATE-7")
async def test_an_error_that_is_told_amid_a_tool_call_is_not_asked_away():
    told = b'data: {"error":{"message":"hot","type":"server_error"}}\n\n'
    world = World([*says("Well."), *calls('{"ci'), told])
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is None
    assert read.endswith(told)
    assert world.last.run.attempts == 1


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("index", [-1, 2**32, 10**30])
async def test_calls_may_be_numbered_in_any_way(index: int):
    one = {"index": index, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
    again = [event({"tool_calls": [one]}), event({}, "tool_calls"), END[1]]
    read, fault = await World([*says("So. "), LOST], again).ask()
    assert fault is None
    assert read.count(b'"weather"') == 1
    assert_one_answer(read)


@pytest.mark.req("GATE-7", "GATE-2")
async def test_a_bad_call_goes_on_where_the_attempt_that_was_to_replace_it_fails():
    bad = [*calls('{"town": "Oslo"}'), event({}, "tool_calls"), END[1]]
    world = World([*says("Look. "), *bad], [SILENT])
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is None
    assert read.count(b"town") == 1
    assert_one_answer(read)
    world = World([*says("Look. "), *bad], [event({"role": "assistant"}), SILENT])
    read, fault = await world.ask(tools=[WEATHER])
    assert fault is None
    assert read.count(b"town") == 1
    assert_one_answer(read)
    assert (world.last.run.end, world.last.run.attempts) == ("completed", 2)
    assert not world.last.run.repaired


@pytest.mark.req("GATE-7")
async def test_what_has_no_place_in_the_answer_begun_ends_it_instead_of_being_lost():
    parts = event({"content": [{"type": "text", "text": " and more"}]})
    read, fault = await World([*says("some words"), LOST], [parts, *END]).ask()
    assert fault is not None
    assert fault.code is Code.UPSTREAM_INVALID
    assert text_of(read) == "some words"
    read, fault = await World([parts, LOST], END).ask()
    assert fault is LOST


texts = st.text(alphabet="ab .", max_size=30).map(lambda text: says(text, 3))
attempts = st.one_of(
    st.tuples(texts, st.sampled_from([[LOST], [SILENT], END, []])).map(lambda two: two[0] + two[1]),
    st.just([*says(LOOP * 14), *END]),
    st.sampled_from([503, [LOST], [SILENT]]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(attempts, min_size=8, max_size=8), st.integers(0, 3), st.integers(0, 3))
@pytest.mark.req("GATE-2", "GATE-5", "POOL-6")
async def test_however_the_attempts_go_the_caller_has_one_answer_or_one_fault(
    scripts: list[Any], request_max: int, strategy_max: int
):
    world = World(*scripts)
    read, fault = await world.ask(gate=gate_with(request_max, min(request_max, strategy_max)))
    run, gate = world.last.run, world.last.gate
    assert gate is not None
    # POOL-13 may add one attempt for each provider before anything was sent, twice at most here.
    began = [one for one in gate.recoveries if one.refusal != "no_provider"]
    assert run.attempts <= 2 * (1 + request_max)
    assert len([one for one in began if one.outcome != "refused"]) <= request_max
    if fault is None:
        assert run.end in ("completed", "error:upstream_503")
        if run.end == "completed":
            assert_one_answer(read)
    else:
        assert run.end == f"error:{fault.code.value}"
        assert b"[DONE]" not in read
    for body in world.hub.bodies[1:]:
        told = [one["content"] for one in body["messages"] if one["role"] == "assistant"]
        assert all(text_of(read).startswith(one) for one in told)
