"""Secrets: resolved once into the vault, compared by fingerprints, never shown (CFG-2, REF-4)."""

from __future__ import annotations

import copy
import pickle
from hashlib import sha256

import pytest

from iop_edge.config.effective import SecretRef
from iop_edge.config.load import SecretFile, load, secret_paths
from iop_edge.config.problems import ConfigInvalid, Problem
from iop_shared.ids import NodeId
from tests.edge.config.rig import TOKEN, loaded, problems, sources

TEXT = """
protocol_profiles: {x: {base: vllm, auth: {value: {env: KEY}}}}
nodes:
  - id: n1
    token: {env: NODE_TOKEN}
    adapters:
      - {key: a1, type: openai_compat, base_url: "http://h", headers: {X-Key: {file: /key}}}
      - {key: a2, type: ollama, base_url: "http://h", headers: {Cookie: {node_env: ON_NODE}}}
    providers: [{$P1, adapter: a1, profile: x}]
  - {id: n2, token: $TOKEN}
"""
ENVIRONMENT = {"NODE_TOKEN": TOKEN, "KEY": "key-value"}
FILES = {"/key": SecretFile(b"file-value\n", 0o600)}


def proved(environment: dict[str, str] = ENVIRONMENT, files: dict[str, SecretFile] = FILES):
    return loaded(TEXT, environment=environment, secret_files=files)


@pytest.mark.req("CFG-2")
def test_the_vault_holds_what_the_edge_resolves() -> None:
    vault = proved().vault
    assert vault.value(SecretRef(env="KEY")) == "key-value"
    assert vault.value(SecretRef(file="/key")) == "file-value"
    assert vault.node_token_sha256(NodeId("n1")) == sha256(TOKEN.encode()).digest()
    assert vault.node_token_sha256(NodeId("n2")) == bytes.fromhex("ab" * 32)
    with pytest.raises(KeyError):
        vault.value(SecretRef(node_env="ON_NODE"))
    with pytest.raises(KeyError):
        vault.node_token_sha256(NodeId("n3"))


@pytest.mark.req("SEC-1")
def test_a_vault_shows_and_serializes_nothing() -> None:
    result = proved()
    shown = f"{result.vault!r} {result.vault} {result!r} {FILES['/key']!r}"
    assert not any(secret in shown for secret in (TOKEN, "key-value", "file-value"))
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            write(result.vault)


@pytest.mark.req("REF-4")
def test_a_fingerprint_follows_the_secret_behind_an_unchanged_reference() -> None:
    before, same = proved().vault, proved().vault
    changed = proved({**ENVIRONMENT, "KEY": "another"}, {"/key": SecretFile(b"new", 0o600)}).vault
    for ref in (SecretRef(env="KEY"), SecretRef(file="/key")):
        assert before.fingerprint(ref) == same.fingerprint(ref) != changed.fingerprint(ref)
    for ref in (SecretRef(node_env="ON_NODE"), SecretRef(env="NODE_TOKEN")):
        assert before.fingerprint(ref) == changed.fingerprint(ref)
    assert before.fingerprint(SecretRef(env="KEY")) != before.fingerprint(SecretRef(file="/key"))


@pytest.mark.req("REF-4")
def test_fingerprints_of_two_keys_do_not_compare() -> None:
    one = sources(TEXT, environment=ENVIRONMENT, secret_files=FILES)
    other = type(one)(
        files=one.files,
        environment=one.environment,
        read_secret=one.read_secret,
        fingerprint_key=b"another",
    )
    ref = SecretRef(env="KEY")
    assert load(one).vault.fingerprint(ref) != load(other).vault.fingerprint(ref)


@pytest.mark.req("REF-4")
def test_every_reference_of_a_config_can_be_listed_with_its_path() -> None:
    assert list(secret_paths(proved().config)) == [
        ("protocol_profiles[x].auth.value", SecretRef(env="KEY")),
        ("nodes[n1].token", SecretRef(env="NODE_TOKEN")),
        ("nodes[n1].adapters[a1].headers[X-Key].value", SecretRef(file="/key")),
        ("nodes[n1].adapters[a1].headers[Authorization].value", SecretRef(env="KEY")),
        ("nodes[n1].adapters[a2].headers[Cookie].value", SecretRef(node_env="ON_NODE")),
        ("nodes[n2].token", SecretRef(sha256="ab" * 32)),
    ]


def token_problems(content: bytes, mode: int = 0o600) -> list[tuple[str, str]]:
    text = "nodes: [{id: n1, token: {file: /t}}]"
    files = {"/t": SecretFile(content, mode)}
    try:
        found: tuple[Problem, ...] = loaded(text, secret_files=files).warnings
    except ConfigInvalid as invalid:
        found = invalid.problems
    secret = content.decode("utf-8", "replace").strip()
    assert not secret or secret not in "".join(map(str, found))
    return [(one.code, one.severity) for one in found]


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (TOKEN.encode(), []),
        (TOKEN.encode() + b"\n", []),
        (TOKEN.encode() + b"\r\n", []),
        (b"k" * 31, [("short_token", "error")]),
        (b"", [("empty_secret", "error")]),
        (b"\n", [("empty_secret", "error")]),
        (TOKEN.encode() + b"\n\n", [("bad_secret", "error")]),
        (b" " + TOKEN.encode(), [("bad_secret", "error")]),
        (TOKEN.encode() + b"\x00", [("bad_secret", "error")]),
        (TOKEN.encode() + b"\r\nX: y", [("bad_secret", "error")]),
        (TOKEN.encode() + b"\xff", [("bad_secret", "error")]),
        (b"k" * 70_000, [("bad_secret", "error")]),
    ],
)
def test_a_secret_file_is_judged_without_being_shown(
    content: bytes, found: list[tuple[str, str]]
) -> None:
    assert token_problems(content) == found


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize(
    ("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)]
)
def test_a_secret_file_that_others_can_read_is_a_warning(mode: int, is_told: bool) -> None:
    expected = [("secret_readable_by_others", "warning")] if is_told else []
    assert token_problems(TOKEN.encode(), mode) == expected


@pytest.mark.req("CFG-2")
def test_a_secret_file_is_read_once_however_many_places_name_it() -> None:
    reads: list[str] = []
    text = """
    nodes:
      - id: n1
        token: $TOKEN
        adapters:
          - {key: a, type: ollama, base_url: "http://h", headers: {X-Key: {file: /k}}}
          - {key: b, type: ollama, base_url: "http://h", headers: {X-Key: {file: /k}}}
    """
    plain = sources(text)

    def read(path: str) -> SecretFile:
        reads.append(path)
        return SecretFile(b"value", 0o644)

    result = load(
        type(plain)(files=plain.files, environment={}, read_secret=read, fingerprint_key=b"k")
    )
    assert reads == ["/k"]
    assert len(result.warnings) == 1


@pytest.mark.req("CFG-2")
def test_skipping_secrets_looks_at_none_and_judges_the_rest() -> None:
    def read(path: str) -> SecretFile:
        raise AssertionError(path)

    plain = sources(TEXT)
    candidate = type(plain)(
        files=plain.files, environment={}, read_secret=read, fingerprint_key=b"k"
    )
    result = load(candidate, skip_secrets=True)
    with pytest.raises(KeyError):
        result.vault.value(SecretRef(env="KEY"))
    text = "nodes: [{id: a, token: {env: T}}, {id: b, token: {env: T}}, {id: c, token: {env: U}}]"
    with pytest.raises(ConfigInvalid) as raised:
        load(sources(text), skip_secrets=True)
    assert [one.code for one in raised.value.problems] == ["duplicate_token"]


@pytest.mark.req("CFG-21")
def test_two_nodes_with_one_token_are_refused_however_it_is_named() -> None:
    digest = sha256(TOKEN.encode()).hexdigest()
    text = f"nodes: [{{id: a, token: {{env: T}}}}, {{id: b, token: {{sha256: '{digest}'}}}}]"
    [found] = problems(text, environment={"T": TOKEN})
    assert (found.code, found.path) == ("duplicate_token", "nodes[b].token")
    assert "nodes[a].token" in found.message


@pytest.mark.req("CFG-2")
def test_tls_files_that_are_not_there_and_keys_that_others_can_read_are_warnings() -> None:
    text = "server: {tls: {cert_file: /cert, key_file: /key, client_ca_file: /none}}"
    files = {"/cert": SecretFile(b"c", 0o644), "/key": SecretFile(b"k", 0o644)}
    found = loaded(text, secret_files=files).warnings
    assert [(one.code, one.path) for one in found] == [
        ("secret_readable_by_others", "server.tls.key_file"),
        ("tls_file_unreadable", "server.tls.client_ca_file"),
    ]
    assert load(sources(text), skip_secrets=True).warnings == ()
