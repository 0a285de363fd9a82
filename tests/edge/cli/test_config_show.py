"""`iop-edge config show` and `schema`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from iop_edge.cli.main import main
from iop_edge.config.json_schema import json_schema
from iop_edge.config.load import load
from iop_edge.refresh.diff import diff
from iop_edge.runtime.sources import read_sources
from tests.edge.config.rig import filled

WHOLE = """
edge: {id: "e 1", name: "on", advertise: "edge.example:50051"}
server: {tls: {cert_file: "/a: b", key_file: "0123"}}
provider_pool: {max_queue: 3, queue_timeout_ms: 0}
protocol_profiles:
  p:
    base: openai
    base_url: http://base/v1
    auth: {value: {node_env: KEY}}
    operations: {models: "https://other/v1/models"}
    capabilities: []
    extensions: {deep: {list: [1, {a: null, b: [true, "x: y"]}]}, api_key: visible}
models:
  - {id: "smart: #1", providers: {p1: m, p2: m, p3: "1e3"}, chars_per_token: 3.5}
openai:
  enabled: true
  provider_id: lab
  adapter: o1
  target: "null"
  model_routes: [{id: r, model: x, adapter: o1, target: t}]
  principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: p}]
  stream_evidence_gate:
    filters: [{filter: repeat_guard, selectors: [{provider: p1, enabled: false}]}]
nodes:
  - id: n1
    token: {env: T}
    adapters:
      - {key: a1, type: openai_compat, headers: {X-Team: "a b", X-Key: {file: /k}}}
      - $OLLAMA
    providers:
      - {$P1, adapter: a1, profile: p}
      - {$P2, endpoint: "http://first/v1", provider: Lab, profile: p}
      - {id: p3, type: seulgivibe_claude, category: api, models: ["1e3"], capacity: 1,
         base_url: "http://third", headers: {Authorization: {node_file: /n}}, enabled: false}
      - {id: p4, type: ollama, category: api, models: [m], capacity: 1, adapter: no, enabled: false}
"""


def show(path: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(
        main, ["config", "show", "--skip-secrets", "--config", str(path), *arguments]
    )
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(filled(WHOLE), encoding="utf-8")
    return path


@pytest.mark.req("CFG-23")
def test_what_is_shown_is_a_config_that_means_the_same(path: Path, tmp_path: Path) -> None:
    text = show(path)
    hidden = text.replace('api_key: "[redacted]"', "api_key: visible")
    assert hidden != text
    (again := tmp_path / "again.yaml").write_text(hidden, encoding="utf-8")
    before, after = (
        load(read_sources([one], fingerprint_key=b"k"), skip_secrets=True).config
        for one in (path, again)
    )
    assert [str(one.path) for one in diff(before, after, lambda _: True)] == []
    assert show(again) == text


@pytest.mark.req("CFG-23")
def test_what_only_a_running_edge_has_stands_apart(path: Path) -> None:
    document = json.loads(show(path, "--json"))
    resolved = document.pop("resolved")
    assert resolved["provider_pool"] == {"max_queue": 3, "queue_timeout_ms": 0, "source": "root"}
    first = next(one for one in resolved["adapters"] if one["key"] == "p2")
    assert first["provider"] == "Lab"
    assert first["profile"]["operation_urls"]["chat_completions"] == (
        "http://first/v1/chat/completions"
    )
    assert "operation_urls" not in json.dumps(document)
    adapter = document["nodes"][0]["adapters"][0]
    assert adapter["headers"] == {"X-Team": "a b", "X-Key": {"file": "/k"}}
    assert document["provider_pool"] == {"max_queue": 3, "queue_timeout_ms": 0}


@pytest.mark.req("CFG-8", "CFG-23")
def test_a_promoted_queue_policy_is_not_written_back(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(filled("""
        models: [{id: smart, providers: {p1: m}}]
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [$ADAPTER]
            providers: [{$P1, adapter: a1, max_queue: 7}]
        """), encoding="utf-8")  # fmt: skip
    text = show(path)
    assert "\nprovider_pool:" not in text
    assert text.startswith(
        "# The queue policy comes from legacy keys of the providers: max_queue 7"
    )
    document = json.loads(show(path, "--json"))
    assert "provider_pool" not in document
    assert document["resolved"]["provider_pool"]["source"] == "providers"
    assert document["resolved"]["provider_pool"]["max_queue"] == 7


@pytest.mark.req("SEC-1")
def test_credentials_in_urls_and_free_maps_are_redacted(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(filled("""
        protocol_profiles:
          x: {base: vllm, operations: {models: "https://h/v1/models?key=canary"},
              extensions: {api_key: canary, deep: [{password: canary}],
                           credentials: {user: canary, more: [{x: canary}]}}}
        nodes:
          - {id: n1, token: $TOKEN, adapters: [{key: a, type: openai_compat, base_url: "http://h"}],
             providers: [{$P1, adapter: a, profile: x}]}
        """), encoding="utf-8")  # fmt: skip
    for text in (show(path), show(path, "--json")):
        assert "canary" not in text


@pytest.mark.req("CFG-23")
def test_ids_that_speak_of_secrets_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(filled("""
        protocol_profiles:
          x: {base: vllm, operations: {count_tokens: /tokenize}, model_mapping: {token-model: m},
              extensions: {plain: "http://u:p@h"}}
        models: [{id: token-model, providers: {monkey: m}}]
        nodes:
          - {id: n1, token: $TOKEN, adapters: [$ADAPTER],
             providers: [{id: monkey, type: vllm, category: api, models: [m], capacity: 1,
                          adapter: a1, profile: x}]}
        """), encoding="utf-8")  # fmt: skip
    document = json.loads(show(path, "--json"))
    assert document["models"][0]["providers"] == {"monkey": "m"}
    profile = document["resolved"]["adapters"][0]["profile"]
    assert profile["operation_urls"]["count_tokens"] == "http://127.0.0.1:8000/tokenize"
    assert profile["model_mapping"] == {"token-model": "m"}
    assert profile["extensions"] == {"plain": "http://h"}
    (again := tmp_path / "again.yaml").write_text(
        show(path).replace("http://h", "http://u:p@h"), encoding="utf-8"
    )
    assert show(again) == show(path)


@pytest.mark.req("CFG-24")
def test_the_schema_is_printed_from_the_structs() -> None:
    ran = CliRunner().invoke(main, ["config", "schema"])
    assert ran.exit_code == 0
    assert json.loads(ran.stdout) == json_schema()


@pytest.mark.req("CFG-24")
def test_the_schema_describes_every_key_with_its_default_and_bounds() -> None:
    schema = json_schema()
    provider = schema["$defs"]["ProviderDocument"]
    assert provider["additionalProperties"] is False
    assert set(provider["required"]) == {"id", "type", "category", "models", "capacity"}
    assert provider["properties"]["priority"]["default"] == 0
    assert provider["properties"]["max_queue"]["deprecated"] is True
    threshold = schema["properties"]["long_context_threshold_tokens"]
    assert threshold["default"] == 100_000
    assert {"type": "integer", "minimum": 1, "maximum": 100_000_000} in threshold["anyOf"]
    assert any(one.get("pattern", "").startswith("\\$") for one in threshold["anyOf"])
    assert "(?!" not in json.dumps(schema).replace("(?! )", "").replace("(?<! )", "")
    for name, part in [("root", schema), *schema["$defs"].items()]:
        assert part["description"], name
        for key, field in part["properties"].items():
            assert field.get("description"), (name, key)
    assert msgspec.json.encode(schema)
