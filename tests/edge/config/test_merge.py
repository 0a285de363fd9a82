"""Several files, later over earlier (CFG-2)."""

from __future__ import annotations

import pytest

from iop_edge.config.effective import SecretRef
from tests.edge.config.rig import codes, effective, errors

BASE = """
edge: {id: e, name: base}
server: {listen: "127.0.0.1:1000", tls: {cert_file: c, key_file: k}}
protocol_profiles: {x: {base: vllm, capabilities: [models, chat], extensions: {a: 1, b: {c: 2}}}}
openai:
  model_routes: [{id: r, model: x, adapter: a1, target: t}]
  principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: p}]
models: [{id: smart, providers: {p1: m}, display_name: Smart}]
nodes:
  - id: n1
    alias: one
    token: {env: BASE_TOKEN}
    adapters: [$ADAPTER]
    providers: [{$P1, adapter: a1, priority: 1}]
"""
ENVIRONMENT = {"BASE_TOKEN": "b" * 40, "OVER_TOKEN": "o" * 40}


def merged(over: str, base: str = BASE) -> object:
    return effective(base, over, environment=ENVIRONMENT)


@pytest.mark.req("CFG-2")
def test_maps_merge_key_by_key() -> None:
    config = effective(BASE, "edge: {name: over}", environment=ENVIRONMENT)
    assert (config.edge.id, config.edge.name) == ("e", "over")


@pytest.mark.req("CFG-2")
def test_named_entries_merge_by_name_and_new_ones_follow() -> None:
    over = """
    models:
      - {id: fast, providers: {p2: m}}
      - {id: smart, providers: {p2: m}}
    nodes:
      - id: n1
        adapters:
          - {key: a1, base_url: "http://over"}
          - {key: a2, type: ollama, base_url: "http://two"}
        providers:
          - {id: p1, capacity: 7}
          - {$P2, adapter: a1}
    """
    config = effective(BASE, over, environment=ENVIRONMENT)
    assert [model.id for model in config.models] == ["smart", "fast"]
    assert config.models[0].providers == {"p1": "m", "p2": "m"}
    assert config.models[0].display_name == "Smart"
    [node] = config.nodes
    assert [adapter.key for adapter in node.adapters] == ["a1", "a2"]
    assert node.adapters[0].base_url == "http://over"
    assert [(one.id, one.capacity, one.priority) for one in node.providers] == [
        ("p1", 7, 1),
        ("p2", 1, 0),
    ]


@pytest.mark.req("CFG-2")
def test_routes_merge_by_id_and_principals_by_token_ref() -> None:
    over = """
    openai:
      model_routes: [{id: r, target: other}]
      principal_tokens: [{token_ref: a, principal_ref: q}]
    """
    config = effective(BASE, over, environment=ENVIRONMENT)
    [route] = config.openai.model_routes
    assert (route.model, route.target) == ("x", "other")
    [token] = config.openai.principal_tokens
    assert token.principal_ref == "q"


@pytest.mark.req("CFG-2")
def test_other_lists_replace() -> None:
    over = """
    protocol_profiles: {x: {capabilities: [chat], extensions: {b: {d: 3}}}}
    nodes: [{id: n1, providers: [{id: p1, models: [m, n]}]}]
    """
    config = effective(BASE, over, environment=ENVIRONMENT)
    assert config.protocol_profiles["x"].capabilities == {"chat"}
    assert config.protocol_profiles["x"].extensions == {"a": 1, "b": {"c": 2, "d": 3}}
    assert config.nodes[0].providers[0].models == ("m", "n")


@pytest.mark.req("CFG-2")
def test_a_reference_to_a_secret_merges_as_one_value() -> None:
    config = effective(
        BASE, "nodes: [{id: n1, token: {file: /t}}]",
        environment=ENVIRONMENT,
        secret_files={"/t": secret("f" * 40)},
    )  # fmt: skip
    assert config.nodes[0].token == SecretRef(file="/t")


@pytest.mark.req("CFG-2")
def test_a_null_in_a_later_file_takes_the_earlier_value_away() -> None:
    over = "server: {tls: null}\nnodes: [{id: n1, alias: null, providers: [{id: p1, priority: ~}]}]"
    config = effective(BASE, over, environment=ENVIRONMENT)
    assert config.server.tls is None
    assert config.nodes[0].alias is None
    assert config.nodes[0].providers[0].priority == 0


@pytest.mark.req("CFG-2")
def test_a_null_counts_as_left_out() -> None:
    assert effective("edge: null\nserver: {listen: null}") == effective("{}")


@pytest.mark.req("CFG-8")
def test_an_empty_provider_pool_is_there_and_a_null_one_is_not() -> None:
    text = BASE.replace("priority: 1", "max_queue: 3")
    assert effective(text, environment=ENVIRONMENT).provider_pool.max_queue == 3
    for over, expected in (("provider_pool: {}", 16), ("provider_pool: null", 3)):
        assert effective(text, over, environment=ENVIRONMENT).provider_pool.max_queue == expected


@pytest.mark.req("CFG-2", "CFG-9")
def test_legacy_forms_are_normalized_before_merging() -> None:
    legacy = """
    nodes:
      - id: n1
        token: $TOKEN
        adapters: {ollama: {base_url: "http://one", context_size: 100}}
    """
    over = "nodes: [{id: n1, adapters: [{key: ollama, base_url: 'http://two'}]}]"
    [adapter] = effective(legacy, over).nodes[0].adapters
    assert (adapter.key, adapter.type) == ("ollama", "ollama")
    assert (adapter.base_url, adapter.context_size) == ("http://two", 100)
    [adapter] = effective("nodes: [{id: n1, adapters: [{key: ollama, type: ollama,"
                          " base_url: 'http://two'}]}]", legacy).nodes[0].adapters  # fmt: skip
    assert (adapter.base_url, adapter.context_size) == ("http://one", 100)


@pytest.mark.req("CFG-4")
def test_a_problem_is_placed_in_the_file_that_wrote_it() -> None:
    over = "edge: {}\nnodes:\n  - id: n1\n    providers:\n      - {id: p1, capacity: 0}\n"
    [found] = errors(BASE, over, environment=ENVIRONMENT)
    assert (found.file, found.line, found.column) == ("edge2.yaml", 5, 28)
    assert found.path == "nodes[n1].providers[p1].capacity"


@pytest.mark.req("CFG-4")
def test_every_file_is_searched_and_the_files_keep_their_order() -> None:
    found = errors("edge: {nmae: x}\n", "edge: {nmea: x}\n")
    assert [one.file for one in found] == ["edge.yaml", "edge2.yaml"]


@pytest.mark.req("CFG-4")
def test_a_file_that_is_no_yaml_hides_no_problem_of_the_others_text() -> None:
    assert codes("edge: {id: a, id: b}", "edge: [") == ["duplicate_key", "yaml_syntax"]


@pytest.mark.req("CFG-3")
def test_two_entries_of_one_name_in_one_file_are_a_mistake_even_where_they_merge() -> None:
    over = (
        "models: [{id: smart, display_name: A}, {id: smart, display_name: B, providers: {p1: m}}]"
    )
    [found] = errors(BASE, over, environment=ENVIRONMENT)
    assert (found.code, found.file) == ("duplicate_id", "edge2.yaml")


@pytest.mark.req("CFG-5")
def test_a_retired_key_is_told_once_wherever_its_entry_lands() -> None:
    over = "nodes:\n  - {id: n0, token: $TOKEN}\n  - id: n1\n    mode: x\n"
    found = errors(BASE, over, environment=ENVIRONMENT)
    assert [(one.code, one.path) for one in found] == [("retired_key", "nodes[n1].mode")]


def secret(text: str):
    from iop_edge.config.load import SecretFile

    return SecretFile(text.encode(), 0o600)


@pytest.mark.req("CFG-2")
def test_a_name_that_reads_like_a_secret_place_is_merged_like_any_other() -> None:
    config = effective(
        """
        protocol_profiles:
          headers: {base: vllm, model_mapping: {a: x},
                    extensions: {headers: {h: {one: 1}}, auth: {value: {one: 1}}}}
        """,
        """
        protocol_profiles:
          headers: {model_mapping: {b: y},
                    extensions: {headers: {h: {two: 2}}, auth: {value: {two: 2}}}}
        """,
    )
    profile = config.protocol_profiles["headers"]
    assert profile.model_mapping == {"a": "x", "b": "y"}
    both = {"one": 1, "two": 2}
    assert profile.extensions == {"headers": {"h": both}, "auth": {"value": both}}
