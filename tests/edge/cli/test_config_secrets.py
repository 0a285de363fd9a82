"""Canary secrets in every place that may hold one, and every command's output searched for them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from iop_edge.cli.main import main
from iop_edge.runtime.sources import read_sources
from tests.edge.config.rig import filled

CANARY = "canary7d1f0a"
LONG = CANARY + "x" * 40

VALID = """
protocol_profiles:
  p: {base: openai, auth: {value: {env: KEY}}, extensions: {api_key: CANARY}}
openai:
  principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: p}]
nodes:
  - id: n1
    token: {env: TOKEN}
    adapters:
      - {key: a1, type: openai_compat, base_url: "http://h",
         headers: {X-Key: {file: FILE}, Cookie: {node_env: N}}}
    providers: [{$P1, adapter: a1, profile: p}]
  - {id: n2, token: {file: TOKEN_FILE}}
"""

INVALID = {
    "a token": "nodes: [{id: n, token: CANARY}]",
    "a token that expands": "nodes: [{id: n, token: '${TOKEN}'}]",
    "a token that expands in part": "nodes: [{id: n, token: 'x${KEY}'}]",
    "a token as a reference": "nodes: [{id: n, token: {env: CANARY-x}}]",
    "a token as a path": "nodes: [{id: n, token: {sha256: CANARY}}]",
    "a token under a wrong key": "nodes: [{id: n, token: {value: CANARY}}]",
    "a token as a key": "nodes: [{id: n, token: {CANARY: x}}]",
    "a token under a typo": "nodes: [{id: n, tokne: CANARY}]",
    "a token in a list": "nodes: [{id: n, token: [CANARY]}]",
    "a token on many lines": "nodes:\n  - id: n\n    token: |\n      CANARY\n      CANARY\n",
    "a header": "nodes: [{id: n, token: $TOKEN, adapters: [{key: a, type: ollama, "
    "base_url: 'http://h', headers: {Authorization: Bearer CANARY}}]}]",
    "a header of a provider": "nodes: [{id: n, token: $TOKEN, providers: [{$P1, "
    "base_url: 'http://h', headers: {api-key: CANARY}}]}]",
    "an auth value": "protocol_profiles: {x: {base: vllm, auth: {value: CANARY}}}",
    "an auth": "protocol_profiles: {x: {base: vllm, auth: CANARY}}",
    "an auth under a wrong key": "protocol_profiles: {x: {base: vllm, auth: {token: CANARY}}}",
    "an auth header": "protocol_profiles: {x: {base: vllm, auth: {header: 'X: CANARY'}}}",
    "a URL": "nodes: [{id: n, token: $TOKEN, adapters: [{key: a, type: ollama, "
    "base_url: 'http://u:CANARY@h'}]}]",
    "a query": "protocol_profiles: {x: {base: vllm, base_url: 'http://h?k=CANARY'}}",
    "a control plane": "control_plane: {url: 'http://u:CANARY@h'}",
    "an operation": "protocol_profiles: {x: {base: vllm, operations: {models: 'http://CANARY@h'}}}",
    "a raw principal": "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: CANARY, "
    "principal_ref: p}]}",
    "a principal's token": "openai: {principal_tokens: [{token_ref: a, token: CANARY}]}",
    "retired keys": "nodes: [{id: n, token: $TOKEN, env: {K: CANARY}, args: [CANARY]}]",
    "a section": "edge: CANARY",
    "the root": "CANARY",
    "a list": "- CANARY",
    "an expanded number": "provider_pool:\n  max_queue: ${KEY}",
    "an expanded choice": "logging:\n  level: ${KEY}",
    "an expanded address": "server:\n  listen: ${KEY}",
    "an expanded URL": "telemetry:\n  otlp_endpoint: ${URL}",
    "no YAML": "nodes:\n  - id: n\n    token: CANARY: x\n",
    "an open quote": 'nodes: [{id: n, token: "CANARY\n',
    "a tab": "nodes:\n  - id: n\n\t  token: CANARY\n",
    "a tag": "nodes: [{id: n, token: !!str CANARY}]",
    "an alias": "edge: &a CANARY\nserver: *CANARY\n",
    "a duplicate": "nodes: [{id: n, token: CANARY, token: CANARY}]",
    "a secret variable that is no secret": "nodes: [{id: n, token: {env: SHORT}}]",
    "a secret file that is no secret": "nodes: [{id: n, token: {file: BAD_FILE}}]",
    "a comment": "edge: {nmae: x} # CANARY",
}
COMMANDS = [
    ["check"],
    ["check", "--json"],
    ["check", "--skip-secrets"],
    ["show"],
    ["show", "--json"],
    ["show", "--skip-secrets"],
]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with secret files, and the environment with secret variables."""
    (tmp_path / "token").write_text(LONG + "file")
    (tmp_path / "key").write_text(CANARY)
    (tmp_path / "bad").write_text(CANARY + "\nX: y")
    for name, value in {
        "TOKEN": LONG,
        "KEY": CANARY,
        "SHORT": CANARY,
        "URL": f"http://u:{CANARY}@h",
        "IOP_OTHER": CANARY,
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def written(text: str, folder: Path) -> Path:
    for blank, value in {
        "TOKEN_FILE": "token",
        "BAD_FILE": "bad",
        "FILE": "key",
    }.items():
        text = text.replace(blank, str(folder / value))
    path = folder / "edge.yaml"
    path.write_text(filled(text.replace("CANARY", CANARY)), encoding="utf-8")
    return path


@pytest.mark.req("SEC-1", "CFG-2", "CFG-4")
@pytest.mark.parametrize(("case", "command"), list(product(INVALID, COMMANDS)))
def test_no_command_shows_a_secret_of_an_invalid_config(
    case: str, command: list[str], planted: Path
) -> None:
    path = written(INVALID[case], planted)
    ran = CliRunner().invoke(main, ["config", *command, "--config", str(path)])
    assert "--skip-secrets" in command or ran.exit_code == 1
    assert CANARY not in ran.output


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_a_secret_of_a_valid_config(command: list[str], planted: Path) -> None:
    path = written(VALID, planted)
    ran = CliRunner().invoke(main, ["config", *command, "--config", str(path)])
    assert ran.exit_code == 0, ran.output
    assert CANARY not in ran.output


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("flags", [[], ["--json"], ["--skip-secrets"]])
def test_a_diff_shows_no_secret(flags: list[str], planted: Path) -> None:
    before = written(VALID, planted).rename(planted / "before.yaml")
    (planted / "key").write_text(CANARY + "changed")
    after = written(
        VALID.replace("api_key: CANARY", "api_key: CANARY2").replace("{env: TOKEN}", "$TOKEN2"),
        planted,
    )
    ran = CliRunner().invoke(main, ["config", "diff", str(before), str(after), *flags])
    assert ran.exit_code == 4
    assert CANARY not in ran.output


@pytest.mark.req("SEC-1")
def test_sources_show_nothing(planted: Path) -> None:
    candidate = read_sources([written(VALID, planted)], fingerprint_key=CANARY.encode())
    assert CANARY not in f"{candidate!r} {candidate}"
