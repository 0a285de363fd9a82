"""What a run's record says of the gate: counts, offsets, fingerprints and reasons, never text."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from iop_edge.config.effective import GateEnforcement, GateFilterName
from iop_edge.gate.evidence import Channel

Strategy = Literal["exact_replay", "continuation_repair", "schema_repair"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

Cause = Literal["node_lost", "upstream_closed", "repetition", "tool_arguments"]
"""What a recovery answers to (GATE-7)."""

Refusal = Literal[
    "request_budget_spent",
    "strategy_budget_spent",
    "context_window_unknown",
    "context_window_exceeded",
    "recorder_full",
    "tool_call_released",
    "other_output_released",
    "no_provider",
    "provider_refused",
]
"""Why a recovery that had a strategy was not begun."""

Outcome = Literal["recovered", "failed", "refused"]
"""Of one recovery: its attempt gave an answer to the end; it did not; it was never begun."""

Unrepaired = Literal["several_choices", "snapshot_too_large"]
"""Why a run goes past the gate from its start."""


class Match(Struct, frozen=True, kw_only=True):
    """One thing that a filter found. Offsets and lengths are in characters of the channel."""

    filter: GateFilterName
    enforcement: GateEnforcement
    attempt: int
    channel: Channel
    offset: int
    period: int
    count: int
    fingerprint: str


class FilterReport(Struct, frozen=True, kw_only=True):
    """One filter over a whole run. `seen` counts what it looked at: characters for `repeat_guard`,
    tool calls for `schema_gate`, faults for `provider_error`."""

    filter: GateFilterName
    enforcement: GateEnforcement
    seen: int
    matches: int


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """One recovery: what it answered to, after how many released characters, and what became of
    it. `attempt` is the one that it followed."""

    strategy: Strategy
    cause: Cause
    attempt: int
    released_chars: int
    trimmed_chars: int = 0
    outcome: Outcome
    refusal: Refusal | None = None


class GateReport(Struct, frozen=True, kw_only=True):
    """The gate's part of a run's record."""

    unrepaired: Unrepaired | None = None
    filters: tuple[FilterReport, ...] = ()
    matches: tuple[Match, ...] = ()
    recoveries: tuple[RecoveryReport, ...] = ()
    longest_hold_chars: int = 0
    released_chars: int = 0

    @property
    def is_repaired(self) -> bool:
        return any(one.outcome == "recovered" for one in self.recoveries)
