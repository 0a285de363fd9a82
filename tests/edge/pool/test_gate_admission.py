"""Admission by what the stream evidence gate needs of a provider."""

from __future__ import annotations

import pytest

from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    GateFilter,
    GateSelector,
    ModelGroup,
    ModelRoute,
    Node,
    OpenAI,
    Provider,
    SecretRef,
    StreamEvidenceGate,
)
from iop_edge.pool.catalog import Catalog
from iop_edge.pool.effects import Granted, Queued, Refused
from iop_edge.pool.pool import Pool
from iop_edge.pool.refusal import never_direct
from iop_shared.errors import Code
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, RouteId, RunId, Target
from iop_shared.profiles import Capability, Operation, ProtocolProfile
from tests.edge.pool.rig import demand, policy

TOOLS = GateFilter(filter="repeat_guard", capability="tool_calling")
"""Wants of a provider what only one of the two has."""


def adapter(key: str, *capabilities: Capability) -> Adapter:
    profile = ProtocolProfile(
        id=key,
        driver="openai_chat",
        operation_urls={"chat_completions": "http://up/chat", "count_tokens": "http://up/count"},
        capabilities=frozenset({"chat", "count_tokens", *capabilities}),
        model_mapping={},
        extensions={},
    )
    return Adapter(key=AdapterKey(key), type="openai_compat", base_url="http://up", profile=profile)


def provider(name: str, adapter_key: str | None, *, enabled: bool = True) -> Provider:
    return Provider(
        id=ProviderId(name),
        type="vllm",
        category="api",
        adapter=None if adapter_key is None else AdapterKey(adapter_key),
        enabled=enabled,
        capacity=1,
        models=(Target("t"),),
    )


def config(*filters: GateFilter, enabled: bool = True, **openai: object) -> EffectiveConfig:
    """Model `m`: provider `able` has tool calling, provider `plain` has not. Model `p`: `plain`
    alone. A route `r` and the fallback lead to the adapter without it."""
    target = Target("served")
    return EffectiveConfig(
        nodes=(
            Node(
                id=NodeId("n"),
                token=SecretRef(env="T"),
                adapters=(adapter("with", "tool_calling"), adapter("without")),
                providers=(
                    provider("able", "with"),
                    provider("plain", "without"),
                    provider("unknown", None, enabled=False),
                ),
            ),
        ),
        models=tuple(
            ModelGroup(id=ModelId(name), providers={ProviderId(one): target for one in providers})
            for name, providers in (
                ("m", ("able", "plain")),
                ("p", ("plain",)),
                ("u", ("unknown",)),
            )
        ),
        openai=OpenAI(
            enabled=True,
            adapter=AdapterKey("without"),
            target=target,
            model_routes=(
                ModelRoute(
                    id=RouteId("r"),
                    model=ModelId("r"),
                    adapter=AdapterKey("without"),
                    target=target,
                    node=NodeId("n"),
                ),
            ),
            stream_evidence_gate=StreamEvidenceGate(enabled=enabled, filters=filters),
        ),
    )


def pool_of(given: EffectiveConfig) -> Pool:
    pool = Pool(Catalog.from_config(given), policy())
    pool.node_connected(NodeId("n"), 0.0)
    return pool


def served_by(
    given: EffectiveConfig, operation: Operation | None = "chat_completions"
) -> list[str]:
    """The providers that two requests for `m` at once are granted."""
    pool = pool_of(given)
    granted = [pool.admit(RunId(run), demand("m", operation), 0.0)[-1] for run in ("r1", "r2")]
    return [one.lease.resource.provider_id for one in granted if isinstance(one, Granted)]


@pytest.mark.req("GATE-3", "GATE-6")
def test_a_blocking_filter_keeps_a_request_from_a_provider_without_its_capability():
    pool = pool_of(config(TOOLS))
    [first] = pool.admit(RunId("r1"), demand(), 0.0)
    [second] = pool.admit(RunId("r2"), demand(), 0.0)
    assert isinstance(first, Granted)
    assert first.lease.resource.provider_id == "able"
    assert isinstance(second, Queued)


@pytest.mark.req("GATE-1", "GATE-3")
@pytest.mark.parametrize(
    "given",
    [
        config(),
        config(TOOLS, enabled=False),
        config(GateFilter(filter="repeat_guard", capability="tool_calling", enabled=False)),
        config(
            GateFilter(filter="repeat_guard", capability="tool_calling", enforcement="observe_only")
        ),
        config(GateFilter(filter="repeat_guard", capability="output.repeat_guard")),
        config(GateFilter(filter="schema_gate", capability="output.provider_error")),
    ],
    ids=["none", "gate off", "filter off", "observing", "output of its own", "output of another"],
)
def test_what_is_off_or_observes_or_wants_a_readable_stream_keeps_nobody_out(
    given: EffectiveConfig,
):
    assert served_by(given) == ["able", "plain"]


@pytest.mark.req("GATE-1", "GATE-3")
@pytest.mark.parametrize("operation", [None, "count_tokens"])
def test_what_is_not_the_gates_is_admitted_as_without_it(operation: Operation | None):
    assert served_by(config(TOOLS), operation) == ["able", "plain"]


@pytest.mark.req("GATE-1", "GATE-3")
@pytest.mark.parametrize("operation", ["chat_completions", "responses", "messages"])
def test_the_gates_operations_are_the_three_that_answer_with_text(operation: Operation):
    assert served_by(config(TOOLS), operation) == ["able"]


@pytest.mark.req("GATE-3", "CFG-19")
def test_what_counts_is_the_filter_at_the_candidates_own_provider_and_model():
    only_there = GateFilter(
        filter="schema_gate",
        capability="tool_calling",
        enabled=False,
        selectors=(GateSelector(provider=ProviderId("plain"), enabled=True),),
    )
    assert served_by(config(only_there)) == ["able"]
    spared = GateFilter(
        filter="schema_gate",
        capability="tool_calling",
        selectors=(
            GateSelector(model=Target("served"), enabled=True),
            GateSelector(provider=ProviderId("plain"), enforcement="observe_only"),
        ),
    )
    assert served_by(config(spared)) == ["able", "plain"]
    of_another_group = GateFilter(
        filter="schema_gate",
        capability="tool_calling",
        enabled=False,
        selectors=(GateSelector(model_group=ModelId("p"), enabled=True),),
    )
    assert served_by(config(of_another_group)) == ["able", "plain"]


@pytest.mark.req("GATE-3", "POOL-14")
def test_where_no_provider_has_it_the_refusal_names_the_capability():
    [refused] = pool_of(config(TOOLS)).admit(RunId("r"), demand("p"), 0.0)
    assert isinstance(refused, Refused)
    assert refused.code is Code.UNSUPPORTED_BY_MODEL
    assert refused.message == (
        "no provider of 'p' can serve such a request; it needs chat_completions,"
        " and for the stream evidence gate tool_calling"
    )
    [seen] = refused.decision.explain().others
    assert (seen.provider_id, seen.reason) == ("plain", "lacks_gate_capability")


@pytest.mark.req("GATE-3", "CFG-12")
def test_a_disabled_provider_whose_adapter_is_unknown_might_have_it():
    [refused] = pool_of(config(TOOLS)).admit(RunId("r"), demand("u"), 0.0)
    assert isinstance(refused, Refused)
    assert refused.code is Code.NO_PROVIDER


@pytest.mark.req("GATE-3", "CFG-28")
@pytest.mark.parametrize("of", ["route", "fallback"])
def test_a_route_and_the_fallback_are_judged_by_the_same_rule(of: str):
    def why(given: EffectiveConfig, operation: Operation = "chat_completions"):
        catalog = Catalog.from_config(given)
        target = catalog.fallback if of == "fallback" else catalog.routes[ModelId("r")]
        assert target is not None
        return never_direct(demand("r", operation), target)

    refused = why(config(TOOLS))
    assert refused is not None
    code, message = refused
    assert code is Code.UNSUPPORTED_BY_MODEL
    assert message == (
        "what 'r' leads to cannot serve such a request; it needs chat_completions,"
        " and for the stream evidence gate tool_calling"
    )
    assert why(config(TOOLS), "count_tokens") is None
    assert why(config(TOOLS, enabled=False)) is None
    of_a_provider = GateFilter(
        filter="repeat_guard",
        capability="tool_calling",
        enabled=False,
        selectors=(
            GateSelector(provider=ProviderId("plain"), enabled=True),
            GateSelector(model_group=ModelId("r"), enabled=True),
        ),
    )
    assert why(config(of_a_provider)) is None
    of_the_model = GateFilter(
        filter="repeat_guard",
        capability="tool_calling",
        enabled=False,
        selectors=(GateSelector(model=Target("served"), enabled=True),),
    )
    assert why(config(of_the_model)) is not None


@pytest.mark.req("CFG-28", "POOL-14")
def test_a_direct_target_that_cannot_run_it_at_all_is_refused_without_a_word_of_the_gate():
    target = Catalog.from_config(config(TOOLS)).fallback
    assert target is not None
    asked = demand("r", capabilities=("streaming",))
    assert never_direct(asked, target) == (
        Code.UNSUPPORTED_BY_MODEL,
        "what 'r' leads to cannot serve such a request; it needs chat_completions, streaming",
    )
