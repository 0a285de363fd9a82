"""A run: what a caller sees. One answer, one usage record, one or more attempts behind it.

A run resolves its model, asks the dispatcher for a lease, opens an attempt on the lease's node and
gives the answer on as it comes. An attempt that ends before the upstream was sent anything is
admitted anew (POOL-13); a later fault is the caller's to see, unless the gate has the run. Whatever
ends the run, its lease is released exactly once and its attempt is cancelled where it still runs
(POOL-6, NODE-7).

What the bytes mean is the `Work`'s to know, who gets a slot is the pool's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from iop.runtime_pb2 import EdgeFrame, ResponseHead
from iop_edge.gate.report import GateReport
from iop_edge.pool.catalog import Attribution, DirectTarget, Path
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Lease, Place
from iop_edge.pool.explain import Decision
from iop_edge.pool.pool import NO_PROVIDER_RETRY_S
from iop_edge.pool.refusal import never_direct
from iop_edge.pool.resolve import resolve
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.dispatcher import PoolFault
from iop_edge.runtime.usage import FinishedRun, UsageRecord, UsageSource
from iop_edge.runtime.work import HeaderPairs, ReportedUsage, RunSpec, Work
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, NodeId, ProviderId, Target
from iop_shared.timestamps import to_milliseconds

if TYPE_CHECKING:
    from iop_edge.runtime.runs import RunService

T = TypeVar("T")
Arrived = TypeVar("Arrived", contravariant=True)

_NOTHING_WAS_SENT = frozenset(
    {
        Code.NODE_LOST,
        Code.UPSTREAM_REFUSED,
        Code.UPSTREAM_CLOSED,
        Code.UPSTREAM_CONNECT_TIMEOUT,
        Code.NO_PROVIDER,
        Code.DRAINING,
    }
)
"""Faults after which another provider may be tried, if the upstream had not been sent anything."""


class Answer:
    """The answer of a run whose upstream has begun to answer.

    Iterating yields bytes that are ready to be written to the caller as they are, and raises the
    Fault that cut them off. Once only.
    """

    __slots__ = ("_released", "_run", "headers", "status")

    def __init__(
        self, run: Run, status: int, headers: HeaderPairs, released: AsyncIterator[bytes]
    ) -> None:
        self._run = run
        self._released = released
        self.status = status
        self.headers = headers

    @property
    def is_stream(self) -> bool:
        return self._run.spec.work.is_stream and self.status < 400

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._released


class Reader(Protocol):
    """What a record needs of whatever read an answer."""

    @property
    def usage(self) -> ReportedUsage: ...
    def generated_tokens(self, chars_per_token: float | None) -> int: ...
    @property
    def told_end(self) -> str | None: ...


class RelayReader(Reader, Protocol[Arrived]):
    """What a relay needs of it: `feed` and `end` give what may be released, and raise Fault."""

    def feed(self, arrived: Arrived, /) -> bytes: ...
    def end(self) -> bytes: ...


class _Relay(Generic[T]):
    """What one attempt brings, as its reader releases it. An iterator by hand: a generator would
    be registered with the loop for every run."""

    __slots__ = ("_arrival", "_is_over", "_reader", "_run")

    def __init__(
        self, run: Run, arrival: Callable[[], Awaitable[T | None]], reader: RelayReader[T]
    ) -> None:
        self._run = run
        self._arrival = arrival
        self._reader = reader
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        run, reader = self._run, self._reader
        rest = b""
        try:
            while (arrived := await self._arrival()) is not None:
                if released := reader.feed(arrived):
                    run._note_first_byte()
                    return released
            rest = run._end_reading(reader)
        except Fault as fault:
            run._break_reading(fault, reader)
        self._is_over = True
        if not rest:
            raise StopAsyncIteration
        run._note_first_byte()
        return rest


class Tokens(NamedTuple):
    """Tokens of input and of output, and where both are known from."""

    input: int | None
    output: int | None
    source: UsageSource


class Run:
    """One run, from its spec to its usage record."""

    def __init__(
        self, service: RunService, spec: RunSpec, gate_report: GateReport | None = None
    ) -> None:
        self.spec = spec
        self._gate_report = gate_report
        self._service = service
        self._began_at = time.time()
        # Not the loop's clock, which may stand still for a millisecond at a time.
        self._began = time.monotonic()
        self._generation = service.snapshots.current.generation
        self._attempts = 0
        self._attempt: Attempt | None = None
        self._work: Work = spec.work
        self._lease: Lease | None = None
        self._last_lease: Lease | None = None
        self._decisions: list[Decision] = []
        self._waited_s = 0.0
        self._first_byte_s: float | None = None
        self._reader: Reader | None = None
        self._cut: Fault | None = None
        self._end = "cancelled"
        # What the record names, of the last attempt.
        self._node_id: NodeId | None = None
        self._provider_id: ProviderId | None = None
        self._target: Target | None = None
        self._attribution: Attribution | None = None

    def __repr__(self) -> str:
        return f"Run({self.spec.run_id}, {self.spec.model}, attempts={self._attempts})"

    async def __aenter__(self) -> Answer:
        try:
            self._service.enter(self)
            return await self._answer()
        except BaseException as error:
            self._finish(error)
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(exc)

    # -- the answer ----------------------------------------------------------------------------

    async def _answer(self) -> Answer:
        return self._relayed(await self._begin(self.spec.demand))

    def _relayed(self, head: ResponseHead | None) -> Answer:
        """The answer of the one attempt whose head this is, released as it comes."""
        attempt = self._attempt
        assert attempt is not None
        if head is None:
            runner = self._work.run_reader()
            self._reader = runner
            return Answer(self, 200, runner.headers, _Relay(self, attempt.next_event, runner))
        assert self._target is not None
        reader = self._work.reader(head.status, pairs(head), self._target)
        self._reader = reader
        if head.status >= 400:
            self._end = f"error:upstream_{head.status}"
        released = _Relay(self, attempt.next_chunk, reader)
        return Answer(self, head.status, reader.headers, released)

    def _end_reading(self, reader: RelayReader[T]) -> bytes:
        """The attempt has brought all; what is left to be released."""
        rest = reader.end()
        self._answered(reader)
        return rest

    def _break_reading(self, fault: Fault, reader: RelayReader[T]) -> None:
        """The attempt has ended with this. Raises the Fault that the caller is told, where what
        was released is no whole answer."""
        if reader.told_end is None:
            # A cut by the drain deadline reaches the attempt as its cancellation.
            raise self._cut or fault from None
        self._answered(reader)

    def _answered(self, reader: RelayReader[T]) -> None:
        # The slot is free as soon as the upstream is done, however slowly the caller reads.
        self._release()
        if self._end == "cancelled":
            self._end = reader.told_end or "completed"

    def _note_first_byte(self) -> None:
        if self._first_byte_s is None:
            self._first_byte_s = time.monotonic() - self._began

    def cut(self, fault: Fault) -> None:
        """End the run from outside."""
        self._cut = fault
        if self._attempt is not None:
            self._attempt.cancel("drain")

    # -- attempts ------------------------------------------------------------------------------

    async def _begin(self, demand: Demand, place: Place | None = None) -> ResponseHead | None:
        """Get a slot and the head of an answer; POOL-13 within. `place` is that of a run which
        comes back after an attempt."""
        service = self._service
        found = resolve(service.snapshots.current.catalog, self.spec.model)
        if isinstance(found, DirectTarget):
            return await self._begin_direct(found, demand)
        failed: Lease | None = None
        failure: Fault | None = None
        while True:
            asked_at = time.monotonic()
            try:
                granted = await service.dispatcher.acquire(
                    self.spec.run_id,
                    demand,
                    retry_of=failed,
                    place=place,
                    on_queued=self._decisions.append,
                )
            except PoolFault as refusal:
                self._waited_s += refusal.decision.waited_s
                self._decisions.append(refusal.decision)
                if failure is not None and refusal.code is Code.NO_PROVIDER:
                    # Nobody else is left to be tried: the fault of the last one says more.
                    raise failure from None
                raise
            except BaseException:
                # Gone out of the queue, by the caller or by a cut: no decision says how long.
                self._waited_s += time.monotonic() - asked_at
                raise
            self._lease = self._last_lease = lease = granted.lease
            self._waited_s += granted.waited_s
            self._decisions.append(granted.decision)
            self._attribution = lease.attribution
            try:
                return await self._attempt_on(
                    lease.resource.node_id,
                    lease.adapter,
                    lease.target,
                    lease.resource.provider_id,
                    lease.path,
                )
            except Fault as fault:
                self._release()
                if self._cut is not None:
                    raise self._cut from None
                if not self._may_go_elsewhere(fault):
                    raise
                failed, failure = lease, fault

    async def _begin_direct(self, target: DirectTarget, demand: Demand) -> ResponseHead | None:
        """A legacy route or the fallback: past the pool, and without a slot (CFG-28)."""
        why = never_direct(demand, target)
        if why is not None:
            raise Fault(*why)
        path = target.abilities.path_for(demand.operation, demand.capabilities)
        assert path is not None
        self._attribution = target.attribution
        if not self._service.hub.takes_runs(target.node_id):
            raise Fault(
                Code.NO_PROVIDER,
                f"node {target.node_id} is not connected",
                retry_after_s=NO_PROVIDER_RETRY_S,
            )
        return await self._attempt_on(target.node_id, target.adapter, target.target, None, path)

    async def _attempt_on(
        self,
        node_id: NodeId,
        adapter: AdapterKey,
        target: Target,
        provider_id: ProviderId | None,
        path: Path,
    ) -> ResponseHead | None:
        self._attempts += 1
        self._attempt = None
        self._node_id, self._target, self._provider_id = node_id, target, provider_id
        frame, body = self._opening(adapter, target, path)
        frame.attempt_open.provider_id = provider_id or ""
        attempt = self._attempt = self._service.hub.open_attempt(node_id, frame, body)
        if self._cut is not None:
            raise self._cut
        head = await attempt.head()
        if head is None and path == "tunnel":
            raise Fault(Code.INTERNAL, f"node {node_id} ended the attempt without an answer")
        return head

    def _opening(self, adapter: AdapterKey, target: Target, path: Path) -> tuple[EdgeFrame, bytes]:
        """The opening frame without the request itself, and the request."""
        spec, work = self.spec, self._work
        frame = EdgeFrame()
        opening = frame.attempt_open
        opening.run_id = spec.run_id
        opening.attempt = self._attempts
        opening.generation = self._service.snapshots.current.generation
        opening.traceparent = spec.traceparent
        if work.auth_override is not None:
            opening.auth_override.name, opening.auth_override.value = work.auth_override
        if path == "normalized":
            request = work.run_request()
            opening.run.adapter = request.adapter = adapter
            opening.run.target = request.target = target
            return frame, request.SerializeToString()
        tunnel = opening.tunnel
        tunnel.adapter, tunnel.target = adapter, target
        # The pool gives the path `tunnel` only to an operation that can be relayed.
        tunnel.operation = work.operation or ""
        tunnel.is_stream = work.is_stream
        headers = tunnel.headers
        for name, value in work.upstream_headers():
            header = headers.add()
            header.name, header.value = name, value
        return frame, work.upstream_body(target)

    def _may_go_elsewhere(self, fault: Fault) -> bool:
        return fault.code in _NOTHING_WAS_SENT and (
            self._attempt is None or not self._attempt.has_upstream_started
        )

    # -- the end -------------------------------------------------------------------------------

    def _end_attempt(self, reason: str) -> None:
        """The last attempt runs on no more, and holds no slot."""
        if self._attempt is not None:
            self._attempt.cancel(reason)
        self._release()

    def _release(self) -> None:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._service.dispatcher.release(lease)

    def _finish(self, error: BaseException | None) -> None:
        """Whatever happened: nothing runs on, the slot is back, and there is one record."""
        self._end_attempt("caller_gone")
        if isinstance(error, Fault):
            self._end = f"error:{error.code.value}"
        elif isinstance(error, Exception):
            self._end = f"error:{Code.INTERNAL.value}"
        elif self._end == "cancelled" and self._reader is not None:
            # Whoever hangs up at the last event, as clients do, has had the answer.
            self._end = self._reader.told_end or self._end
        self._service.leave(self)
        self._service.ledger.record(
            FinishedRun(
                record=self._record(),
                decisions=tuple(self._decisions),
                traceparent=self.spec.traceparent,
                gate=self._gate_report,
            )
        )

    def _usage(self) -> Tokens:
        if self._reader is None:
            return Tokens(None, None, "none")
        return tokens_of(self._reader, self.spec)

    def _record(self) -> UsageRecord:
        spec, principal = self.spec, self.spec.principal
        tokens = self._usage()
        return UsageRecord(
            run_id=spec.run_id,
            request_id=spec.request_id,
            started_at=to_milliseconds(self._began_at) + "+00:00",
            model=spec.model,
            token_ref=principal.token_ref if principal else None,
            principal_ref=principal.principal_ref if principal else None,
            attribution=self._attribution,
            provider_id=self._provider_id,
            node_id=self._node_id,
            target=self._target,
            generation=self._generation,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            usage_source=tokens.source,
            attempts=self._attempts,
            repaired=self._gate_report is not None and self._gate_report.is_repaired,
            end=self._end,
            queue_ms=round(self._waited_s * 1000, 3),
            first_byte_ms=_ms(self._first_byte_s),
            duration_ms=round((time.monotonic() - self._began) * 1000, 3),
        )


def tokens_of(reader: Reader, spec: RunSpec) -> Tokens:
    """What one attempt used. What its upstream did not report is estimated, once anything was
    generated at all."""
    reported = reader.usage
    counted, produced = reported.input_tokens, reported.output_tokens
    if counted is not None and produced is not None:
        return Tokens(counted, produced, "reported")
    generated = reader.generated_tokens(spec.chars_per_token)
    if not generated:
        is_reported = counted is not None or produced is not None
        return Tokens(counted, produced, "reported" if is_reported else "none")
    return Tokens(
        spec.demand.input_tokens if counted is None else counted,
        generated if produced is None else produced,
        "estimated",
    )


def pairs(head: ResponseHead) -> HeaderPairs:
    """The headers of an upstream's answer."""
    return tuple((header.name, header.value) for header in head.headers)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
