"""The stream evidence gate's options, judged whether or not it is enabled (CFG-19)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_args

from iop_edge.config.document import FilterDocument, GateDocument, SelectorDocument
from iop_edge.config.effective import (
    GateFilter,
    GateFilterName,
    GateSelector,
    StreamEvidenceGate,
)
from iop_edge.config.report import code_spans
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.identity import check_distinct
from iop_edge.config.yaml12.places import Steps
from iop_shared.profiles import CAPABILITIES

DIMENSIONS = ("environment", "model_group", "model", "provider")
"""From the least specific to the most."""

MAX_SNAPSHOT_BYTES = StreamEvidenceGate().max_ingress_snapshot_bytes

_STEPS: Steps = ("openai", "stream_evidence_gate")

KnownNames = Mapping[str, Collection[str]]
"""What a selector can match, by dimension; a dimension that is missing is not judged."""


def resolve_gate(
    document: GateDocument | None, known: KnownNames, context: Context
) -> StreamEvidenceGate:
    """The effective gate."""
    if document is None:
        return StreamEvidenceGate()
    default = StreamEvidenceGate()
    most = document.max_request_fault_recovery
    most = default.max_request_fault_recovery if most is None else most
    per_strategy = document.max_strategy_fault_recovery
    if per_strategy is not None and per_strategy > most:
        context.report.error(
            "recovery_bounds",
            f"max_strategy_fault_recovery {per_strategy} is over max_request_fault_recovery {most}",
            (*_STEPS, "max_strategy_fault_recovery"),
        )
    filters = document.filters or []
    check_distinct(
        lambda: ((one.filter, (*_STEPS, "filters", n, "filter")) for n, one in enumerate(filters)),
        "filter",
        context.report,
    )
    return fill(
        StreamEvidenceGate,
        document,
        max_request_fault_recovery=most,
        max_strategy_fault_recovery=most if per_strategy is None else per_strategy,
        max_ingress_snapshot_bytes=document.max_ingress_snapshot_bytes or MAX_SNAPSHOT_BYTES,
        filters=tuple(
            _filter(one, (*_STEPS, "filters", number), known, context)
            for number, one in enumerate(filters)
        ),
    )


def _filter(
    document: FilterDocument, steps: Steps, known: KnownNames, context: Context
) -> GateFilter:
    capability = document.capability or f"output.{document.filter}"
    if document.capability is not None and document.filter:
        allowed = (*CAPABILITIES, *(f"output.{one}" for one in get_args(GateFilterName)))
        if capability not in allowed:
            context.report.error(
                "not_one_of",
                f"this must be {code_spans(allowed)}{context.likely.hint(capability, allowed)}",
                (*steps, "capability"),
            )
    selectors = [
        _selector(written, (*steps, "selectors", number), known, context)
        for number, written in enumerate(document.selectors or ())
    ]
    _check_ties(document, steps, context)
    return fill(GateFilter, document, capability=capability, selectors=tuple(selectors))


def _conditions(document: SelectorDocument) -> tuple[tuple[str, str], ...]:
    """The dimensions that a selector names, with their values."""
    return tuple(
        (dimension, value)
        for dimension in DIMENSIONS
        if (value := getattr(document, dimension)) is not None
    )


def _selector(
    document: SelectorDocument, steps: Steps, known: KnownNames, context: Context
) -> GateSelector:
    conditions = _conditions(document)
    if not conditions and not _is_told(steps, context):
        context.report.error(
            "bad_selector", f"a selector names at least one of {code_spans(DIMENSIONS)}", steps
        )
    if document.enabled is None and document.enforcement is None:
        context.report.error(
            "bad_selector", "a selector adjusts `enabled` or `enforcement`, or both", steps
        )
    for dimension, value in conditions:
        if dimension in known and value not in known[dimension]:
            context.report.warning(
                "selector_matches_nothing",
                f"no {dimension.replace('_', ' ')} has this name"
                f"{context.likely.hint(value, known[dimension])}",
                (*steps, dimension),
            )
    return fill(GateSelector, document)


def _is_told(steps: Steps, context: Context) -> bool:
    """Whether a condition was written that cannot be used, of which enough was said."""
    report = context.report
    names = (*DIMENSIONS, *SelectorDocument.REFUSED)
    return any(report.places.mark_of(report.root, (*steps, name)) is not None for name in names)


def _check_ties(document: FilterDocument, steps: Steps, context: Context) -> None:
    """Two selectors that are equally specific and can match the same target name the same values,
    and must not say different things."""
    outcomes: dict[tuple[tuple[str, str], ...], tuple[object, object]] = {}
    for number, selector in enumerate(document.selectors or ()):
        conditions = _conditions(selector)
        outcome = (selector.enabled, selector.enforcement)
        if conditions and outcomes.setdefault(conditions, outcome) != outcome:
            context.report.error(
                "selector_tie",
                "an earlier selector matches the same and says something else; keep one",
                (*steps, "selectors", number),
            )
