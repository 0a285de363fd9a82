"""A run that the gate owns: what it says is weighed before the caller reads it, and where the
answer breaks off or goes wrong, another attempt goes on with it (GATE-1, GATE-7).

It carries out what the gate decides: writes the pieces that are released into the one answer of
the run, gives the lease back and asks for another, opens the attempt with the request that the
gate names. At most one attempt of a run holds a lease, and none holds one while the run waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import structs

from iop.runtime_pb2 import ResponseHead
from iop_edge.gate.budget import Request
from iop_edge.gate.evidence import Piece
from iop_edge.gate.gate import Effect, Fail, Gate, Repair
from iop_edge.gate.options import GateOptions
from iop_edge.gate.report import Unrepaired
from iop_edge.pool.catalog import Path
from iop_edge.pool.demand import Demand
from iop_edge.pool.estimate import estimate_tokens
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.dispatcher import PoolFault
from iop_edge.runtime.run import Answer, Reader, Run, Tokens, pairs, tokens_of
from iop_edge.runtime.work import GatedReader, GatedWork, ReportedUsage, RunSpec
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, NodeId, ProviderId, Target

if TYPE_CHECKING:
    from iop_edge.runtime.runs import RunService

T = TypeVar("T")

LONG_CHARS = 16_384
"""Text that is read beside the loop. Reading so much takes up to ten milliseconds."""


def unrepaired(options: GateOptions, work: GatedWork) -> Unrepaired | None:
    """Why a run goes past the gate from its start; None where it does not."""
    if work.choices > 1:
        return "several_choices"
    if work.snapshot_bytes > options.max_ingress_snapshot_bytes:
        return "snapshot_too_large"
    return None


def _asked(spec: RunSpec, work: GatedWork) -> Request:
    return Request(
        input_floor=spec.demand.input_tokens_floor,
        asked_output=spec.demand.output_tokens,
        output_limit=work.output_limit,
        count_floor=lambda text: estimate_tokens([text]).floor,
        estimate=lambda text: estimate_tokens([text], spec.chars_per_token).estimate,
    )


def _is_long(pieces: Sequence[Piece]) -> bool:
    if len(pieces) == 1 and pieces[0].raw is not None and len(pieces[0].raw) <= LONG_CHARS:
        return False
    return sum(len(said.text) for piece in pieces for said in piece.said) > LONG_CHARS


class _Source(Generic[T]):
    """What one attempt brings, as pieces."""

    __slots__ = ("arrival", "has_arrived", "is_over", "reader")

    def __init__(
        self,
        reader: GatedReader[T],
        attempt: Attempt,
        arrival: Callable[[], Awaitable[T | None]],
    ) -> None:
        self.reader = reader
        self.has_arrived = attempt.has_arrived
        self.arrival = arrival
        """The next thing that arrives; None after the last. Raises Fault."""
        self.is_over = False


class GatedRun(Run):
    """One run under the gate, from its spec to its usage record. What it releases is iterated
    once, by its answer."""

    def __init__(
        self, service: RunService, spec: RunSpec, options: GateOptions, work: GatedWork
    ) -> None:
        super().__init__(service, spec)
        self._options = options
        self._request = work
        self._gate = Gate(
            options,
            partial(_asked, spec, work),
            work.tool_schemas,
            key=service.fingerprint_key,
        )
        self._stitch = work.stitch(options.max_ingress_snapshot_bytes)
        self._loop = asyncio.get_running_loop()
        self._source: _Source[Any] | None = None
        self._step: Repair | Fail | None = None
        self._is_told = False
        self._readers: list[Reader] = []

    # -- the answer ----------------------------------------------------------------------------

    async def _answer(self) -> Answer:
        try:
            head = await self._begin(self.spec.demand)
        except Fault as fault:
            if isinstance(fault, PoolFault) or not self._attempts:
                raise
            head = await self._head_after(fault)
        if head is not None and head.status >= 400:
            self._gate.saw_error()
            return self._relayed(head)
        self._begin_reading(head)
        return Answer(self, 200 if head is None else head.status, self._stitch.headers, self)

    async def _head_after(self, fault: Fault) -> ResponseHead | None:
        """The head of the first attempt that gets one, where the first of all has ended so."""
        [step] = self._gate.failed(fault)
        while isinstance(step, Repair):
            attempts = self._attempts
            try:
                return await self._begin_again(step)
            except Fault as fault:
                [step] = self._without_head(fault, was_tried=self._attempts > attempts)
        assert isinstance(step, Fail)
        raise self._cut or step.fault

    def _without_head(self, fault: Fault, *, was_tried: bool) -> Sequence[Effect]:
        """What follows from a repair that ended with this fault before anything of an answer came.
        `was_tried`: a provider had been found for it."""
        if not was_tried or isinstance(fault, PoolFault):
            return self._gate.not_begun("no_provider")
        if self._gate.answers(fault):
            return self._gate.failed(fault)
        return self._gate.not_begun("provider_refused")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """What the caller reads next, over all attempts. By hand, as a relay is."""
        gate = self._gate
        while not self._is_told:
            step = self._step
            if type(step) is Fail:
                raise self._cut or step.fault
            if type(step) is Repair:
                released = self._write(await self._recover(step))
            elif gate.has_ended:
                released = self._end_answer()
                self._is_told = True
            else:
                released = self._write(await self._read_on())
            if released:
                self._note_first_byte()
                return released
        raise StopAsyncIteration

    def _write(self, effects: Sequence[Effect]) -> bytes:
        """What the caller reads of these; a repair or a failure, their last, is the next step."""
        last = effects[-1] if effects else None
        write = self._stitch.write
        if isinstance(last, Piece):
            self._step = None
            if len(effects) == 1:
                return write(last)
        else:
            self._step = last
        return b"".join([write(one) for one in effects if isinstance(one, Piece)])

    async def _read_on(self) -> Sequence[Effect]:
        source, gate, now = self._source, self._gate, self._loop.time
        assert source is not None
        try:
            deadline = gate.deadline
            if deadline is not None and not await source.has_arrived(deadline):
                return gate.expire(now())
            arrived = await source.arrival()
            source.is_over = arrived is None
            pieces = source.reader.end() if arrived is None else source.reader.feed(arrived)
            if _is_long(pieces):
                # A long text takes long to read, and all other runs would wait for it.
                effects = await asyncio.to_thread(gate.take, pieces, now())
            else:
                effects = gate.take(pieces, now()) if pieces else ()
        except Fault as fault:
            effects = self._broken_off(source, fault)
        if source.is_over:
            told = source.reader.told_end
            end = gate.end(now(), has_failed=told not in (None, "completed"))
            return [*effects, *end]
        return effects

    def _broken_off(self, source: _Source[Any], fault: Fault) -> Sequence[Effect]:
        """What follows from an attempt that ended with this fault. After the end that the answer
        itself has told, none does."""
        if self._cut is not None:
            raise self._cut from None
        source.is_over = True
        return self._gate.failed(fault) if source.reader.told_end is None else ()

    def _end_answer(self) -> bytes:
        """The run's answer is complete; what is left to be told of it."""
        # The slot is free as soon as the upstream is done, however slowly the caller reads.
        self._release()
        used = self._usage()
        rest = self._stitch.end(ReportedUsage(input_tokens=used.input, output_tokens=used.output))
        assert self._reader is not None
        self._end = self._reader.told_end or "completed"
        return rest

    # -- attempts ------------------------------------------------------------------------------

    async def _recover(self, repair: Repair) -> Sequence[Effect]:
        """Begin the next attempt's answer; what follows where there is none."""
        attempts = self._attempts
        try:
            head = await self._begin_again(repair)
        except Fault as fault:
            if self._cut is not None:
                raise self._cut from None
            return self._without_head(fault, was_tried=self._attempts > attempts)
        if head is not None and head.status >= 400:
            self._gate.saw_error()
            return self._gate.not_begun("provider_refused")
        self._begin_reading(head)
        return ()

    async def _begin_again(self, repair: Repair) -> ResponseHead | None:
        self._end_attempt("internal")
        demand = self.spec.demand
        self._work = self._request
        if repair.directive is not None:
            said = repair.recorded, repair.directive
            self._work = self._request.continued(
                *said, temperature=repair.temperature, output_tokens=repair.output_tokens
            )
            added = self._request.continued_tokens(*said, self.spec.chars_per_token)
            demand = structs.replace(
                demand,
                input_tokens=demand.input_tokens + added.estimate,
                input_tokens_floor=demand.input_tokens_floor + added.floor,
                output_tokens=repair.output_tokens,
            )
        if repair.avoids_tried:
            try:
                return await self._reenter(demand, avoids_tried=True)
            except PoolFault as refusal:
                if refusal.code is not Code.NO_PROVIDER:
                    raise
        return await self._reenter(demand, avoids_tried=False)

    async def _reenter(self, demand: Demand, *, avoids_tried: bool) -> ResponseHead | None:
        if self._last_lease is None:
            return await self._begin(demand)
        place = self._service.dispatcher.place_of(
            self._last_lease, self._waited_s, avoids_tried=avoids_tried
        )
        return await self._begin(demand, place)

    async def _attempt_on(
        self,
        node_id: NodeId,
        adapter: AdapterKey,
        target: Target,
        provider_id: ProviderId | None,
        path: Path,
    ) -> ResponseHead | None:
        group = None if provider_id is None else self.spec.model
        self._gate.begin(
            self._options.filters_at(model_group=group, target=target, provider_id=provider_id)
        )
        return await super()._attempt_on(node_id, adapter, target, provider_id, path)

    def _begin_reading(self, head: ResponseHead | None) -> None:
        attempt = self._attempt
        assert attempt is not None
        is_first = not self._gate.has_released
        if not is_first:
            self._stitch.go_on()
        if head is None:
            runner = self._request.gated_run_reader(is_first=is_first)
            self._reader, self._source = runner, _Source(runner, attempt, attempt.next_event)
        else:
            assert self._target is not None
            reader = self._request.gated_reader(
                head.status, pairs(head), self._target, is_first=is_first
            )
            self._reader, self._source = reader, _Source(reader, attempt, attempt.next_chunk)
        self._readers.append(self._reader)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, error: BaseException | None) -> None:
        self._gate_report = self._gate.report()
        super()._finish(error)

    def _usage(self) -> Tokens:
        """Of all attempts together: each was paid for."""
        if len(self._readers) < 2:
            return super()._usage()
        used = [tokens_of(reader, self.spec) for reader in self._readers]
        known = [one for one in used if one.source != "none"]
        if not known:
            return super()._usage()
        counted = [one.input for one in known if one.input is not None]
        produced = [one.output for one in known if one.output is not None]
        is_reported = all(one.source == "reported" for one in known)
        return Tokens(
            sum(counted) if counted else None,
            sum(produced) if produced else None,
            "reported" if is_reported else "estimated",
        )
