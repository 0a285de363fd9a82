"""What filters and selectors come to at one target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.effective import GateFilter, GateSelector
from iop_edge.gate.filters import FilterAt, admission_needs, filters_at
from iop_shared.ids import ModelId, ProviderId, Target

GROUP, TARGET, PROVIDER = ModelId("small"), Target("small-7b"), ProviderId("left")


def guard(*selectors: GateSelector, **fields: object) -> GateFilter:
    given = {"filter": "repeat_guard", "capability": "output.repeat_guard", **fields}
    return GateFilter(selectors=selectors, **given)


def at(
    *filters: GateFilter,
    group: ModelId | None = GROUP,
    target: Target = TARGET,
    provider: ProviderId | None = PROVIDER,
) -> tuple[FilterAt, ...]:
    return filters_at(filters, "dev", group, target, provider)


@pytest.mark.req("CFG-19", "GATE-3")
def test_a_filter_without_selectors_is_everywhere_what_it_is():
    [found] = at(guard(hold_evidence_runes=20, timeout_ms=1500, enforcement="observe_only"))
    assert found == FilterAt(
        name="repeat_guard",
        is_enabled=True,
        enforcement="observe_only",
        capability="output.repeat_guard",
        hold_evidence_runes=20,
        timeout_s=1.5,
    )


@pytest.mark.req("GATE-3")
def test_a_filter_that_is_not_listed_does_not_exist():
    assert at() == ()
    assert [one.name for one in at(guard())] == ["repeat_guard"]


@pytest.mark.req("GATE-3")
def test_a_filter_that_is_disabled_at_base_is_enabled_by_a_narrower_selector_and_only_there():
    listed = guard(GateSelector(provider=PROVIDER, enabled=True), enabled=False)
    assert [one.is_blocking for one in at(listed)] == [True]
    [elsewhere] = at(listed, provider=ProviderId("right"))
    assert (elsewhere.name, elsewhere.is_enabled) == ("repeat_guard", False)


@pytest.mark.req("CFG-19")
def test_enablement_and_enforcement_are_adjusted_each_by_its_own_most_specific_selector():
    listed = guard(
        GateSelector(provider=PROVIDER, enforcement="observe_only"),
        GateSelector(environment="dev", enabled=True, enforcement="blocking"),
        enabled=False,
    )
    [found] = at(listed)
    assert (found.is_enabled, found.enforcement, found.is_blocking) == (True, "observe_only", False)


@pytest.mark.req("CFG-19")
def test_a_selector_matches_only_where_everything_that_it_names_does():
    listed = guard(GateSelector(model_group=GROUP, provider=PROVIDER, enabled=False))
    assert [one.is_enabled for one in at(listed)] == [False]
    assert [one.is_enabled for one in at(listed, group=ModelId("large"))] == [True]


@pytest.mark.req("CFG-19", "CFG-28")
def test_of_a_direct_route_no_selector_matches_that_names_a_group_or_a_provider():
    listed = guard(
        GateSelector(model_group=GROUP, enabled=False),
        GateSelector(provider=PROVIDER, enabled=False),
        GateSelector(model=TARGET, enforcement="observe_only"),
    )
    [found] = at(listed, group=None, provider=None)
    assert (found.is_enabled, found.enforcement) == (True, "observe_only")


@pytest.mark.req("CFG-27")
def test_a_provider_called_like_a_model_is_not_meant_by_a_selector_for_the_model():
    listed = guard(GateSelector(model=Target("left"), enabled=False))
    assert [one.is_enabled for one in at(listed)] == [True]


@pytest.mark.req("GATE-4")
def test_only_repeat_guard_looks_for_something_and_the_others_are_registered_all_the_same():
    listed = [
        GateFilter(filter=name, capability=f"output.{name}")
        for name in ("repeat_guard", "schema_gate", "provider_error")
    ]
    assert [(one.name, one.has_matcher, one.is_blocking) for one in at(*listed)] == [
        ("repeat_guard", True, True),
        ("schema_gate", False, True),
        ("provider_error", False, True),
    ]


@pytest.mark.req("GATE-3", "GATE-6")
def test_only_enabled_and_blocking_filters_ask_anything_of_a_provider():
    assert admission_needs(at(guard(capability="tool_calling"))) == {"tool_calling"}
    assert admission_needs(at(guard(capability="tool_calling", enabled=False))) == frozenset()
    observing = guard(capability="tool_calling", enforcement="observe_only")
    assert admission_needs(at(observing)) == frozenset()


@pytest.mark.req("GATE-6")
@pytest.mark.parametrize("of", ["repeat_guard", "schema_gate", "provider_error"])
def test_whoever_can_be_read_at_all_has_every_output_capability(of: str):
    assert admission_needs(at(guard(capability=f"output.{of}"))) == frozenset()


DIMENSIONS = ("environment", "model_group", "model", "provider")
names = st.sampled_from(["a", "b"])


@st.composite
def selectors(draw: st.DrawFn) -> tuple[GateSelector, ...]:
    """Any that a valid file may hold: no two name the same values."""
    conditions = draw(
        st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "environment": st.sampled_from(["dev", "dev-corp"]),
                    "model_group": names,
                    "model": names,
                    "provider": names,
                },
            ).filter(bool),
            unique_by=lambda named: tuple(sorted(named.items())),
            max_size=8,
        )
    )
    return tuple(
        GateSelector(
            **named,
            enabled=draw(st.sampled_from([None, True, False])),
            enforcement=draw(st.sampled_from([None, "blocking", "observe_only"])),
        )
        for named in conditions
    )


def as_written(base: object, selectors: tuple[GateSelector, ...], here: dict, what: str) -> object:
    """The rule word by word: of those that match and adjust it, nobody is more specific."""

    def rank(selector: GateSelector) -> int:
        return sum(10**n for n, one in enumerate(DIMENSIONS) if getattr(selector, one) is not None)

    adjusting = [
        selector
        for selector in selectors
        if getattr(selector, what) is not None
        and all(getattr(selector, one) in (None, here[one]) for one in DIMENSIONS)
    ]
    return getattr(max(adjusting, key=rank), what) if adjusting else base


@pytest.mark.req("CFG-19")
@settings(deadline=None)
@given(
    written=selectors(),
    enabled=st.booleans(),
    enforcement=st.sampled_from(["blocking", "observe_only"]),
    environment=st.sampled_from(["dev", "dev-corp"]),
    group=st.sampled_from(["a", "b", None]),
    model=names,
    provider=st.sampled_from(["a", "b", None]),
)
def test_the_most_specific_selector_wins_wherever_it_stands(
    written: tuple[GateSelector, ...],
    enabled: bool,
    enforcement: str,
    environment: str,
    group: str | None,
    model: str,
    provider: str | None,
):
    here = dict(zip(DIMENSIONS, (environment, group, model, provider), strict=True))
    listed = guard(*written, enabled=enabled, enforcement=enforcement)
    [found] = filters_at((listed,), environment, group, model, provider)
    assert found.is_enabled == as_written(enabled, written, here, "enabled")
    assert found.enforcement == as_written(enforcement, written, here, "enforcement")
