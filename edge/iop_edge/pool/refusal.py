"""Why a demand is refused, in words and numbers. Decides from a demand and what it met alone."""

from __future__ import annotations

from collections.abc import Iterable

from iop_edge.pool.catalog import DirectTarget
from iop_edge.pool.demand import Demand
from iop_edge.pool.group import Slate
from iop_shared.errors import Code
from iop_shared.profiles import Capability

Why = tuple[Code, str]
"""A code, and a sentence with the numbers."""


def never(demand: Demand, slate: Slate, threshold_tokens: int) -> Why | None:
    """Why no provider of the model could ever serve this (POOL-4, POOL-14); None where one could.

    Counts every provider of the model, enabled and connected or not. The context window is
    compared with the lower bound of the input and with the output that the caller asked for.
    """
    model = slate.group.spec
    window = model.context_window_tokens
    output = demand.output_tokens or 0
    if window is not None and demand.input_tokens_floor + output > window:
        asked = f" and asks for {output} of output" if output else ""
        return Code.CONTEXT_LENGTH_EXCEEDED, (
            f"the request has at least {demand.input_tokens_floor} tokens of input{asked};"
            f" the context window of {model.id!r} is {window} tokens"
        )
    if slate.line is not None or not model.candidates:
        return None
    if any(reason == "takes_no_long_request" for reason, _ in slate.roster.unfit_counts):
        return Code.CONTEXT_LENGTH_EXCEEDED, (
            f"the request has about {demand.input_tokens} tokens of input, which makes it a long"
            f" one (from {threshold_tokens}), and no provider of {model.id!r} takes long requests"
        )
    needs = _needs(demand, slate.roster.lacking_for_gate)
    return Code.UNSUPPORTED_BY_MODEL, (
        f"no provider of {model.id!r} can serve such a request; it needs {needs}"
    )


def never_direct(demand: Demand, target: DirectTarget) -> Why | None:
    """The same of a route or the fallback (CFG-28): None where it can serve this. It has no
    context window."""
    lacking: frozenset[Capability] = frozenset()
    if target.abilities.path_for(demand.operation, demand.capabilities) is not None:
        lacking = target.abilities.lacks_for_gate(demand.operation, target.gate_needs)
        if not lacking:
            return None
    return Code.UNSUPPORTED_BY_MODEL, (
        f"what {demand.model!r} leads to cannot serve such a request;"
        f" it needs {_needs(demand, lacking)}"
    )


def no_provider(demand: Demand, slate: Slate) -> Why:
    """Why nobody can serve this now, by count of what stands in the way."""
    if slate.line is None:
        return Code.NO_PROVIDER, f"no provider of {demand.model!r} is left that could serve this"
    absent = slate.line.absent
    counts = (
        (absent.disabled, "disabled"),
        (absent.not_connected, "not connected"),
        (absent.unavailable, "unavailable"),
        (slate.roster.able_count - absent.total, "tried already"),
    )
    found = ", ".join(f"{count} {what}" for count, what in counts if count)
    return Code.NO_PROVIDER, f"no provider of {demand.model!r} can serve this now: {found}"


def _needs(demand: Demand, lacking_for_gate: Iterable[Capability]) -> str:
    needs = ", ".join(sorted(demand.capabilities | {demand.operation or "chat"}))
    for_gate = ", ".join(sorted(lacking_for_gate))
    return f"{needs}, and for the stream evidence gate {for_gate}" if for_gate else needs
