# ruff: noqa: E501 - a row reads best with its text on one line
"""Where secrets may be named, and expansion (CFG-2).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import Bad, assert_told, cases

SECRETS = [
    Bad(
        "CFG-2",
        "secret_literal nodes[n1].token",
        "nodes: [{id: n1, «token: abc}]".replace("«token: ", "token: «"),
    ),
    Bad("CFG-2", "secret_literal nodes[n1].token", "nodes: [{id: n1, token: «'${TOKEN}'}]"),
    Bad("CFG-2", "secret_literal nodes[n1].token", "nodes: [{id: n1, token: «12345678}]"),
    Bad("CFG-2", "missing_key nodes[n1]", "nodes: [«{id: n1}]"),
    Bad("CFG-2", "missing_key nodes[n1].token", "nodes: [{id: n1, token: «null}]"),
    Bad("CFG-2", "bad_secret_reference nodes[n1].token", "nodes:\n  - id: n1\n    «token: {}"),
    Bad(
        "CFG-2",
        "bad_secret_reference nodes[n1].token",
        "nodes:\n  - id: n1\n    «token: {env: A, file: b}",
    ),
    Bad(
        "CFG-2",
        "bad_secret_reference nodes[n1].token",
        "nodes:\n  - id: n1\n    «token: {node_env: A}",
    ),
    Bad("CFG-2", "unknown_key nodes[n1].token", "nodes:\n  - id: n1\n    «token: {evn: A}"),
    Bad(
        "CFG-2",
        "bad_format nodes[n1].token.env",
        "nodes:\n  - id: n1\n    token: {env: «a-b}",
    ),
    Bad(
        "CFG-2",
        "bad_format nodes[n1].token.sha256",
        "nodes:\n  - id: n1\n    token: {sha256: «abc}",
    ),
    Bad(
        "CFG-2", "unset_variable nodes[n1].token", "nodes:\n  - id: n1\n    «token: {env: NOT_SET}"
    ),
    Bad("CFG-2", "secret_unreadable nodes[n1].token", "nodes:\n  - id: n1\n    «token: {file: /x}"),
    Bad(
        "CFG-2",
        "secret_literal protocol_profiles[x].auth.value",
        "protocol_profiles: {x: {base: vllm, auth: {value: «abc}}}",
    ),
    Bad(
        "CFG-2",
        "secret_literal protocol_profiles[x].auth",
        "protocol_profiles: {x: {base: vllm, auth: «abc}}",
    ),
    Bad(
        "CFG-2",
        "bad_secret_reference protocol_profiles[x].auth.value",
        "protocol_profiles: {x: {base: vllm, auth: {«value: {sha256: $HASH}}}}",
    ),
    *(
        Bad(
            "CFG-2",
            f"secret_literal nodes[n1].adapters[a].headers[{name}]",
            f"""
            nodes:
              - id: n1
                token: $TOKEN
                adapters: [{{key: a, type: ollama, base_url: "http://h", headers: {{{name}: «abc}}}}]
            """,
        )
        for name in (
            "Authorization",
            "proxy-authorization",
            "Cookie",
            "X-Api-Key",
            "token",
            "a-secret-b",
        )
    ),
    *(
        Bad(
            "CFG-2",
            "secret_literal nodes[n1].adapters[a].headers[X-Key]",
            f"""
            nodes:
              - id: n1
                token: $TOKEN
                adapters: [{{key: a, type: ollama, base_url: "http://h", headers: {{{header}}}}}]
            """,
        )
        for header in (
            "X-Key: «12345",
            "X-Key: «true",
            'X-Key: «"a\\nb"',
            "X-Key: «'${X}'",
            "«X-Key: [abc]",
        )
    ),
    Bad(
        "CFG-2",
        "bad_header nodes[n1].adapters[a].headers[Host]",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [{key: a, type: ollama, base_url: "http://h", headers: {«Host: abc}}]
        """,
    ),
    Bad(
        "CFG-2",
        "duplicate_id nodes[n1].adapters[a].headers[x-A]",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [{key: a, type: ollama, base_url: "http://h", headers: {X-a: abc, «x-A: b}}]
        """,
    ),
    Bad(
        "CFG-21",
        "duplicate_token nodes[n2].token",
        "nodes:\n  - {id: n1, token: $TOKEN}\n  - {id: n2, «token: $TOKEN}",
    ),
    Bad(
        "CFG-2",
        "unset_variable edge.name",
        "edge: {name: «'${NOT_SET}'}",
    ),
    Bad("CFG-2", "bad_reference edge.name", "edge: {name: «'${}'}"),
    Bad("CFG-2", "bad_reference edge.name", "edge: {name: «'a ${1X} b'}"),
    Bad(
        "CFG-2",
        "reference_in_key models[m].providers",
        "models: [{id: m, providers: {«'${X}': y}}]",
    ),
]


@pytest.mark.parametrize("row", cases(SECRETS))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
