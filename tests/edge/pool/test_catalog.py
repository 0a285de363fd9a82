"""What a config says of resources, models and direct targets."""

import pytest
from msgspec.structs import replace

from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    ModelGroup,
    ModelRoute,
    Node,
    OpenAI,
    Provider,
    SecretRef,
)
from iop_edge.pool.catalog import Attribution, Catalog, DirectTarget, abilities_of
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, Resource, RouteId, Target
from iop_shared.profiles import Capability, Operation, ProtocolProfile


def profile(*capabilities: Capability, operations: tuple[Operation, ...]) -> ProtocolProfile:
    return ProtocolProfile(
        id="p",
        driver="openai_chat",
        operation_urls={operation: f"http://up/{operation}" for operation in operations},
        capabilities=frozenset(capabilities),
        model_mapping={},
        extensions={},
    )


CHAT = profile("models", "chat", "streaming", operations=("models", "chat_completions"))


def adapter(key: str = "a", kind: str = "openai_compat", **fields: object) -> Adapter:
    given = {"profile": None if kind == "ollama" else CHAT, **fields}
    return Adapter(key=AdapterKey(key), type=kind, base_url="http://up", **given)


def provider(name: str, **fields: object) -> Provider:
    given = {"adapter": AdapterKey("a"), "capacity": 4, "models": (Target("t"),), **fields}
    return Provider(id=ProviderId(name), type="vllm", category="api", **given)


def node(name: str, *providers: Provider, adapters: tuple[Adapter, ...] = ()) -> Node:
    return Node(
        id=NodeId(name),
        token=SecretRef(env="T"),
        adapters=adapters or (adapter(),),
        providers=providers,
    )


def group(name: str, *providers: str, **fields: object) -> ModelGroup:
    mapping = {ProviderId(one): Target(f"{one}-model") for one in providers}
    return ModelGroup(id=ModelId(name), providers=mapping, **fields)


def test_a_resource_is_read_with_its_slots_priority_health_and_adapter():
    config = EffectiveConfig(
        nodes=(node("n", provider("p", priority=3, health="degraded", enabled=True)),)
    )
    [spec] = Catalog.from_config(config).resources.values()
    assert spec.resource == Resource(NodeId("n"), ProviderId("p"))
    assert (spec.capacity, spec.priority, spec.health, spec.is_enabled, spec.adapter) == (
        4, 3, "degraded", True, "a",
    )  # fmt: skip


@pytest.mark.req("CFG-10", "CFG-14")
@pytest.mark.parametrize(("written", "counts"), [(None, None), (0, 0), (2, 2), (9, 4)])
def test_long_slots_have_three_meanings_and_never_exceed_the_capacity(
    written: int | None, counts: int | None
):
    config = EffectiveConfig(nodes=(node("n", provider("p", long_context_capacity=written)),))
    [spec] = Catalog.from_config(config).resources.values()
    assert spec.long_slots == counts


@pytest.mark.req("POOL-2")
def test_writing_the_same_in_another_order_gives_an_equal_catalog():
    a, b, c = provider("a"), provider("b"), provider("c")
    one = EffectiveConfig(
        nodes=(node("x", a, b), node("y", c)), models=(group("m", "a", "b", "c"), group("k", "c"))
    )
    other = EffectiveConfig(
        nodes=(node("y", c), node("x", b, a)), models=(group("k", "c"), group("m", "c", "b", "a"))
    )
    first, second = Catalog.from_config(one), Catalog.from_config(other)
    assert list(first.resources.items()) == list(second.resources.items())
    assert first.models == second.models


@pytest.mark.req("POOL-10", "CFG-15")
def test_usage_counts_for_the_provider_unless_the_model_group_is_chosen():
    config = EffectiveConfig(
        nodes=(node("n", provider("p")),),
        models=(group("m", "p"), group("k", "p", usage_attribution="model_group")),
    )
    models = Catalog.from_config(config).models
    assert models[ModelId("m")].candidates[0].attribution == Attribution("provider", "p")
    assert models[ModelId("k")].candidates[0].attribution == Attribution("model_group", "k")


@pytest.mark.req("CFG-27")
def test_equal_names_of_different_kinds_stay_apart():
    config = EffectiveConfig(
        nodes=(node("x", provider("x", adapter=AdapterKey("x")), adapters=(adapter("x"),)),),
        models=(group("y", "x"),),
    )
    catalog = Catalog.from_config(config)
    assert list(catalog.models) == ["y"]
    assert catalog.models[ModelId("y")].candidates[0].target == "x-model"


NO_CAPABILITIES: frozenset[Capability] = frozenset()


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize(
    ("of", "operation", "path"),
    [
        (adapter(), "chat_completions", "tunnel"),
        (adapter(), "responses", "normalized"),
        (adapter(), "messages", "normalized"),
        (adapter(), None, "normalized"),
        (adapter(), "count_tokens", None),
        (adapter(kind="ollama"), "chat_completions", "normalized"),
        (adapter(kind="ollama"), "responses", "normalized"),
        (adapter(kind="ollama"), None, "normalized"),
        (adapter(kind="ollama"), "count_tokens", None),
        (adapter(kind="anthropic"), "responses", None),
        (adapter(kind="anthropic"), None, None),
    ],
)
def test_passthrough_where_the_profile_has_the_operation_and_else_normalized(
    of: Adapter, operation: Operation | None, path: str | None
):
    assert abilities_of(of).path_for(operation, NO_CAPABILITIES) == path


@pytest.mark.req("POOL-14", "PROF-4")
def test_an_operation_without_its_capability_is_none_and_falls_back_to_the_normalized_path():
    both = profile("chat", operations=("chat_completions", "responses"))
    assert (
        abilities_of(adapter(profile=both)).path_for("responses", NO_CAPABILITIES) == "normalized"
    )
    silent = profile("responses", operations=("chat_completions", "responses"))
    assert (
        abilities_of(adapter(profile=silent)).path_for("chat_completions", NO_CAPABILITIES) is None
    )


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize("operation", ["chat_completions", "responses", None])
def test_capabilities_that_the_request_uses_are_needed_on_either_path(operation: Operation | None):
    abilities = abilities_of(adapter())
    assert abilities.path_for(operation, frozenset({"streaming"})) is not None
    assert abilities.path_for(operation, frozenset({"tool_calling"})) is None


@pytest.mark.req("CFG-12")
def test_a_disabled_provider_without_a_known_adapter_might_serve_anything():
    config = EffectiveConfig(nodes=(node("n", provider("p", adapter=None, enabled=False)),))
    [spec] = Catalog.from_config(config).resources.values()
    assert spec.adapter is None
    assert spec.abilities.path_for("count_tokens", frozenset({"tool_calling"})) == "tunnel"


def test_an_enabled_provider_without_an_adapter_is_no_valid_config():
    with pytest.raises(ValueError, match="p is enabled and has no adapter"):
        Catalog.from_config(EffectiveConfig(nodes=(node("n", provider("p", adapter=None)),)))


ROUTE = ModelRoute(
    id=RouteId("r"),
    model=ModelId("small"),
    adapter=AdapterKey("a"),
    target=Target("t"),
    node=NodeId("n"),
)


@pytest.mark.req("POOL-11", "CFG-28")
def test_a_route_is_counted_for_its_own_provider_id_and_else_for_that_of_the_ingress():
    def route(one: ModelRoute) -> DirectTarget:
        config = EffectiveConfig(
            nodes=(node("n"),), openai=OpenAI(provider_id="lab", model_routes=(one,))
        )
        return Catalog.from_config(config).routes[ModelId("small")]

    assert route(ROUTE).attribution == Attribution("provider", "lab")
    assert route(replace(ROUTE, provider_id="own")).attribution == Attribution("provider", "own")
    found = route(ROUTE)
    assert (found.node_id, found.adapter, found.target, found.route_id) == ("n", "a", "t", "r")
    assert found.abilities.path_for("chat_completions", NO_CAPABILITIES) == "tunnel"


@pytest.mark.req("CFG-28")
def test_the_fallback_stands_on_the_named_node_or_on_the_only_one_that_holds_the_adapter():
    openai = OpenAI(provider_id="lab", adapter=AdapterKey("a"), target=Target("t"))
    alone = EffectiveConfig(nodes=(node("n"), node("o", adapters=(adapter("b"),))), openai=openai)
    found = Catalog.from_config(alone).fallback
    assert found is not None
    assert (found.node_id, found.route_id, found.attribution.id) == ("n", None, "lab")
    named = replace(openai, node=NodeId("o"))
    found = Catalog.from_config(
        EffectiveConfig(nodes=(node("n"), node("o")), openai=named)
    ).fallback
    assert found is not None
    assert found.node_id == "o"
    with pytest.raises(ValueError, match="stands on 2 nodes"):
        Catalog.from_config(EffectiveConfig(nodes=(node("n"), node("o")), openai=openai))
