"""Why a demand is refused, in words and numbers. Decides from a demand and a slate alone."""

from __future__ import annotations

from iop_edge.pool.demand import Demand
from iop_edge.pool.group import Slate
from iop_shared.errors import Code

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
    needs = sorted(demand.capabilities | {demand.operation or "chat"})
    return Code.UNSUPPORTED_BY_MODEL, (
        f"no provider of {model.id!r} can serve such a request; it needs {', '.join(needs)}"
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
