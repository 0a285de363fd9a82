"""From a caller's HTTP request to a run, and from the run's answer to the caller.

It decides who calls, which run is asked for, and how the answer or the fault is written. Who
gets a slot, on which node, and what the bytes mean are others' decisions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from iop_edge.config.effective import ModelGroup, OpenAI
from iop_edge.gate.filters import GATED_OPERATIONS
from iop_edge.gate.options import GateOptions
from iop_edge.pool.catalog import Catalog, ModelSpec
from iop_edge.pool.demand import Demand
from iop_edge.pool.resolve import resolve
from iop_edge.runtime.work import HeaderPairs, Principal, RunSpec
from iop_edge.serve.dialect.answers import status_for
from iop_edge.serve.dialect.caller_protocols import CALLER_PROTOCOLS, CallerProtocol
from iop_edge.serve.dialect.errors import error_event
from iop_edge.serve.dialect.request import has_items, is_true, model_of, parse
from iop_edge.serve.http.errors import new_id
from iop_edge.serve.http.listener import origin_of
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.routes import Route, Router
from iop_edge.serve.openai import description
from iop_edge.serve.openai.models import ModelList, Snapshots
from iop_edge.serve.openai.refusals import Refusals
from iop_edge.serve.openai.tokens import prompt_tokens
from iop_edge.serve.openai.work import CallerWork
from iop_edge.serve.policy import (
    Principals,
    apply_generation_policy,
    asked_tokens,
    provider_credential,
    traceparent_of,
)
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.ids import ModelId, RunId
from iop_shared.profiles import Capability

log = logs.get("openai")

_MAX_FORWARDED_CHARS = 1_024


class Answer(Protocol):
    """What the ingress needs of a run's answer."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> HeaderPairs: ...
    @property
    def is_stream(self) -> bool: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class RunOpener(Protocol):
    """What the ingress needs of the run service."""

    def open(self, spec: RunSpec) -> AbstractAsyncContextManager[Answer]: ...


class Ingress:
    """The caller surface. `openai` is that of the edge's start: all of it is restart-only."""

    def __init__(
        self,
        openai: OpenAI,
        *,
        snapshots: Snapshots,
        runs: RunOpener,
        count_refusal: Callable[[Code], None] = lambda code: None,
    ) -> None:
        self._openai = openai
        self._snapshots = snapshots
        self._runs = runs
        self._principals = Principals(openai.principal_tokens)
        self._refusals = Refusals(count_refusal)
        self._groups_of: Catalog | None = None
        self._groups: dict[str, ModelGroup] = {}

    def router(self) -> Router:
        """The whole surface."""
        return Router(self.routes(), note_refusal=self._refusals.note)

    def routes(self) -> list[Route]:
        """Every route of the surface (OAI-1)."""
        models = ModelList(self._snapshots, self._principals)
        return [
            *(
                Route(
                    method="POST",
                    path=protocol.path,
                    handler=partial(self._serve, protocol),
                    takes_json=True,
                )
                for protocol in CALLER_PROTOCOLS
            ),
            Route(method="GET", path="/v1/models", handler=models.list_all),
            Route(method="GET", path="/v1/models/{tail}", handler=models.show_one),
            Route(method="GET", path=description.PATH, handler=description.describe),
        ]

    async def _serve(self, protocol: CallerProtocol, request: Request) -> None:
        is_anthropic = protocol.surface in ("messages", "count_tokens")
        principal = self._principals.authenticate(request.headers, takes_api_key=is_anthropic)
        credential = provider_credential(self._openai.provider_auth, request.headers)
        body = await request.body()
        spec = self._spec(protocol, request, body, principal, credential)
        request.is_accounted = True
        await self._run(protocol, request, spec)

    def _spec(
        self,
        protocol: CallerProtocol,
        request: Request,
        body: bytes,
        principal: Principal | None,
        credential: tuple[str, str] | None,
    ) -> RunSpec:
        members = parse(body, protocol.fields, protocol.required)
        model = ModelId(model_of(members))
        catalog = self._snapshots.current.catalog
        found = resolve(catalog, model)
        group = self._group(catalog, model) if isinstance(found, ModelSpec) else None
        asked = asked_tokens(protocol, members)
        tokens = prompt_tokens(
            members,
            group.chars_per_token if group else None,
            nearest_bound=_nearest_bound(catalog, group, asked),
        )
        changes = apply_generation_policy(protocol, members, group, tokens.estimate)
        is_stream = protocol.can_stream and is_true(members, "stream")
        needed: list[Capability] = ["streaming"] if is_stream else []
        if has_items(members, "tools") or has_items(members, "functions"):
            needed.append("tool_calling")
        run_id = RunId(new_id("run_"))
        work = CallerWork(
            protocol,
            members,
            changes,
            model=model,
            headers=_upstream_headers(protocol, request, is_stream=is_stream),
            run_id=run_id,
            request_id=request.request_id,
            created=int(time.time()),
            is_stream=is_stream,
            auth_override=credential,
        )
        gate = None
        if self._openai.stream_evidence_gate.enabled and protocol.operation in GATED_OPERATIONS:
            window = group.context_window_tokens if group else None
            gate = GateOptions.freeze(self._openai.stream_evidence_gate, window)
        return RunSpec(
            run_id=run_id,
            request_id=request.request_id,
            surface=protocol.surface,
            model=model,
            demand=Demand(
                model=model,
                operation=protocol.operation,
                capabilities=frozenset(needed),
                input_tokens=tokens.estimate,
                input_tokens_floor=tokens.floor,
                output_tokens=asked,
            ),
            work=work,
            principal=principal,
            traceparent=traceparent_of(request.headers),
            chars_per_token=group.chars_per_token if group else None,
            gated=work if gate is not None else None,
            gate=gate,
        )

    def _group(self, catalog: Catalog, model: ModelId) -> ModelGroup | None:
        if catalog is not self._groups_of:
            self._groups = {group.id: group for group in self._snapshots.current.config.models}
            self._groups_of = catalog
        return self._groups.get(model)

    async def _run(self, protocol: CallerProtocol, request: Request, spec: RunSpec) -> None:
        whole: list[bytes] = []
        try:
            async with self._runs.open(spec) as answer:
                status = status_for(answer.status, protocol.dialect)
                headers = [
                    (name.encode("ascii"), value.encode("latin-1"))
                    for name, value in answer.headers
                ]
                is_stream = answer.is_stream
                async for chunk in answer:
                    if not is_stream:
                        whole.append(chunk)
                        continue
                    # The status is not sent before there is something to follow it, so that a
                    # fault until then is an error response that clients understand and retry.
                    if not request.has_started:
                        await request.start(status, headers)
                    await request.write(chunk)
                # Within the run, which writes its record after the caller has the answer.
                if request.has_started:
                    await request.finish()
                else:
                    await request.respond(status, b"".join(whole), headers)
        except Exception as error:
            if request.is_answered or not request.has_started:
                raise
            fault = error if isinstance(error, Fault) else _own_fault(request, error)
            await request.finish(error_event(fault, protocol.dialect, request.request_id))


def _own_fault(request: Request, error: Exception) -> Fault:
    """What is told of an error that nobody foresaw. Its own message may hold a caller's text."""
    log.error(
        "request_failed",
        request_id=request.request_id,
        error=type(error).__name__,
        at=origin_of(error),
    )
    return Fault(Code.INTERNAL, "the edge failed on this request")


def _nearest_bound(catalog: Catalog, group: ModelGroup | None, asked_tokens: int | None) -> int:
    """The least number of input tokens that any decision about this request depends on."""
    threshold = catalog.long_context_threshold_tokens
    if group is None or group.context_window_tokens is None:
        return threshold
    return min(threshold, group.context_window_tokens - (asked_tokens or 0))


def _upstream_headers(
    protocol: CallerProtocol, request: Request, *, is_stream: bool
) -> list[tuple[str, str]]:
    accepted = "text/event-stream" if is_stream else "application/json"
    headers = [
        ("content-type", "application/json"),
        ("accept", accepted),
        ("x-request-id", request.request_id),
    ]
    for name in protocol.forwarded_headers:
        value = request.headers.get(name.encode("ascii"))
        if value is not None and len(value) <= _MAX_FORWARDED_CHARS and value.isascii():
            headers.append((name, value.decode("ascii")))
    return headers
