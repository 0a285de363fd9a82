"""The gate of one run: evidence in; out comes what goes on to the caller, and what is tried next.

A repetition, tool arguments that do not fit, a lost node and a cut upstream each have one strategy
(GATE-7), as long as the budgets last. What is held then is dropped: a repair goes on from what the
caller has read, which the recorder holds, and from nothing else (GATE-5).

A lease, a request body and a node are never its business. Budgets, filters and the context window
are those of the request's start (REF-11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from iop_edge.gate.budget import Budget, Request, Room, room_for
from iop_edge.gate.evidence import Piece, Recorded
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.ledger import GateLedger
from iop_edge.gate.options import GateOptions
from iop_edge.gate.reading import Reading
from iop_edge.gate.recorder import Recorder
from iop_edge.gate.report import Cause, GateReport, Refusal, Strategy
from iop_edge.gate.tool_calls import repair_directive
from iop_shared.errors import Code, Fault

CONTINUE = (
    "Your previous answer was interrupted. Continue it from exactly where it stops. Do not repeat "
    "any of it, do not comment on the interruption, and do not start again."
)
"""The one directive of a continuation."""

_CUT: Mapping[Code, Cause] = {
    Code.NODE_LOST: "node_lost",
    Code.UPSTREAM_CLOSED: "upstream_closed",
}
"""Faults of a transport that a repair answers. No other fault is ever tried again (GATE-4)."""


class Repair(Struct, frozen=True):
    """Begin another attempt. `directive` is None for the same request once more; otherwise it is
    the request with what was said and the directive, and `temperature` unless the caller gave one.

    `avoids_tried`: on another provider, where there is one.
    """

    strategy: Strategy
    recorded: Recorded
    directive: str | None = None
    temperature: float | None = None
    output_tokens: int | None = None
    avoids_tried: bool = False


class Fail(Struct, frozen=True):
    """The run ends with this fault."""

    fault: Fault


Effect = Piece | Repair | Fail
"""A piece is released. After a repair or a failure nothing more of the attempt is."""


class Gate:
    """See the module. `key` makes fingerprints of one process comparable, and of no other.
    `request` tells what was asked, and is called where it is to be rebuilt.

    Call `begin` for each attempt, then `take` for what arrives, and `end` or `failed` once;
    `expire` at `deadline`. Times are seconds of one clock that never goes back.
    """

    def __init__(
        self,
        options: GateOptions,
        request: Callable[[], Request],
        tool_schemas: Mapping[str, bytes],
        *,
        key: bytes,
    ) -> None:
        self._options = options
        self._request = request
        self._tool_schemas = tool_schemas
        self._key = key
        self._budget = Budget(options)
        self._recorder = Recorder(options.max_ingress_snapshot_bytes)
        self._ledger = GateLedger()
        self._reading: Reading  # Of the attempt.
        self._is_over = False
        self._fault: Fault | None = None
        self._unrepaired: Sequence[Piece] = ()
        self.deadline: float | None = None
        """When `expire` is due; None while nothing is held that time lets go."""
        self.has_ended = False
        """The run's answer is complete with what has been released."""
        self.has_released = False
        """Something has gone to the caller, so that a later attempt cannot begin the answer."""

    def __repr__(self) -> str:
        return f"Gate({self._recorder!r}, recoveries={self._budget.spent})"

    def report(self) -> GateReport:
        return self._ledger.report(self._recorder.chars)

    # -- an attempt ----------------------------------------------------------------------------

    def begin(self, filters: Sequence[FilterAt]) -> None:
        """An attempt begins, on a target where the filters are these."""
        self._ledger.begin(filters)
        self._reading = self._read(filters)
        self._is_over = self.has_ended = False
        self.deadline = None

    def take(self, pieces: Sequence[Piece], now: float) -> Sequence[Effect]:
        """The next pieces of the attempt's answer, which came together."""
        if self._is_over:
            return ()
        reading = self._reading
        released = self._released(reading.take(pieces, now))
        if reading.hold.waiting or self.deadline is not None:
            self.deadline = reading.deadline
            self._ledger.held(reading.hold.chars)
        return [*released, *self._on_repetitions()] if reading.repetitions else released

    def expire(self, now: float) -> Sequence[Effect]:
        """Let go what a filter has held for as long as it may."""
        if self._is_over:
            return ()
        released = self._released(self._reading.expire(now))
        self.deadline = self._reading.deadline
        return released

    def end(self, now: float, *, has_failed: bool = False) -> Sequence[Effect]:
        """The attempt's answer is complete. Without a repair or a failure among the effects, so is
        the run's. `has_failed`: by an error that the upstream told at its end, which is passed on
        with all that came before it (GATE-7)."""
        if self._is_over:
            return ()
        reading = self._reading
        effects = self._released(reading.end(now))
        if reading.repetitions:
            stop = self._on_repetitions()
            if stop:
                return [*effects, *stop]
        self._close_attempt()
        wrong = None if has_failed else reading.verdict()
        rest = reading.rest()
        if has_failed:
            self.saw_error()
        else:
            self._ledger.answered(fits=wrong is None)
        if wrong is not None:
            fault = Fault(Code.UPSTREAM_INVALID, "the model called a tool with wrong arguments")
            step = self._step("schema_repair", "tool_arguments", fault, repair_directive(wrong))
            if step is not None:
                self._unrepaired = rest
                return [*effects, step]
        self.has_ended = True
        return [*effects, *self._released(rest)]

    def failed(self, fault: Fault) -> Sequence[Effect]:
        """The attempt ended with this fault. What it held is dropped."""
        if self._is_over:
            return ()
        self._close_attempt()
        self.saw_error()
        cause = _CUT.get(fault.code)
        is_untold_end = cause == "upstream_closed" and self._reading.has_finished
        if cause is None or is_untold_end:
            # Nothing is asked for again, so nothing that came is dropped. After a finish nothing is
            # left to be said but the end, which such an upstream does not tell (OAI-7).
            held = () if self._unrepaired else self._released(self._reading.rest())
            return [*held, *self._without_repair(fault)]
        is_unread = self._recorder.is_empty
        strategy: Strategy = "exact_replay" if is_unread else "continuation_repair"
        step = self._step(strategy, cause, fault, None if is_unread else CONTINUE)
        return self._without_repair(fault) if step is None else [step]

    def answers(self, fault: Fault) -> bool:
        """Whether there is a strategy at all for an attempt that ends so."""
        return fault.code in _CUT

    def saw_error(self) -> None:
        """An upstream answered with an error of its own, which is passed on (GATE-7)."""
        self._ledger.saw("provider_error", 1)

    def not_begun(self, refusal: Refusal) -> Sequence[Effect]:
        """The last repair was refused a provider, or by the provider that it got, before anything
        of an answer came.

        The run ends as it would have without it: with the fault that it was to mend, or, without
        a failure among the effects, with the tool calls as the model made them.
        """
        self._ledger.refused(refusal)
        assert self._fault is not None
        return self._without_repair(self._fault)

    # ------------------------------------------------------------------------------------------

    def _read(self, filters: Sequence[FilterAt]) -> Reading:
        return Reading(
            filters,
            None if self._recorder.is_empty else self._recorder.recorded(),
            self._tool_schemas,
            # Also calls of undeclared tools, and without a schema: a cut among them can be mended
            # only while the caller has not read them.
            holds_calls=not self._budget.is_spent,
            key=self._key,
        )

    def _released(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if pieces:
            self.has_released = True
            # What a schema repair was to replace cannot follow what came of the repair.
            self._unrepaired = ()
            self._recorder.add(pieces)
        return pieces

    def _without_repair(self, fault: Fault) -> Sequence[Effect]:
        """How the run ends where nothing is left to repair it with: with this fault, or with the
        tool calls that a repair was to replace, if nothing of that has been released."""
        if not self._unrepaired:
            return [Fail(fault)]
        self.has_ended = True
        return self._released(self._unrepaired)

    def _close_attempt(self) -> None:
        self._is_over = True
        self.deadline = None
        reading = self._reading
        self._ledger.saw("repeat_guard", reading.watched_chars)
        self._ledger.saw("schema_gate", reading.call_count)
        self._ledger.trimmed(reading.trimmed_chars)

    def _on_repetitions(self) -> Sequence[Effect]:
        """Something repeats: note it; and where the filter blocks, stop the attempt. Empty where
        it goes on."""
        found, self._reading.repetitions = self._reading.repetitions, []
        for one in found:
            self._ledger.repetition(one.channel, one.loop, one.offset)
        if not found[0].is_blocking:
            return ()
        self._close_attempt()
        fault = Fault(Code.UPSTREAM_INVALID, "the model repeats itself, and was not set right")
        step = self._step("continuation_repair", "repetition", fault, CONTINUE)
        return self._without_repair(fault) if step is None else [step]

    def _step(
        self, strategy: Strategy, cause: Cause, fault: Fault, directive: str | None
    ) -> Repair | None:
        """The repair of this strategy; None, and the reason on record, where there is none.

        `fault` is how the run ends where it cannot begin either."""
        recorded = self._recorder.recorded()
        refusal = self._why_not(strategy)
        room: Room | Refusal = Room(None)
        if refusal is None and directive is not None:
            window = self._options.context_window_tokens
            room = room_for(self._request(), window, recorded, directive)
            refusal = None if isinstance(room, Room) else room
        self._ledger.recovery(strategy, cause, self._recorder.chars, refusal)
        if refusal is not None or not isinstance(room, Room):
            return None
        self._budget.spend(strategy)
        self._fault = fault
        is_continuation = strategy == "continuation_repair"
        return Repair(
            strategy,
            recorded,
            directive,
            self._budget.temperature() if is_continuation else None,
            # After a finish only an upstream's end is missing (OAI-7), and no word more.
            1 if is_continuation and self._reading.has_finished else room.output_tokens,
            avoids_tried=cause in _CUT.values(),
        )

    def _why_not(self, strategy: Strategy) -> Refusal | None:
        if strategy != "exact_replay" and self._recorder.is_full:
            return "recorder_full"
        if self._recorder.has_tool_call:
            return "tool_call_released"
        if self._recorder.has_other or (strategy != "exact_replay" and self._reading.has_other):
            return "other_output_released"
        return self._budget.refusal(strategy)
