from __future__ import annotations

import pytest
from msgspec import structs

from iop.runtime_pb2 import NodeConfigPayload
from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    HeaderValue,
    ModelGroup,
    Node,
    NodeRuntime,
    Provider,
    SecretRef,
    Server,
)
from iop_edge.config.vault import Vault
from iop_edge.runtime.payload import build_payloads, changed_nodes, stamped
from iop_shared.ids import (
    AdapterKey,
    Generation,
    ModelId,
    NodeId,
    ProviderId,
    Target,
)
from iop_shared.profiles import ProtocolProfile

GPU_A, GPU_B = NodeId("gpu-a"), NodeId("gpu-b")

VAULT = Vault(values={SecretRef(env="KEY"): "value-of-key"}, token_digests={}, fingerprint_key=b"k")

PROFILE = ProtocolProfile(
    id="lab",
    driver="openai_chat",
    operation_urls={"chat_completions": "http://127.0.0.1:8000/v1/chat/completions"},
    capabilities=frozenset({"streaming", "chat"}),
    model_mapping={"smart": "big"},
    extensions={"flag": True, "list": (1, "two"), "map": {"depth": 1.5, "none": None}},
)


def adapter(key: str = "main", **fields: object) -> Adapter:
    return structs.replace(
        Adapter(
            key=AdapterKey(key),
            type="openai_compat",
            base_url="http://127.0.0.1:8000",
            headers=(
                HeaderValue(name="X-Team", value="lab"),
                HeaderValue(name="Authorization", value=SecretRef(env="KEY"), scheme="Bearer"),
                HeaderValue(name="X-Env", value=SecretRef(node_env="ON_NODE")),
                HeaderValue(name="X-File", value=SecretRef(node_file="/run/on-node")),
            ),
            provider_label="vllm",
            profile=PROFILE,
        ),
        **fields,
    )


def provider(provider_id: str, **fields: object) -> Provider:
    return structs.replace(
        Provider(
            id=ProviderId(provider_id),
            type="vllm",
            category="local_inference",
            adapter=AdapterKey("main"),
            models=(Target("small"), Target("big")),
            capacity=4,
        ),
        **fields,
    )


def config(*providers: Provider, adapters: tuple[Adapter, ...] = ()) -> EffectiveConfig:
    first = Node(
        id=GPU_A,
        token=SecretRef(env="TOKEN"),
        runtime=NodeRuntime(concurrency=8),
        adapters=adapters or (adapter(),),
        providers=providers or (provider("p1"),),
    )
    second = Node(id=GPU_B, token=SecretRef(env="TOKEN_B"), adapters=(adapter(),))
    return EffectiveConfig(nodes=(first, second), server=Server(drain_deadline_ms=5000))


def payload_of(built: EffectiveConfig) -> NodeConfigPayload:
    return build_payloads(built, VAULT)[GPU_A]


@pytest.mark.req("REF-8")
def test_a_payload_holds_adapters_providers_and_runtime() -> None:
    payload = payload_of(config(provider("p1", long_context_capacity=0, priority=7)))
    assert payload.generation == 0
    assert payload.runtime.concurrency == 8
    assert payload.runtime.drain_deadline_ms == 5000
    (sent,) = payload.providers
    assert (sent.id, sent.adapter, list(sent.models), sent.capacity) == (
        "p1",
        "main",
        ["big", "small"],
        4,
    )
    assert sent.HasField("long_context_capacity")
    assert sent.long_context_capacity == 0


@pytest.mark.req("CFG-14", "REF-8")
def test_an_omitted_long_context_capacity_is_not_sent_as_zero() -> None:
    (sent,) = payload_of(config(provider("p1"))).providers
    assert not sent.HasField("long_context_capacity")


@pytest.mark.req("PROF-8", "CFG-13")
def test_the_resolved_profile_is_copied_into_the_adapter() -> None:
    sent = payload_of(config()).adapters[0].openai_compat
    assert sent.provider == "vllm"
    assert sent.profile.id == "lab"
    assert dict(sent.profile.operation_urls) == dict(PROFILE.operation_urls)
    assert list(sent.profile.capabilities) == ["chat", "streaming"]
    assert dict(sent.profile.model_mapping) == {"smart": "big"}
    assert sent.profile.extensions["flag"] is True
    assert list(sent.profile.extensions["list"]) == [1, "two"]
    assert sent.profile.extensions["map"]["depth"] == 1.5


@pytest.mark.req("PROF-8")
@pytest.mark.parametrize("kind", ["openai_compat", "anthropic", "ollama"])
def test_each_type_of_adapter_has_its_own_message(kind: str) -> None:
    profile = None if kind == "ollama" else PROFILE
    built = config(adapters=(adapter(type=kind, profile=profile, context_size=8192),))
    sent = payload_of(built).adapters[0]
    assert sent.WhichOneof("kind") == kind
    assert getattr(sent, kind).upstream.base_url == "http://127.0.0.1:8000"
    if kind == "ollama":
        assert sent.ollama.context_size == 8192
    else:
        assert getattr(sent, kind).profile.id == "lab"


@pytest.mark.req("CFG-2")
def test_a_secret_of_the_edge_is_sent_as_its_value_and_one_of_the_node_as_its_name() -> None:
    headers = payload_of(config()).adapters[0].openai_compat.upstream.headers
    found = {header.name: (header.WhichOneof("value"), header.scheme) for header in headers}
    assert found == {
        "Authorization": ("text", "Bearer"),
        "X-Env": ("node_env", ""),
        "X-File": ("node_file", ""),
        "X-Team": ("text", ""),
    }
    assert headers[0].text == "value-of-key"


@pytest.mark.req("REF-8")
def test_another_order_gives_the_same_bytes() -> None:
    one = config(provider("p1"), provider("p2"), adapters=(adapter("main"), adapter("spare")))
    turned = adapter("main", headers=tuple(reversed(adapter().headers)))
    other = config(
        provider("p2"),
        provider("p1", models=(Target("big"), Target("small"))),
        adapters=(adapter("spare"), turned),
    )
    assert payload_of(one).SerializeToString(deterministic=True) == payload_of(
        other
    ).SerializeToString(deterministic=True)


@pytest.mark.req("REF-8", "POOL-8")
@pytest.mark.parametrize(
    "fields",
    [
        {"enabled": False},
        {"priority": 9},
        {"total_context_tokens": 1_000_000},
        {"health": "degraded"},
    ],
)
def test_what_is_the_edges_own_does_not_change_a_payload(fields: dict[str, object]) -> None:
    before = build_payloads(config(), VAULT)
    after = build_payloads(config(provider("p1", **fields)), VAULT)
    assert changed_nodes(before, after) == frozenset()


@pytest.mark.req("REF-8")
def test_models_and_queue_policy_do_not_change_a_payload() -> None:
    group = ModelGroup(id=ModelId("smart"), providers={ProviderId("p1"): Target("big")})
    before = build_payloads(config(), VAULT)
    after = build_payloads(structs.replace(config(), models=(group,)), VAULT)
    assert changed_nodes(before, after) == frozenset()


@pytest.mark.req("REF-8")
@pytest.mark.parametrize("fields", [{"capacity": 5}, {"long_context_capacity": 1}])
def test_a_node_is_changed_by_its_providers_slots(fields: dict[str, object]) -> None:
    before = build_payloads(config(), VAULT)
    after = build_payloads(config(provider("p1", **fields)), VAULT)
    assert changed_nodes(before, after) == {GPU_A}


@pytest.mark.req("CFG-12")
def test_what_belongs_to_a_disabled_adapter_is_not_sent() -> None:
    spare = adapter("spare", enabled=False)
    payload = payload_of(
        config(
            provider("p1"),
            provider("p2", adapter="spare", enabled=False),
            provider("p3", adapter=None, enabled=False),
            adapters=(adapter(), spare),
        )
    )
    assert [sent.key for sent in payload.adapters] == ["main"]
    assert [sent.id for sent in payload.providers] == ["p1"]


@pytest.mark.req("REF-8")
def test_a_payload_keeps_the_generation_in_which_it_last_changed() -> None:
    first = stamped({}, build_payloads(config(), VAULT), Generation(1))
    assert {node: payload.generation for node, payload in first.items()} == {GPU_A: 1, GPU_B: 1}
    same = stamped(first, build_payloads(config(), VAULT), Generation(2))
    assert {node: payload.generation for node, payload in same.items()} == {GPU_A: 1, GPU_B: 1}
    grown = stamped(same, build_payloads(config(provider("p1", capacity=5)), VAULT), Generation(3))
    assert {node: payload.generation for node, payload in grown.items()} == {GPU_A: 3, GPU_B: 1}
    assert first[GPU_A].providers[0].capacity == 4


@pytest.mark.req("REF-8")
def test_generations_alone_make_no_node_changed() -> None:
    first = stamped({}, build_payloads(config(), VAULT), Generation(1))
    assert changed_nodes(first, build_payloads(config(), VAULT)) == frozenset()
