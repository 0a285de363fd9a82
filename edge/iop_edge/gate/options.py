"""What a request freezes of the gate when it starts (GATE-2, REF-11).

Decides nothing. A request that began under these options ends under them, whatever is loaded in
the meantime; it must never look into the running config for another value.
"""

from __future__ import annotations

from msgspec import Struct

from iop_edge.config.effective import GateEnvironment, GateFilter, StreamEvidenceGate
from iop_edge.gate.filters import FilterAt, filters_at
from iop_shared.ids import ModelId, ProviderId, Target


class GateOptions(Struct, frozen=True, kw_only=True):
    """The gate for one request.

    `max_request_recoveries` bounds the recoveries of all strategies together,
    `max_strategy_recoveries` those of each. `context_window_tokens` is the model group's, and
    bounds what a continuation may be rebuilt to; None where it is not known (GATE-5).
    """

    max_request_recoveries: int
    max_strategy_recoveries: int
    max_ingress_snapshot_bytes: int
    environment: GateEnvironment
    filters: tuple[GateFilter, ...]
    context_window_tokens: int | None

    @classmethod
    def freeze(
        cls, gate: StreamEvidenceGate, context_window_tokens: int | None
    ) -> GateOptions | None:
        """The options of a request that starts now; None where the gate is disabled."""
        if not gate.enabled:
            return None
        return cls(
            max_request_recoveries=gate.max_request_fault_recovery,
            max_strategy_recoveries=gate.max_strategy_fault_recovery,
            max_ingress_snapshot_bytes=gate.max_ingress_snapshot_bytes,
            environment=gate.environment,
            filters=gate.filters,
            context_window_tokens=context_window_tokens,
        )

    def filters_at(
        self, *, model_group: ModelId | None, target: Target, provider_id: ProviderId | None
    ) -> tuple[FilterAt, ...]:
        """Every listed filter as it is at the target of one attempt; looked up, after the first
        time. Of a direct route, group and provider are None."""
        return filters_at(self.filters, self.environment, model_group, target, provider_id)
