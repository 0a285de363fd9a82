"""What one run asks of the pool. Frozen when the run starts."""

from __future__ import annotations

from msgspec import Struct

from iop_shared.ids import ModelId
from iop_shared.profiles import Capability, Operation


class Demand(Struct, frozen=True, kw_only=True):
    """What admission judges.

    `operation` is the caller's (POOL-14); None for SubmitRun, which has no passthrough.
    `input_tokens` is the estimate that decides the context class; `input_tokens_floor` is the
    lower bound that decides refusals (POOL-4). `output_tokens` is what the caller asked for, None
    where it asked for nothing. `capabilities` are needed beside the operation's own.
    """

    model: ModelId
    operation: Operation | None
    capabilities: frozenset[Capability] = frozenset()
    input_tokens: int = 0
    input_tokens_floor: int = 0
    output_tokens: int | None = None
