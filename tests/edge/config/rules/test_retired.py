# ruff: noqa: E501 - a row reads best with its text on one line
"""Keys of an older system (CFG-5).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, Bad, assert_told, cases

RETIRED = [
    *(
        Bad("CFG-5", f"retired_key {path}{key}", text.replace("KEY", f"«{key}: secret-value"))
        for path, text in {
            "": "KEY\nedge: {}",
            "edge.": "edge:\n  KEY",
            "nodes[n1].": "nodes:\n  - id: n1\n    token: $TOKEN\n    KEY",
            "nodes[n1].runtime.": "nodes:\n  - id: n1\n    token: $TOKEN\n    runtime:\n      KEY",
            "nodes[n1].adapters[o].": "nodes:\n  - id: n1\n    token: $TOKEN\n    adapters:\n"
            "      - key: o\n        type: ollama\n        base_url: http://h\n        KEY",
            "nodes[n1].providers[p].": "nodes:\n  - id: n1\n    token: $TOKEN\n    providers:\n"
            "      - id: p\n        type: vllm\n        category: api\n        models: [m]\n"
            "        capacity: 1\n        base_url: http://h\n        KEY",
            "openai.": "openai:\n  KEY",
            "openai.stream_evidence_gate.": "openai:\n  stream_evidence_gate:\n    KEY",
            "openai.principal_tokens[t].": "openai:\n  principal_tokens:\n    - token_ref: t\n"
            "      token_hash_sha256: $HASH\n      principal_ref: p\n      KEY",
        }.items()
        for key in ("command", "session", "owner")
    ),
    *(
        Bad("CFG-5", f"retired_key {key}", f"«{key}: x")
        for key in (
            "command",
            "args",
            "env",
            "executable",
            "shell",
            "working_dir",
            "workdir",
            "cwd",
            "mode",
            "terminal",
            "tty",
            "pty",
            "interactive",
            "resume_args",
            "output_format",
            "session",
            "resume",
            "automation",
            "automations",
            "schedule",
            "schedules",
            "workspace",
            "owner",
        )
    ),
    Bad(
        "CFG-5",
        "retired_key nodes[n1].adapters.ollama.command",
        "nodes:\n  - id: n1\n    token: $TOKEN\n    adapters:\n      ollama: {base_url: 'http://h', «command: x}",
    ),
    Bad(
        "CFG-5",
        "retired_key nodes[n1].adapters.cli",
        "nodes:\n  - id: n1\n    token: $TOKEN\n    adapters:\n      «cli: {base_url: 'http://h'}",
    ),
    Bad(
        "CFG-5",
        "retired_key nodes[n1].adapters[x].type",
        "nodes: [{id: n1, token: $TOKEN, adapters: [{key: x, «type: cli, base_url: 'http://h'}]}]",
    ),
    Bad(
        "CFG-5",
        "retired_key nodes[n1].providers[p].category",
        NODE + "      - {id: p, type: vllm, «category: cli, capacity: 1, models: [m], adapter: a1}",
    ),
]


@pytest.mark.parametrize("row", cases(RETIRED))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
