from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256

import grpc
import grpc.aio
import pytest

from iop.runtime_pb2 import (
    ChatMessage,
    ContentPart,
    GenerationOptions,
    RunEvent,
    SubmitRunRequest,
    SubmitRunResponse,
    TokenUsage,
    ToolCall,
    ToolDefinition,
)
from iop_edge.config.effective import (
    EffectiveConfig,
    IngressLimits,
    ModelGroup,
    PrincipalToken,
    ProviderAuth,
    Server,
)
from iop_edge.config.vault import Vault
from iop_edge.pool.catalog import Catalog
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_edge.runtime.work import RunSpec
from iop_edge.serve.grpc_listener import GrpcListener
from iop_edge.serve.submit_run import CODE_KEY, SERVICE_NAME, SubmitRun, _is_loopback
from iop_shared.errors import Code, Fault
from iop_shared.ids import Generation, ModelId, Target
from iop_shared.rpc.client import dial
from iop_shared.rpc.codes import RpcError
from tests.wire.runtime_pb2_grpc import RunIngressStub

TOKEN = "iop_caller_01234567_" + "c" * 32
POLICY = ModelGroup(
    id=ModelId("smart"),
    providers={},
    context_window_tokens=1000,
    default_max_tokens=200,
    min_max_tokens=50,
    default_thinking_token_budget=100,
)


class ScriptedAnswer:
    def __init__(self, status: int, pieces: Sequence[RunEvent | Fault], spec: RunSpec) -> None:
        self.status = status
        self._pieces = pieces
        self._reader = spec.work.run_reader()
        upstream_headers = (("retry-after", "7"), ("server", "secret"))
        self.headers = spec.work.reader(status, upstream_headers, Target("served")).headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Fault):
                raise piece
            if released := self._reader.feed(piece):
                yield released
        yield self._reader.end()


class ScriptedRuns:
    def __init__(self) -> None:
        self.specs: list[RunSpec] = []
        self.status = 200
        self.pieces: Sequence[RunEvent | Fault] = (RunEvent(finish_reason="stop"),)
        self.refusal: Fault | None = None
        self.is_held = False
        self.was_left_in_peace = False
        self.opened, self.left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def open(self, spec: RunSpec) -> AsyncIterator[ScriptedAnswer]:
        self.specs.append(spec)
        self.opened.set()
        try:
            if self.is_held:
                await asyncio.Event().wait()
            if self.refusal is not None:
                raise self.refusal
            yield ScriptedAnswer(self.status, self.pieces, spec)
            self.was_left_in_peace = True
        finally:
            self.left.set()


class Bench:
    def __init__(self, stub: RunIngressStub, runs: ScriptedRuns, address: str) -> None:
        self.stub = stub
        self.address = address
        self.runs = runs

    async def submit(
        self, request: SubmitRunRequest, token: str | None = None, **more: str
    ) -> list[SubmitRunResponse]:
        metadata = tuple((name.replace("_", "-"), value) for name, value in more.items())
        if token is not None:
            metadata += (("authorization", f"Bearer {token}"),)
        return [response async for response in self.stub.SubmitRun(request, metadata=metadata)]


@asynccontextmanager
async def bench(
    *tokens: PrincipalToken,
    provider_auth: ProviderAuth | None = None,
    limits: IngressLimits | None = None,
) -> AsyncIterator[Bench]:
    config = EffectiveConfig(models=(POLICY,))
    snapshot = RuntimeSnapshot(
        generation=Generation(1),
        config=config,
        config_digest="sha256:0",
        vault=Vault(values={}, token_digests={}, fingerprint_key=b"k"),
        catalog=Catalog.from_config(config),
        applied_at=datetime.now(UTC),
    )
    runs = ScriptedRuns()
    service = SubmitRun(
        tokens,
        snapshots=SnapshotStore(snapshot),
        runs=runs,
        provider_auth=provider_auth,
        limits=limits,
    )
    listener = GrpcListener(Server(listen="127.0.0.1:0"), {SERVICE_NAME: service})
    async with listener, grpc.aio.insecure_channel(listener.address) as channel:
        yield Bench(RunIngressStub(channel), runs, listener.address)


def asking(**fields: object) -> SubmitRunRequest:
    request = SubmitRunRequest(
        model="smart", messages=[ChatMessage(role="user", parts=[ContentPart(text="hello there")])]
    )
    request.MergeFrom(SubmitRunRequest(**fields))  # type: ignore[arg-type]  # the test's own
    return request


def code_of(error: grpc.aio.AioRpcError) -> object:
    return dict(error.trailing_metadata() or ()).get(CODE_KEY)


@pytest.mark.req("OAI-6")
async def test_everything_a_run_says_arrives_in_order_and_the_end_carries_usage() -> None:
    async with bench() as made:
        made.runs.pieces = (
            RunEvent(reasoning_delta="hm"),
            RunEvent(text_delta="hi"),
            RunEvent(tool_call_delta=ToolCall(index=0, id="c", name="f", arguments_json="{}")),
            RunEvent(usage=TokenUsage(input_tokens=3, output_tokens=0)),
            RunEvent(finish_reason="tool_calls"),
        )
        responses = await made.submit(asking(request_id="mine-1"))
    kinds = [response.WhichOneof("event") for response in responses]
    assert kinds == ["accepted", "reasoning_delta", "text_delta", "tool_call_delta", "end"]
    assert responses[0].accepted.request_id == "mine-1"
    end = responses[-1].end
    assert (end.finish_reason, end.usage.input_tokens) == ("tool_calls", 3)
    assert end.usage.HasField("output_tokens"), "a reported zero is a zero"


@pytest.mark.req("OAI-2", "OAI-6")
@pytest.mark.parametrize(
    ("options", "max_tokens", "budget"),
    [
        (GenerationOptions(), 200, 100),
        (GenerationOptions(max_tokens=10), 50, None),
        (GenerationOptions(max_tokens=500, thinking_token_budget=7), 500, 7),
    ],
)
async def test_the_models_generation_policy_holds_for_submitted_runs(
    options: GenerationOptions, max_tokens: int, budget: int | None
) -> None:
    async with bench() as made:
        await made.submit(asking(options=options))
        [spec] = made.runs.specs
    sent = spec.work.run_request().options
    assert sent.max_tokens == max_tokens
    assert (
        sent.thinking_token_budget if sent.HasField("thinking_token_budget") else None
    ) == budget
    # A policy's default is no wish of the caller's, and never a reason to refuse (POOL-4).
    asked = options.max_tokens if options.HasField("max_tokens") else None
    assert spec.demand.output_tokens == asked


@pytest.mark.req("POOL-14", "OAI-6")
async def test_tools_ask_for_a_provider_that_can_call_them() -> None:
    async with bench() as made:
        await made.submit(asking(tools=[ToolDefinition(name="f")]))
        [spec] = made.runs.specs
    assert spec.demand.operation is None
    assert spec.demand.capabilities == {"streaming", "tool_calling"}


@pytest.mark.req("POOL-4", "OAI-6")
async def test_tools_weigh_in_the_estimate_and_refuse_nothing() -> None:
    schema = '{"description": "' + "word " * 3000 + '"}'
    async with bench() as made:
        await made.submit(asking(tools=[ToolDefinition(name="f", parameters_json=schema)]))
        [spec] = made.runs.specs
    assert spec.demand.input_tokens_floor == 2
    assert spec.demand.input_tokens > 3000


@pytest.mark.req("OAI-5", "OAI-6")
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SubmitRunRequest(), "model must be a model id"),
        (SubmitRunRequest(model="smart"), "messages must not be empty"),
        (SubmitRunRequest(model="smart", messages=[ChatMessage(role="boss")]), "role must be one"),
        (asking(options=GenerationOptions(max_tokens=0)), "options.max_tokens must be 1 or more"),
    ],
)
async def test_what_is_no_run_is_refused_by_name(request_: SubmitRunRequest, words: str) -> None:
    async with bench() as made:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await made.submit(request_)
        assert made.runs.specs == []
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(caught.value) == "invalid_value"


@pytest.mark.req("OAI-5", "OAI-6")
async def test_an_unknown_model_is_not_found() -> None:
    async with bench() as made:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.submit(SubmitRunRequest(model="nope", messages=[ChatMessage(role="user")]))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert code_of(caught.value) == "model_not_found"


@pytest.mark.req("OAI-5", "OAI-6")
@pytest.mark.parametrize("code", list(Code))
async def test_every_fault_has_its_grpc_status_and_its_code(code: Code) -> None:
    async with bench() as made:
        made.runs.refusal = Fault(code, "the reason", retry_after_s=2.5)
        with pytest.raises(grpc.aio.AioRpcError, match="the reason") as caught:
            await made.submit(asking())
    assert caught.value.code().name == made.runs.refusal.shape.grpc_status
    trailers = dict(caught.value.trailing_metadata() or ())
    assert trailers[CODE_KEY] == code.value
    assert ("retry-after" in trailers) == made.runs.refusal.shape.sends_retry_after


@pytest.mark.req("OAI-7", "OAI-6")
async def test_a_run_that_breaks_ends_with_an_error_and_never_with_an_end() -> None:
    async with bench() as made:
        made.runs.pieces = (RunEvent(text_delta="half"), Fault(Code.NODE_LOST, "gone"))
        responses = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for response in made.stub.SubmitRun(asking()):
                responses.append(response.WhichOneof("event"))
    assert responses == ["accepted", "text_delta"]
    assert code_of(caught.value) == "node_lost"


@pytest.mark.req("OAI-7", "OAI-6")
async def test_a_run_without_a_finish_is_no_clean_end() -> None:
    async with bench() as made:
        made.runs.pieces = (RunEvent(text_delta="half"),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.submit(asking())
    assert code_of(caught.value) == "upstream_closed"


@pytest.mark.req("OAI-6")
@pytest.mark.parametrize(
    ("status", "grpc_status"),
    [
        (400, grpc.StatusCode.INVALID_ARGUMENT),
        (429, grpc.StatusCode.UNAVAILABLE),
        (500, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_an_upstreams_own_error_is_told_with_its_status(
    status: int, grpc_status: grpc.StatusCode
) -> None:
    async with bench() as made:
        made.runs.status = status
        with pytest.raises(grpc.aio.AioRpcError, match=f"status {status}") as caught:
            await made.submit(asking())
        # So its record has the same end as on every other surface.
        assert made.runs.was_left_in_peace
    assert caught.value.code() is grpc_status


@pytest.mark.req("NODE-7", "OAI-6")
async def test_a_program_that_leaves_ends_its_run() -> None:
    async with bench() as made:
        made.runs.is_held = True
        call = made.stub.SubmitRun(asking())
        async with asyncio.timeout(5):
            await made.runs.opened.wait()
            call.cancel()
            await made.runs.left.wait()


@pytest.mark.req("NODE-8", "OAI-6")
async def test_a_caller_that_takes_nothing_is_cut_and_its_run_with_it() -> None:
    async with bench(limits=IngressLimits(write_timeout_ms=20)) as made, asyncio.timeout(10):
        made.runs.pieces = [RunEvent(text_delta="x" * 1_000_000)] * 10
        connection = await dial("127.0.0.1", int(made.address.rpartition(":")[2]), tls=None)
        call = connection.call("e", f"/{SERVICE_NAME}/SubmitRun", (), max_message_bytes=2**24)
        call.send(asking().SerializeToString())
        connection.end(call)
        await made.runs.left.wait()
        assert not made.runs.was_left_in_peace
        with pytest.raises(RpcError, match="not taken for 20 ms"):
            while await call.read() is not None:
                pass
        connection.close("the test is over")


@pytest.mark.req("OAI-6")
async def test_a_request_that_does_not_arrive_is_not_waited_for() -> None:
    async with bench(limits=IngressLimits(receive_timeout_ms=20)) as made, asyncio.timeout(10):
        connection = await dial("127.0.0.1", int(made.address.rpartition(":")[2]), tls=None)
        call = connection.call("e", f"/{SERVICE_NAME}/SubmitRun", (), max_message_bytes=2**24)
        with pytest.raises(RpcError, match="request_timeout: the request did not arrive"):
            await call.read()
        connection.close("the test is over")
    assert made.runs.specs == []


PRINCIPAL = PrincipalToken(
    token_ref="ci",
    token_hash_sha256=sha256(TOKEN.encode()).hexdigest(),
    principal_ref="team-ci",
)


@pytest.mark.req("OAI-3", "OAI-6")
async def test_with_principals_a_token_is_needed_and_names_the_principal() -> None:
    async with bench(PRINCIPAL) as made:
        for wrong in (None, TOKEN[:-1]):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await made.submit(asking(), wrong)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN[:-1] not in (caught.value.details() or "")
        await made.submit(asking(), TOKEN)
        [spec] = made.runs.specs
    assert spec.principal is not None
    assert spec.principal.token_ref == "ci"


@pytest.mark.req("OAI-3")
@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("unix", True),
        ("10.0.0.7", False),
        ("fe80::1", False),
        ("::ffff:10.0.0.7", False),
        ("", False),
        ("somewhere", False),
    ],
)
def test_without_principals_only_this_machine_may_submit(peer: str, is_local: bool) -> None:
    assert _is_loopback(peer) is is_local


@pytest.mark.req("OAI-4", "OAI-6")
async def test_a_provider_token_is_demanded_and_passed_on_as_on_every_surface() -> None:
    async with bench(provider_auth=ProviderAuth(enabled=True)) as made:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.submit(asking())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert code_of(refused.value) == "provider_token_required"
        assert not made.runs.specs
        await made.submit(asking(), x_iop_provider_authorization="Bearer theirs")
    [spec] = made.runs.specs
    assert spec.work.auth_override == ("Authorization", "Bearer theirs")
    assert "theirs" not in repr(spec)


@pytest.mark.req("OAI-5", "OAI-6")
async def test_an_upstream_that_is_busy_says_when_to_come_again() -> None:
    async with bench() as made:
        made.runs.status = 429
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.submit(asking())
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(refused.value.trailing_metadata() or ())["retry-after"] == "7"
    assert "429" in str(refused.value.details())


@pytest.mark.req("OAI-6", "SEC-1")
@pytest.mark.parametrize("model", ["", "x" * 257, "a\nb", "a\x1b[31m", "a\u202eb"])
async def test_a_model_that_can_be_no_id_is_refused(model: str) -> None:
    async with bench() as made:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            request = asking()
            request.model = model
            await made.submit(request)
    assert code_of(refused.value) == "invalid_value"
    assert not made.runs.specs
