"""The catalog, overlays, and what a resolved profile answers (PROF)."""

from __future__ import annotations

import pytest

from iop_edge.config.effective import SecretRef
from iop_edge.config.resolving.built_in import BUILT_IN
from iop_edge.config.resolving.catalog import ADAPTER_OF_TYPE, PROFILE_OF_TYPE
from iop_shared.profiles import OPERATION_OF_CAPABILITY, OPERATIONS_BY_DRIVER, ProtocolProfile
from tests.edge.config.rig import effective, problems


def resolved(
    provider_type: str, base_url: str = "http://h", profiles: str = "", own: str = ""
) -> ProtocolProfile:
    """The profile of the one adapter of a provider of this type."""
    adapter_type = ADAPTER_OF_TYPE[provider_type]
    text = f"""
    protocol_profiles: {{{profiles}}}
    nodes:
      - id: n1
        token: $TOKEN
        adapters: [{{key: a, type: {adapter_type}, base_url: "{base_url}"}}]
        providers:
          - {{id: p, type: {provider_type}, category: api, models: [m], capacity: 1, adapter: a
              {own}}}
    """
    profile = effective(text).nodes[0].adapters[0].profile
    assert profile is not None
    return profile


@pytest.mark.req("PROF-1")
def test_the_catalog_holds_exactly_these_profiles() -> None:
    assert set(BUILT_IN) == {
        "openai",
        "openai_responses",
        "anthropic",
        "ollama_openai",
        "vllm",
        "sglang",
        "llama_cpp",
        "lm_studio",
        "seulgivibe_openai",
        "seulgivibe_claude",
    }


@pytest.mark.req("PROF-1", "PROF-2", "PROF-3")
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_profile_keeps_the_rules_of_an_overlay(name: str) -> None:
    profile = BUILT_IN[name]
    assert profile.operations.keys() <= OPERATIONS_BY_DRIVER[profile.driver]
    needed = {OPERATION_OF_CAPABILITY.get(one) for one in profile.capabilities} - {None}
    assert needed <= profile.operations.keys()
    assert profile.base_url is None


@pytest.mark.req("PROF-1", "PROF-5")
def test_seulgivibe_claude_lists_its_models_below_anthropic() -> None:
    profile = resolved("seulgivibe_claude", "https://h")
    assert profile.operation_url("models") == "https://h/anthropic/v1/models"
    assert profile.operation_url("messages") == "https://h/v1/messages"
    assert profile.driver == "anthropic_messages"


@pytest.mark.req("PROF-7")
@pytest.mark.parametrize("provider_type", [one for one, name in PROFILE_OF_TYPE.items() if name])
def test_a_type_selects_its_profile_where_none_is_named(provider_type: str) -> None:
    profile = resolved(provider_type)
    expected = PROFILE_OF_TYPE[provider_type]
    assert profile.id == expected
    assert expected is not None
    assert profile.capabilities == BUILT_IN[expected].capabilities


@pytest.mark.req("PROF-7", "PROF-8")
def test_an_ollama_adapter_has_no_profile() -> None:
    text = "nodes: [{id: n1, token: $TOKEN, adapters: [$OLLAMA]}]"
    assert effective(text).nodes[0].adapters[0].profile is None


@pytest.mark.req("PROF-5", "PROF-8")
def test_a_resolved_profile_holds_complete_urls() -> None:
    profile = resolved("openai", "http://h:8000/v1/")
    assert profile.operation_urls == {
        "models": "http://h:8000/v1/models",
        "chat_completions": "http://h:8000/v1/chat/completions",
        "responses": "http://h:8000/v1/responses",
    }
    assert profile.operation_url("messages") is None


@pytest.mark.req("PROF-2", "CFG-20")
def test_an_overlay_merges_maps_by_key_and_replaces_capabilities_and_scalars() -> None:
    profiles = """
        bottom: {base: openai, base_url: "http://b", model_mapping: {a: x, b: y},
                 extensions: {one: 1, two: {deep: 2}}, auth: {value: {node_env: KEY}}},
        top: {base: bottom, base_url: "http://t", operations: {models: /list, responses: "https://r/x"},
              capabilities: [models, chat], model_mapping: {b: z}, extensions: {two: 3},
              auth: {header: X-Key, scheme: ""}}
    """
    profile = resolved("openai", profiles=profiles, own=", profile: top")
    assert profile.id == "top"
    assert profile.operation_urls == {
        "models": "http://h/list",
        "chat_completions": "http://h/v1/chat/completions",
        "responses": "https://r/x",
    }
    assert profile.capabilities == {"models", "chat"}
    assert profile.model_mapping == {"a": "x", "b": "z"}
    assert profile.extensions == {"one": 1, "two": 3}
    catalog = effective(f"protocol_profiles: {{{profiles}}}").protocol_profiles
    assert catalog["top"].base_url == "http://t"
    assert (catalog["top"].auth.header, catalog["top"].auth.scheme) == ("X-Key", "")
    assert catalog["top"].auth.value == SecretRef(node_env="KEY")


@pytest.mark.req("PROF-2")
def test_a_cycle_is_printed_as_its_path_and_told_once() -> None:
    text = "protocol_profiles: {d: {base: a}, a: {base: b}, b: {base: c}, c: {base: a}}"
    [found] = problems(text)
    assert found.code == "profile_cycle"
    assert "a → b → c → a" in found.message


@pytest.mark.req("PROF-2")
def test_a_broken_base_is_told_once_and_not_again_by_what_extends_it() -> None:
    text = "protocol_profiles: {a: {base: nowhere}, b: {base: a}, c: {base: b}}"
    assert [one.path for one in problems(text)] == ["protocol_profiles[a].base"]


@pytest.mark.req("PROF-2", "CFG-4")
def test_a_credential_that_is_missing_is_told_where_it_is_named_alone() -> None:
    text = "protocol_profiles: {a: {base: vllm, auth: {value: {env: NO}}}, b: {base: a}}"
    assert [(one.code, one.path) for one in problems(text)] == [
        ("unset_variable", "protocol_profiles[a].auth.value")
    ]


@pytest.mark.req("PROF-6")
def test_a_mapping_translates_and_everything_else_keeps_its_name() -> None:
    profile = resolved(
        "vllm", profiles="x: {base: vllm, model_mapping: {smart: m}}", own=", profile: x"
    )
    from iop_shared.ids import ModelId

    assert profile.map_model(ModelId("smart")) == "m"
    assert profile.map_model(ModelId("other")) == "other"


@pytest.mark.req("PROF-4")
def test_capabilities_are_asked_by_name() -> None:
    profile = resolved("anthropic")
    assert profile.has_capability("messages")
    assert not profile.has_capability("chat")
