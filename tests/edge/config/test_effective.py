"""What a valid document comes to: defaults, resolved references, normalized legacy forms."""

from __future__ import annotations

import msgspec
import pytest

from iop_edge.config.document import Document
from iop_edge.config.effective import EffectiveConfig, HeaderValue, Node, QueuePolicy, SecretRef
from iop_edge.config.frozen import FrozenMap
from iop_edge.config.reading.vocabulary import structs_below
from tests.edge.config.rig import NODE, effective, loaded


def node(providers: str, before: str = "", after: str = "") -> Node:
    """The node `n1` with these provider lines."""
    return effective(before + NODE + providers + after).nodes[0]


@pytest.mark.req("CFG-1", "CFG-21")
def test_an_empty_mapping_gives_every_default() -> None:
    assert effective("{}") == EffectiveConfig()


@pytest.mark.req("CFG-6", "CFG-7", "CFG-18", "CFG-19")
def test_the_documented_defaults_are_these() -> None:
    config = effective("openai: {provider_auth: {enabled: true}, stream_evidence_gate: {}}")
    assert config.long_context_threshold_tokens == 100_000
    assert config.provider_pool == QueuePolicy(max_queue=16, queue_timeout_ms=30_000)
    assert config.openai.enabled is False
    auth = config.openai.provider_auth
    assert (auth.from_header, auth.target_header) == (
        "X-IOP-Provider-Authorization",
        "Authorization",
    )
    assert (auth.scheme, auth.required) == ("Bearer", True)
    gate = config.openai.stream_evidence_gate
    assert (gate.enabled, gate.environment, gate.filters) == (False, "dev", ())
    assert (gate.max_request_fault_recovery, gate.max_strategy_fault_recovery) == (3, 3)
    assert gate.max_ingress_snapshot_bytes == 16 * 1024 * 1024


@pytest.mark.req("CFG-1")
def test_document_and_effective_structs_name_their_fields_alike() -> None:
    """What is filled in by name must be there by name; what differs is resolved by hand."""
    by_hand = {
        "AdapterDocument": set(),
        "ProviderDocument": {
            "provider",
            "endpoint",
            "base_url",
            "headers",
            "context_size",
            "request_timeout_ms",
            "max_queue",
            "queue_timeout_ms",
        },
    }
    for cls in structs_below(Document):
        counterpart = getattr(cls, "EFFECTIVE", None)
        if counterpart is not None:
            missing = set(cls.__struct_fields__) - set(counterpart.__struct_fields__)
            assert missing == by_hand.get(cls.__name__, set()), cls


@pytest.mark.req("CFG-3")
def test_every_number_of_the_document_has_both_bounds() -> None:
    def numbers(node: object) -> None:
        match node:
            case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
                assert node.ge is not None
                assert node.le is not None
            case msgspec.inspect.Metadata():
                numbers(node.type)
            case msgspec.inspect.UnionType():
                for variant in node.types:
                    numbers(variant)
            case msgspec.inspect.ListType():
                numbers(node.item_type)
            case msgspec.inspect.DictType():
                numbers(node.value_type)

    for cls in structs_below(Document):
        info = msgspec.inspect.type_info(cls)
        assert isinstance(info, msgspec.inspect.StructType)
        assert info.forbid_unknown_fields
        for field in info.fields:
            numbers(field.type)


@pytest.mark.req("CFG-7")
@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("provider_pool: {}", (16, 30_000)),
        ("provider_pool: {max_queue: 0}", (16, 30_000)),
        ("provider_pool: {max_queue: 5, queue_timeout_ms: 0}", (5, 0)),
    ],
)
def test_zero_means_the_default_for_the_queue_and_no_limit_for_the_wait(
    text: str, policy: tuple[int, int]
) -> None:
    found = effective(text).provider_pool
    assert (found.max_queue, found.queue_timeout_ms) == policy


PAIR = (
    "      - {$P1, adapter: a1, %s}\n"
    "      - {$P2, adapter: a1, %s}\n"
    "models: [{id: smart, providers: {p1: m, p2: m}}]\n"
)


@pytest.mark.req("CFG-8")
@pytest.mark.parametrize(
    ("one", "other", "policy"),
    [
        ("max_queue: 4", "max_queue: 4", (4, 30_000)),
        ("max_queue: 4, queue_timeout_ms: 0", "queue_timeout_ms: 0, max_queue: 4", (4, 0)),
        ("max_queue: 16", "queue_timeout_ms: 30000", (16, 30_000)),
        ("max_queue: 0", "priority: 1", (16, 30_000)),
        ("max_queue: 4", "max_queue: 9, enabled: false", (4, 30_000)),
        ("max_queue: 4, enabled: false", "max_queue: 9", (9, 30_000)),
        ("priority: 1", "priority: 1", (16, 30_000)),
    ],
)
def test_legacy_queue_keys_that_agree_become_the_policy(
    one: str, other: str, policy: tuple[int, int]
) -> None:
    result = loaded(NODE + PAIR % (one, other))
    found = result.config.provider_pool
    assert (found.max_queue, found.queue_timeout_ms) == policy
    is_legacy = any("queue" in text and "enabled" not in text for text in (one, other))
    assert result.queue_source == ("providers" if is_legacy else "default")


@pytest.mark.req("CFG-8")
def test_a_provider_that_no_model_names_takes_no_part_in_the_promotion() -> None:
    text = NODE + PAIR % ("max_queue: 4", "max_queue: 9")
    assert effective(text.replace(", p2: m", "")).provider_pool.max_queue == 4


@pytest.mark.req("CFG-8", "REF-3")
def test_with_the_root_key_present_legacy_keys_change_nothing() -> None:
    root = "provider_pool: {}\n"
    plain = effective(root + NODE + PAIR % ("priority: 0", "priority: 0"))
    legacy = effective(root + NODE + PAIR % ("max_queue: 4", "queue_timeout_ms: 9"))
    assert plain == legacy


@pytest.mark.req("CFG-9")
def test_the_legacy_form_of_adapters_names_each_by_its_type() -> None:
    text = """
    nodes:
      - id: n1
        token: $TOKEN
        adapters: {ollama: {base_url: "http://h"}, anthropic: {base_url: "http://g"}}
    """
    adapters = effective(text).nodes[0].adapters
    assert [(one.key, one.type, one.base_url) for one in adapters] == [
        ("ollama", "ollama", "http://h"),
        ("anthropic", "anthropic", "http://g"),
    ]


@pytest.mark.req("CFG-11")
def test_an_adapter_is_found_by_its_key_before_its_type() -> None:
    text = """
    nodes:
      - id: n1
        token: $TOKEN
        adapters:
          - {key: ollama, type: openai_compat, base_url: "http://one"}
          - {key: other, type: ollama, base_url: "http://two"}
        providers:
          - {$P1, adapter: ollama}
    """
    assert effective(text).nodes[0].providers[0].adapter == "ollama"


@pytest.mark.req("CFG-11")
def test_a_bare_type_leads_to_the_one_enabled_instance() -> None:
    text = """
    nodes:
      - id: n1
        token: $TOKEN
        adapters:
          - {key: one, type: openai_compat, base_url: "http://one", enabled: false}
          - {key: two, type: openai_compat, base_url: "http://two"}
        providers:
          - {$P1, adapter: openai_compat}
    """
    assert effective(text).nodes[0].providers[0].adapter == "two"


@pytest.mark.req("CFG-11", "CFG-10")
@pytest.mark.parametrize("field", ["base_url", "endpoint"])
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_provider_first_provider_gets_an_adapter_of_its_own_also_while_disabled(
    field: str, enabled: str
) -> None:
    found = node(
        f"      - {{$P1, {field}: 'http://h:1/v1', context_size: 4096, request_timeout_ms: 9,\n"
        f"         provider: Lab, headers: {{X-Team: lab}}, enabled: {enabled}}}\n"
    )
    adapter = found.adapters[-1]
    assert found.providers[0].adapter == adapter.key == "p1"
    assert (adapter.type, adapter.base_url, adapter.enabled) == (
        "openai_compat",
        "http://h:1/v1",
        True,
    )
    assert (adapter.context_size, adapter.request_timeout_ms) == (4096, 9)
    assert adapter.provider_label == "Lab"
    assert adapter.headers == (HeaderValue(name="X-Team", value="lab"),)


@pytest.mark.req("CFG-12")
@pytest.mark.parametrize("adapter", ["adapter: nowhere, ", "adapter: o1, ", ""])
def test_a_disabled_provider_whose_reference_leads_nowhere_is_left_without_an_adapter(
    adapter: str,
) -> None:
    assert node(f"      - {{$P1, {adapter}enabled: false}}\n").providers[0].adapter is None


@pytest.mark.req("CFG-12", "REF-3")
def test_enabling_a_provider_changes_its_flag_alone() -> None:
    lines = "      - {$P1, adapter: a1, enabled: %s}\n"
    on, off = node(lines % "true"), node(lines % "false")
    assert msgspec.structs.replace(off.providers[0], enabled=True) == on.providers[0]
    assert on.adapters == off.adapters


@pytest.mark.req("CFG-13")
@pytest.mark.parametrize("alias", ["seulgivibe_claude", "seulgivibe_openai"])
@pytest.mark.parametrize(("label", "expected"), [("", None), (", provider: Lab", "Lab")])
def test_a_seulgivibe_type_runs_on_openai_compat_and_keeps_its_name_as_label(
    alias: str, label: str, expected: str | None
) -> None:
    found = node(
        f"      - {{id: p, type: {alias}, category: api, capacity: 1, models: [m],\n"
        f"         adapter: a1{label}}}\n"
    )
    assert found.providers[0].type == alias
    adapter = found.adapters[0]
    assert (adapter.type, adapter.provider_label) == ("openai_compat", expected or alias)
    assert adapter.profile is not None
    assert adapter.profile.id == alias


@pytest.mark.req("CFG-22")
def test_concurrency_is_carried() -> None:
    text = "nodes: [{id: n1, token: $TOKEN, runtime: {concurrency: 8}}]"
    assert effective(text).nodes[0].runtime.concurrency == 8


@pytest.mark.req("CFG-19")
def test_the_strategy_bound_inherits_the_request_bound() -> None:
    text = "openai: {stream_evidence_gate: {max_request_fault_recovery: %s}}"
    for bound in (0, 2):
        gate = effective(text % bound).openai.stream_evidence_gate
        assert gate.max_strategy_fault_recovery == gate.max_request_fault_recovery == bound


@pytest.mark.req("CFG-19")
def test_a_filter_is_filled_in() -> None:
    text = (
        "openai: {stream_evidence_gate: {max_ingress_snapshot_bytes: 0, "
        "filters: [{filter: schema_gate, enabled: false, selectors: [{model: m, enabled: true}]}]}}"
    )
    gate = effective(text).openai.stream_evidence_gate
    assert gate.max_ingress_snapshot_bytes == 16 * 1024 * 1024
    [found] = gate.filters
    assert (found.enabled, found.enforcement) == (False, "blocking")
    assert found.capability == "output.schema_gate"
    assert (found.hold_evidence_runes, found.timeout_ms) == (500, 5000)
    [selector] = found.selectors
    assert (selector.model, selector.enabled, selector.enforcement) == ("m", True, None)


@pytest.mark.req("CFG-19")
def test_the_most_specific_selector_wins() -> None:
    written = [
        "environment: dev",
        "model_group: g",
        "model_group: g, environment: dev",
        "model: m",
        "model: m, model_group: g, environment: dev",
        "provider: p",
        "provider: p, environment: dev",
        "provider: p, model: m",
    ]
    selectors = ", ".join(f"{{{one}, enabled: false}}" for one in written)
    text = "openai: {stream_evidence_gate: {filters: [{filter: schema_gate, selectors: [%s]}]}}"
    found = effective(text % selectors).openai.stream_evidence_gate.filters[0].selectors
    ranks = [one.specificity for one in found]
    assert ranks == sorted(set(ranks))


@pytest.mark.req("CFG-16", "CFG-28")
def test_routes_and_the_fallback_name_their_node_and_adapter() -> None:
    text = """
    nodes:
      - {id: n1, token: $TOKEN, adapters: [$ADAPTER, $OLLAMA]}
      - {id: n2, token: $TOKEN2, adapters: [$ADAPTER]}
    openai:
      enabled: true
      provider_id: lab
      adapter: ollama
      target: t
      model_routes: [{id: r, model: x, adapter: a1, target: u, node: n2}]
    """
    section = effective(text).openai
    assert (section.node, section.adapter, section.target) == ("n1", "o1", "t")
    [route] = section.model_routes
    assert (route.node, route.adapter, route.provider_id) == ("n2", "a1", None)


@pytest.mark.req("CFG-27")
def test_equal_names_of_different_kinds_never_lead_to_each_other() -> None:
    text = """
    nodes:
      - id: same
        token: $TOKEN
        adapters: [{key: same, type: openai_compat, base_url: "http://h"}]
        providers:
          - {id: same, type: openai_compat, category: api, models: [same], capacity: 1,
             adapter: same}
    models: [{id: same, providers: {same: same}}]
    openai: {model_routes: [{id: same, model: other, adapter: same, target: same}]}
    """
    assert effective(text).models[0].providers == {"same": "same"}
    for before, after, code in (
        ("providers: {same: same}", "providers: {other: same}", "unknown_provider"),
        ("adapter: same, target", "adapter: other, target", "unknown_adapter"),
        ("providers: {same: same}", "providers: {same: other}", "unknown_served_model"),
    ):
        from tests.edge.config.rig import codes

        assert codes(text.replace(before, after)) == [code]


@pytest.mark.req("CFG-17")
def test_token_hashes_are_compared_and_kept_in_lower_case() -> None:
    text = "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: %s, principal_ref: p}]}"
    [token] = effective(text % f'"{"AB" * 32}"').openai.principal_tokens
    assert token.token_hash_sha256 == "ab" * 32


@pytest.mark.req("CFG-23")
def test_an_effective_config_cannot_be_changed() -> None:
    config = effective(
        "protocol_profiles: {x: {base: vllm, extensions: {a: {b: [1, {c: 2}]}}}}\n" + NODE
        + "      - {$P1, adapter: a1, profile: x}\nmodels: [{id: smart, providers: {p1: m}}]"
    )  # fmt: skip
    with pytest.raises(AttributeError):
        config.long_context_threshold_tokens = 5
    extensions = config.protocol_profiles["x"].extensions
    assert extensions == {"a": {"b": (1, {"c": 2})}}
    profile = config.nodes[0].adapters[0].profile
    assert profile is not None
    maps = (
        config.protocol_profiles,
        config.models[0].providers,
        extensions,
        extensions["a"],
        extensions["a"]["b"][1],
        profile.operation_urls,
        profile.extensions,
    )
    for one in maps:
        assert isinstance(one, FrozenMap)
        for mutate in (
            lambda one=one: one.update(x=1),
            lambda one=one: one.__setitem__("x", 1),
            lambda one=one: one.clear(),
            lambda one=one: one.pop("a", None),
            lambda one=one: one.setdefault("x", 1),
        ):
            with pytest.raises(TypeError):
                mutate()


@pytest.mark.req("CFG-26")
def test_the_nearest_base_url_and_header_win() -> None:
    text = """
    protocol_profiles:
      far: {base: openai, base_url: "http://far", auth: {value: {node_env: FAR}}}
      near: {base: far, base_url: "http://near"}
    nodes:
      - id: n1
        token: $TOKEN
        adapters:
          - {key: a, type: openai_compat}
          - {key: b, type: openai_compat, base_url: "http://own",
             headers: {authorization: {node_env: OWN}}}
        providers:
          - {$P1, adapter: a, profile: near}
          - {$P2, adapter: b, profile: near}
    """
    a, b = effective(text).nodes[0].adapters
    assert (a.base_url, b.base_url) == ("http://near", "http://own")
    assert a.headers == (
        HeaderValue(name="Authorization", value=SecretRef(node_env="FAR"), scheme="Bearer"),
    )
    assert b.headers == (HeaderValue(name="authorization", value=SecretRef(node_env="OWN")),)


@pytest.mark.req("CFG-21")
@pytest.mark.parametrize("part", ["console", "control_plane", "a2a"])
def test_enabling_a_part_that_is_not_built_is_a_warning(part: str) -> None:
    [warning] = loaded(f"{part}: {{enabled: true}}").warnings
    assert (warning.code, warning.severity, warning.path) == (
        "not_built",
        "warning",
        f"{part}.enabled",
    )


@pytest.mark.req("SEC-3")
@pytest.mark.parametrize("part", ["server", "bootstrap"])
def test_plaintext_off_loopback_that_is_allowed_is_a_warning(part: str) -> None:
    [warning] = loaded(f"{part}: {{listen: '0.0.0.0:9', insecure: true}}").warnings
    assert (warning.code, warning.path) == ("plaintext_off_loopback", f"{part}.listen")


@pytest.mark.req("CFG-19")
def test_a_selector_that_matches_nothing_is_a_warning_with_the_likely_name() -> None:
    text = NODE + "      - {$P1, adapter: a1}\n" + (
        "openai: {stream_evidence_gate: {filters: [{filter: repeat_guard, "
        "selectors: [{provider: pp1, enabled: false}]}]}}"
    )  # fmt: skip
    [warning] = loaded(text).warnings
    assert warning.code == "selector_matches_nothing"
    assert "`p1`" in warning.message
