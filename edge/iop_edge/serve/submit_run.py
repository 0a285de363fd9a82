"""SubmitRun: the same runs for programs that do not speak HTTP (OAI-6).

It decides who may submit, and turns a request of the wire into a run and the run's events into
responses. Admission, dispatch and usage are the run service's, as for every other caller.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from google.protobuf.message import DecodeError

from iop.runtime_pb2 import (
    DESCRIPTOR,
    RunEvent,
    RunRequest,
    SubmitRunAccepted,
    SubmitRunEnd,
    SubmitRunRequest,
    SubmitRunResponse,
    TokenUsage,
)
from iop_edge.config.effective import IngressLimits, ModelGroup, PrincipalToken, ProviderAuth
from iop_edge.pool.catalog import ModelSpec
from iop_edge.pool.demand import Demand
from iop_edge.pool.estimate import TokenEstimate, estimate_tokens
from iop_edge.pool.resolve import resolve
from iop_edge.runtime.snapshot import SnapshotStore
from iop_edge.runtime.work import AnswerReader, HeaderPairs, Principal, ReportedUsage, RunSpec
from iop_edge.serve.dialect.generated import GeneratedText
from iop_edge.serve.dialect.normalized.result import add_text, reported_usage
from iop_edge.serve.dialect.request import require_model_id
from iop_edge.serve.http.errors import new_id, request_id_of, retry_after_s
from iop_edge.serve.policy import (
    Principals,
    bearer_token,
    fitted_limit,
    provider_credential,
    traceparent_of,
)
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.ids import ModelId, RunId, Target
from iop_shared.profiles import Capability
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.server import Method, ServerCall
from iop_shared.wire import AUTHORIZATION, MAX_MESSAGE_BYTES

SERVICE_NAME = DESCRIPTOR.services_by_name["RunIngress"].full_name
CODE_KEY = "iop-code"
RETRY_AFTER_KEY = "retry-after"

_ROLES = frozenset({"system", "user", "assistant", "tool"})

_log = logs.get("submit_run")


class _Answer(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> HeaderPairs: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class RunOpener(Protocol):
    def open(self, spec: RunSpec) -> AbstractAsyncContextManager[_Answer]: ...


class SubmitRun:
    """Serves `iop.RunIngress`. Responses leave serialized, as the run's reader made them."""

    def __init__(
        self,
        principal_tokens: tuple[PrincipalToken, ...],
        *,
        snapshots: SnapshotStore,
        runs: RunOpener,
        provider_auth: ProviderAuth | None = None,
        limits: IngressLimits | None = None,
    ) -> None:
        limits = limits or IngressLimits()
        self._receive_timeout_s = limits.receive_timeout_ms / 1000
        self._write_timeout_s = limits.write_timeout_ms / 1000
        self._provider_auth = provider_auth or ProviderAuth()
        self._principals = Principals(principal_tokens)
        self._is_open_to_loopback = not principal_tokens
        self._snapshots = snapshots
        self._runs = runs

    def methods(self) -> Mapping[str, Method]:
        return {"SubmitRun": Method(self._submit, MAX_MESSAGE_BYTES)}

    async def _submit(self, call: ServerCall) -> None:
        try:
            metadata = {
                key.encode("latin-1"): value.encode("latin-1")
                for key, value in call.headers.items()
            }
            principal = self._authenticated(metadata, call)
            spec = self._spec(await self._request(call), metadata, principal)
            accepted = SubmitRunAccepted(run_id=spec.run_id, request_id=spec.request_id)
            async with self._runs.open(spec) as answer:
                if answer.status < 400:
                    await self._say(call, SubmitRunResponse(accepted=accepted).SerializeToString())
                    async for response in answer:
                        await self._say(call, response)
            # The run is left first: its record names the upstream's status, not our code for it.
            if answer.status >= 400:
                raise _refused_by_upstream(answer.status, answer.headers)
        except Fault as fault:
            raise _told(fault) from None
        except RpcError:
            raise
        except Exception as error:
            _log.error("submit_run_failed", error=type(error).__name__)
            raise _told(Fault(Code.INTERNAL, "the edge failed on this request")) from None

    async def _request(self, call: ServerCall) -> SubmitRunRequest:
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                message = await call.read()
        except TimeoutError:
            limit = round(self._receive_timeout_s * 1000)
            raise Fault(
                Code.REQUEST_TIMEOUT, f"the request did not arrive within {limit} ms"
            ) from None
        if message is None:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "no request arrived")
        try:
            return SubmitRunRequest.FromString(message)
        except DecodeError:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "no SubmitRunRequest") from None

    async def _say(self, call: ServerCall, response: bytes) -> None:
        """Send a response; a caller that takes nothing for too long is cut, and its run with it
        (NODE-8)."""
        call.send(response)
        if call.is_writable:
            return
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await call.drained()
        except TimeoutError:
            limit = round(self._write_timeout_s * 1000)
            call.fail(RpcError(StatusCode.CANCELLED, f"the answer was not taken for {limit} ms"))
            # As for a caller that has left.
            raise asyncio.CancelledError from None

    def _spec(
        self,
        request: SubmitRunRequest,
        metadata: dict[bytes, bytes],
        principal: Principal | None,
    ) -> RunSpec:
        credential = provider_credential(self._provider_auth, metadata)
        _require_run(request)
        model = ModelId(request.model)
        snapshot = self._snapshots.current
        found = resolve(snapshot.catalog, model)
        group = None
        if isinstance(found, ModelSpec):
            group = next(entry for entry in snapshot.config.models if entry.id == model)
        tokens = _tokens(request, group.chars_per_token if group else None)
        asked = request.options.max_tokens if request.options.HasField("max_tokens") else None
        run = _run_request(request, group, tokens.estimate)
        capabilities: set[Capability] = {"streaming"}
        if request.tools:
            capabilities.add("tool_calling")
        request_id = request_id_of({b"x-request-id": request.request_id.encode()})
        return RunSpec(
            run_id=RunId(new_id("run_")),
            request_id=request_id,
            surface="submit_run",
            model=model,
            demand=Demand(
                model=model,
                operation=None,
                capabilities=frozenset(capabilities),
                input_tokens=tokens.estimate,
                input_tokens_floor=tokens.floor,
                output_tokens=asked,
            ),
            work=_SubmittedWork(run, credential),
            principal=principal,
            traceparent=traceparent_of(metadata),
            chars_per_token=group.chars_per_token if group else None,
        )

    def _authenticated(self, metadata: dict[bytes, bytes], call: ServerCall) -> Principal | None:
        if self._is_open_to_loopback:
            if not _is_loopback(call.peer):
                raise Fault(
                    Code.INVALID_API_KEY,
                    "this edge has no principals, so runs are taken from loopback peers only",
                )
            return None
        token = bearer_token(metadata.get(AUTHORIZATION.encode()))
        if token is None:
            raise Fault(Code.INVALID_API_KEY, "send a token as authorization: Bearer <token>")
        return self._principals.of_token(token)


class _SubmittedWork:
    """A run that is normalized from the start: it has no operation that could be relayed."""

    operation = None
    is_stream = True

    def __init__(self, run: RunRequest, auth_override: tuple[str, str] | None) -> None:
        self._run = run
        self.auth_override = auth_override

    def __repr__(self) -> str:
        return "SubmittedWork()"

    def upstream_headers(self) -> HeaderPairs:
        return ()

    def upstream_body(self, target: Target) -> bytes:
        raise Fault(Code.INTERNAL, "a submitted run has no body to relay")

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> AnswerReader:
        return _Ignored(headers)

    def run_request(self) -> RunRequest:
        return self._run

    def run_reader(self) -> _EventReader:
        return _EventReader()


class _Ignored:
    """The body of an upstream's error: only its status is told, and when to come again."""

    usage = ReportedUsage()
    told_end = None

    def __init__(self, headers: HeaderPairs) -> None:
        self.headers = [pair for pair in headers if pair[0] == RETRY_AFTER_KEY]

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return 0

    def feed(self, chunk: bytes) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


class _EventReader:
    """A run's events as serialized responses; finish and usage come in the last one."""

    headers: HeaderPairs = ()
    told_end = None

    def __init__(self) -> None:
        self._finish_reason = ""
        self._tokens: TokenUsage | None = None
        self._generated = GeneratedText()

    @property
    def usage(self) -> ReportedUsage:
        return reported_usage(self._tokens)

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return self._generated.tokens(chars_per_token)

    def feed(self, event: RunEvent) -> bytes:
        add_text(event, self._generated)
        match event.WhichOneof("event"):
            case "text_delta":
                response = SubmitRunResponse(text_delta=event.text_delta)
            case "reasoning_delta":
                response = SubmitRunResponse(reasoning_delta=event.reasoning_delta)
            case "tool_call_delta":
                response = SubmitRunResponse(tool_call_delta=event.tool_call_delta)
            case "finish_reason":
                self._finish_reason = event.finish_reason
                return b""
            case "usage":
                self._tokens = event.usage
                return b""
            case _:
                return b""
        return response.SerializeToString()

    def end(self) -> bytes:
        if not self._finish_reason:
            raise Fault(Code.UPSTREAM_CLOSED, "the run ended before its answer was whole")
        end = SubmitRunEnd(finish_reason=self._finish_reason, usage=self._tokens)
        return SubmitRunResponse(end=end).SerializeToString()


def _require_run(request: SubmitRunRequest) -> None:
    """Raises Fault(invalid_value) that names the field."""
    require_model_id(request.model)
    if not request.messages:
        raise Fault(Code.INVALID_VALUE, "messages must not be empty", param="messages")
    for index, message in enumerate(request.messages):
        if message.role not in _ROLES:
            raise Fault(
                Code.INVALID_VALUE,
                f"messages[{index}].role must be one of {', '.join(sorted(_ROLES))}",
                param="messages",
            )
    if request.options.HasField("max_tokens") and request.options.max_tokens < 1:
        raise Fault(
            Code.INVALID_VALUE, "options.max_tokens must be 1 or more", param="options.max_tokens"
        )


def _run_request(
    request: SubmitRunRequest, group: ModelGroup | None, input_tokens: int
) -> RunRequest:
    """The request as a run, under the model's generation policy (OAI-2)."""
    run = RunRequest(
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.tool_choice if request.HasField("tool_choice") else None,
        options=request.options,
        response_format=request.response_format if request.HasField("response_format") else None,
        is_stream=True,
    )
    if group is None:
        return run
    options = run.options
    floor = group.min_max_tokens or 0
    if options.HasField("max_tokens"):
        options.max_tokens = max(options.max_tokens, floor)
    elif group.default_max_tokens is not None:
        options.max_tokens = fitted_limit(group.default_max_tokens, group, input_tokens)
    budget = group.default_thinking_token_budget
    if budget is not None and not options.HasField("thinking_token_budget"):
        limit = options.max_tokens if options.HasField("max_tokens") else None
        if limit is None or budget < limit:
            options.thinking_token_budget = budget
    return run


def _tokens(request: SubmitRunRequest, chars_per_token: float | None) -> TokenEstimate:
    """As on the other surfaces: the floor counts what the model is certainly given to read, the
    text of messages; the estimate counts tools and calls too (POOL-4)."""
    certain = [part.text for message in request.messages for part in message.parts]
    likely = [tool.parameters_json for tool in request.tools]
    for message in request.messages:
        likely += [message.reasoning, *(call.arguments_json for call in message.tool_calls)]
    floor = estimate_tokens(certain).floor
    estimate = estimate_tokens([*certain, *likely], chars_per_token).estimate
    return TokenEstimate(max(estimate, floor), floor)


def _is_loopback(peer: str) -> bool:
    """Whether a peer's address (`unix` for one without) is of this machine."""
    if peer == "unix":
        return True
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _refused_by_upstream(status: int, headers: HeaderPairs) -> Fault:
    """An upstream's own error has no code of ours; it is told by the nearest one and its status."""
    if status in (429, 503, 529):
        seconds = next((value for _, value in headers if value.isascii() and value.isdigit()), "")
        return Fault(
            Code.NO_PROVIDER,
            f"the upstream answered with status {status}",
            retry_after_s=float(seconds[:6]) if seconds else None,
        )
    if status < 500:
        return Fault(Code.INVALID_VALUE, f"the upstream refused the request with status {status}")
    return Fault(Code.UPSTREAM_INVALID, f"the upstream answered with status {status}")


def _told(fault: Fault) -> RpcError:
    trailers = [(CODE_KEY, fault.code.value)]
    seconds = retry_after_s(fault)
    if seconds is not None:
        trailers.append((RETRY_AFTER_KEY, str(seconds)))
    return RpcError(
        StatusCode[fault.shape.grpc_status], f"{fault.code.value}: {fault.message}", trailers
    )
