# ruff: noqa: E501 - a row reads best with its text on one line
"""What the rules allow, where it is easily taken for something else."""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, codes

GOOD = {
    "CFG-21": ["edge: {id: e1}", "{}", "edge: {}\nserver: null\nnodes: []"],
    "CFG-3": [
        "\ufeffedge: {id: e}",
        "edge: {id: on}",
        "edge: {id: no}",
        "edge: {id: 12:30}",
        "edge: {id: 0123}",
        "edge: {id: 2026-01-02}",
        "edge: {id: '1'}",
        "provider_pool: {max_queue: 0x10, queue_timeout_ms: 0o17}",
        "---\nedge: {id: e}\n...\n",
        "%YAML 1.2\n---\nedge: {id: e}",
    ],
    "CFG-7": ["provider_pool: {max_queue: 0, queue_timeout_ms: 0}"],
    "CFG-10": [
        NODE + "      - {$P1, adapter: a1, long_context_capacity: 9}",
        NODE + "      - {$P1, adapter: a1, lifecycle_capabilities: []}",
    ],
    "CFG-11": [NODE + "      - {$P1, adapter: openai_compat}"],
    "CFG-12": [
        NODE + "      - {$P1, adapter: nowhere, enabled: false}",
        NODE + "      - {$P1, adapter: o1, enabled: false}",
        NODE + "      - {$P1, enabled: false}",
    ],
    "CFG-14": [
        NODE + "      - {$P1, adapter: a1, long_context_capacity: 2, total_context_tokens: 20}\n"
        "models: [{id: smart, context_window_tokens: 10, providers: {p1: m}}]",
        NODE + "      - {$P1, adapter: a1, total_context_tokens: 0}\n"
        "models: [{id: smart, context_window_tokens: 10, providers: {p1: m}}]",
        NODE + "      - {$P1, adapter: a1, long_context_capacity: 2, total_context_tokens: 1}\n"
        "models: [{id: smart, providers: {p1: m}}]",
    ],
    "CFG-5": [
        NODE + "      - {$P1, adapter: a1}\nmodels: [{id: mode, providers: {p1: m}}]",
        (
            "nodes: [{id: n1, token: {sha256: $HASH}, adapters: [{key: a, type: ollama, "
            "base_url: 'http://h', headers: {mode: x, session: y, owner: z}}]}]"
        ),
        (
            "protocol_profiles: {session: {base: vllm, extensions: {mode: x, env: {args: 1}}, "
            "model_mapping: {owner: x, shell: y}}}"
        ),
    ],
    "CFG-19": [
        "openai: {stream_evidence_gate: {filters: [{filter: repeat_guard, capability: streaming}]}}",
        (
            "openai: {stream_evidence_gate: {filters: [{filter: repeat_guard, selectors: "
            "[{environment: dev, enabled: true}, {environment: dev-corp, enabled: false}]}]}}"
        ),
    ],
    "CFG-9": [
        (
            "nodes: [{id: n1, token: $TOKEN, adapters: [{key: x, type: ollama, allow_link_local: true, "
            "base_url: 'http://169.254.1.1'}]}]"
        ),
        (
            "nodes: [{id: n1, token: $TOKEN, adapters: [{key: x, type: ollama, "
            "base_url: 'http://[::1]:11434/prefix/'}]}]"
        ),
    ],
    "SEC-2": [
        "admin: {listen: 'unix:/run/iop/admin.sock'}",
        "admin: {listen: '[::1]:0'}",
        "admin: {listen: 'localhost:18081'}",
        "admin: {listen: '127.8.8.8:18081'}",
    ],
    "SEC-3": [
        "server: {listen: '0.0.0.0:50051', tls: {cert_file: c, key_file: k}}",
        "server: {listen: '0.0.0.0:50051', insecure: true}",
    ],
    "PROF-2": [
        "protocol_profiles: {a: {base: b, capabilities: []}, b: {base: c}, c: {driver: openai_chat}}"
    ],
}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=pytest.mark.req(rule), id=f"{rule}:{number}")
        for rule, texts in GOOD.items()
        for number, text in enumerate(texts)
    ],
)
def test_what_the_rules_allow_is_valid(text: str) -> None:
    assert codes(text) == []
