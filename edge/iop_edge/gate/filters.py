"""The registry of filters: what each one is at one actual target.

Decides what the config's filters and selectors come to for one served model of one provider, and
what that asks of a provider before a request is sent there. It must never know a stream: what a
filter finds in one, and what follows from it, is decided elsewhere.

Only what is listed exists; a filter that is disabled is listed all the same, so that a narrower
selector can enable it (GATE-3).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from msgspec import Struct

from iop_edge.config.effective import (
    GateEnforcement,
    GateEnvironment,
    GateFilter,
    GateFilterName,
    GateSelector,
)
from iop_shared.ids import ModelId, ProviderId, Target
from iop_shared.profiles import CAPABILITIES, Capability, Operation

GATED_OPERATIONS: frozenset[Operation] = frozenset({"chat_completions", "responses", "messages"})
"""The callers' operations that the gate owns (GATE-1). SubmitRun is none, nor is counting."""

MATCHERS: frozenset[GateFilterName] = frozenset({"repeat_guard"})
"""The filters that look for something in a stream. The others are lifecycle foundations: they
are resolved, take part in admission and can be observed, and match nothing (GATE-4)."""

_PROFILE_CAPABILITIES = frozenset[str](CAPABILITIES)


class FilterAt(Struct, frozen=True):
    """One filter at one actual target.

    `hold_evidence_runes` counts code points, `timeout_s` seconds.
    """

    name: GateFilterName
    is_enabled: bool
    enforcement: GateEnforcement
    capability: str
    hold_evidence_runes: int
    timeout_s: float

    @property
    def is_blocking(self) -> bool:
        """Whether it may act here: enabled, and not there to observe alone (GATE-3)."""
        return self.is_enabled and self.enforcement == "blocking"

    @property
    def has_matcher(self) -> bool:
        return self.name in MATCHERS


@lru_cache(maxsize=4096)
def filters_at(
    filters: tuple[GateFilter, ...],
    environment: GateEnvironment,
    model_group: ModelId | None,
    target: Target,
    provider_id: ProviderId | None,
) -> tuple[FilterAt, ...]:
    """Every listed filter as it is there, in the order of the config.

    `enabled` and `enforcement` are each taken from the most specific selector that matches and
    adjusts it, else from the filter itself (CFG-19). A direct route has no model group and no
    provider: a selector that names one does not match there (CFG-28).
    """
    here = (environment, model_group, target, provider_id)
    return tuple(_at(one, here) for one in filters)


def admission_needs(filters: Iterable[FilterAt]) -> frozenset[Capability]:
    """What these filters ask of a provider that is to serve a gated operation (GATE-3).

    `output.<filter>` is not among it: whoever can serve a gated operation at all is reached by a
    driver or a rendered chat, whose stream the edge can decode, and that is all it means (GATE-6).
    """
    return frozenset(
        cast("Capability", one.capability)
        for one in filters
        if one.is_blocking and one.capability in _PROFILE_CAPABILITIES
    )


_Here = tuple[GateEnvironment, ModelId | None, Target, ProviderId | None]


def _at(base: GateFilter, here: _Here) -> FilterAt:
    is_enabled, enforcement = base.enabled, base.enforcement
    # From the least specific to the most, so that the last word is the most specific one's.
    for selector in sorted(base.selectors, key=lambda one: one.specificity):
        if _matches(selector, here):
            is_enabled = is_enabled if selector.enabled is None else selector.enabled
            enforcement = selector.enforcement or enforcement
    return FilterAt(
        name=base.filter,
        is_enabled=is_enabled,
        enforcement=enforcement,
        capability=base.capability,
        hold_evidence_runes=base.hold_evidence_runes,
        timeout_s=base.timeout_ms / 1000,
    )


def _matches(selector: GateSelector, here: _Here) -> bool:
    named = (selector.environment, selector.model_group, selector.model, selector.provider)
    return all(want is None or want == have for want, have in zip(named, here, strict=True))
