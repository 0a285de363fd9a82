# ruff: noqa: E501 - a row reads best with its text on one line
"""The ingress section (CFG-16…19, CFG-28).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, Bad, assert_told, cases

ROUTED = (
    NODE + "      - {$P1, adapter: a1}\n"
    "models: [{id: smart, providers: {p1: m}}]\n"
    "openai: {model_routes: [ROUTES]}\n"
)

OPENAI = [
    Bad("CFG-16", "provider_id_required openai.provider_id", "«openai: {enabled: true}"),
    Bad(
        "CFG-16",
        "provider_id_required openai.provider_id",
        "openai: {enabled: true, provider_id: «'  '}",
    ),
    Bad(
        "CFG-16",
        "provider_id_required openai.provider_id",
        "openai: {enabled: true, provider_id: «''}",
    ),
    Bad("CFG-16", "fallback_incomplete openai.adapter", "openai: {«adapter: a1}"),
    Bad("CFG-16", "fallback_incomplete openai.target", "openai: {«target: a1}"),
    Bad("CFG-16", "fallback_incomplete openai.node", "openai: {«node: n1}"),
    Bad("CFG-16", "unknown_adapter openai.adapter", "openai: {adapter: «a1, target: t}"),
    Bad(
        "CFG-17",
        "empty_text openai.principal_tokens[0].token_ref",
        "openai: {principal_tokens: [{token_ref: «'', token_hash_sha256: $HASH, principal_ref: p}]}",
    ),
    Bad(
        "CFG-17",
        "empty_text openai.principal_tokens[a].principal_ref",
        "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: «''}]}",
    ),
    Bad(
        "CFG-17",
        "bad_format openai.principal_tokens[a].token_hash_sha256",
        "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: «abc, principal_ref: p}]}",
    ),
    Bad(
        "CFG-17",
        "duplicate_id openai.principal_tokens[a].token_ref",
        """
        openai:
          principal_tokens:
            - {token_ref: a, token_hash_sha256: $HASH, principal_ref: p}
            - {token_ref: «a, token_hash_sha256: "%s", principal_ref: p}
        """
        % ("ab" * 32),
    ),
    Bad(
        "CFG-17",
        "duplicate_id openai.principal_tokens[b].token_hash_sha256",
        """
        openai:
          principal_tokens:
            - {token_ref: a, token_hash_sha256: $HASH, principal_ref: p}
            - {token_ref: b, token_hash_sha256: «"%s", principal_ref: p}
        """
        % ("0123456789ABCDEF" * 4),
    ),
    Bad(
        "CFG-17",
        "unknown_key openai.principal_tokens[a].token",
        "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: p, «token: x}]}",
    ),
    Bad(
        "CFG-18",
        "from_header_taken openai.provider_auth.from_header",
        "openai: {provider_auth: {from_header: «authorization}}",
    ),
    Bad(
        "CFG-18",
        "bad_header openai.provider_auth.target_header",
        "openai: {provider_auth: {target_header: «host}}",
    ),
    Bad(
        "CFG-17",
        "unknown_key openai.principal_tokens[a].token",
        "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: $HASH, principal_ref: b, «token: c}]}",
    ),
    Bad(
        "CFG-18",
        "bad_format openai.provider_auth.target_header",
        "openai: {provider_auth: {target_header: «'a b'}}",
    ),
    Bad(
        "CFG-19",
        "out_of_range openai.stream_evidence_gate.max_request_fault_recovery",
        "openai: {stream_evidence_gate: {max_request_fault_recovery: «4}}",
    ),
    Bad(
        "CFG-19",
        "recovery_bounds openai.stream_evidence_gate.max_strategy_fault_recovery",
        "openai: {stream_evidence_gate: {max_request_fault_recovery: 1, max_strategy_fault_recovery: «2}}",
    ),
    Bad(
        "CFG-19",
        "out_of_range openai.stream_evidence_gate.max_ingress_snapshot_bytes",
        "openai: {stream_evidence_gate: {max_ingress_snapshot_bytes: «16777217}}",
    ),
    Bad(
        "CFG-19",
        "not_one_of openai.stream_evidence_gate.environment",
        "openai: {stream_evidence_gate: {environment: «prod}}",
    ),
    *(
        Bad(
            "CFG-19",
            f"{code} openai.stream_evidence_gate.filters[repeat_guard]{path}",
            f"openai: {{stream_evidence_gate: {{filters: [{{filter: repeat_guard, {text}}}]}}}}",
        )
        for code, path, text in (
            ("not_one_of", ".enforcement", "enforcement: «strict"),
            ("not_one_of", ".capability", "capability: «output.x"),
            ("out_of_range", ".hold_evidence_runes", "hold_evidence_runes: «0"),
            ("out_of_range", ".timeout_ms", "timeout_ms: «0"),
            (
                "unknown_key",
                ".selectors[0].caller",
                "selectors: [{model: m, enabled: true, «caller: x}]",
            ),
            (
                "unknown_key",
                ".selectors[0].agent",
                "selectors: [{model: m, enabled: true, «agent: x}]",
            ),
            (
                "unknown_key",
                ".selectors[0].timeout_ms",
                "selectors: [{model: m, enabled: true, «timeout_ms: 3}]",
            ),
            ("bad_selector", ".selectors[0]", "selectors: [«{enabled: false}]"),
            (
                "unknown_key",
                ".selectors[1].agent",
                "selectors: [{model: m, enabled: true}, {«agent: x, enabled: false}]",
            ),
            (
                "not_one_of",
                ".selectors[0].environment",
                "selectors: [{environment: «prod, enabled: true}]",
            ),
            ("bad_selector", ".selectors[0]", "selectors: [«{environment: dev}]"),
            (
                "selector_tie",
                ".selectors[1]",
                "selectors: [{environment: dev, enabled: true}, «{environment: dev, enabled: false}]",
            ),
            (
                "selector_tie",
                ".selectors[1]",
                "selectors: [{model: m, environment: dev, enabled: true}, «{environment: dev, model: m, enforcement: blocking}]",
            ),
        )
    ),
    Bad(
        "CFG-19",
        "duplicate_id openai.stream_evidence_gate.filters[repeat_guard].filter",
        "openai: {stream_evidence_gate: {filters: [{filter: repeat_guard}, {filter: «repeat_guard}]}}",
    ),
    Bad(
        "CFG-19",
        "not_one_of openai.stream_evidence_gate.filters[typo].filter",
        "openai: {stream_evidence_gate: {filters: [{filter: «typo}]}}",
    ),
    *(
        Bad(
            "CFG-28",
            f"{code} openai.model_routes[{path}",
            ROUTED.replace("ROUTES", text),
        )
        for code, path, text in (
            ("unknown_adapter", "r].adapter", "{id: r, model: x, adapter: «zz, target: t}"),
            ("unknown_node", "r].node", "{id: r, model: x, adapter: a1, target: t, node: «n9}"),
            ("missing_key", "r]", "«{id: r, model: x, adapter: a1}"),
            ("duplicate_id", "r].model", "{id: r, model: «smart, adapter: a1, target: t}"),
            (
                "duplicate_id",
                "s].model",
                "{id: r, model: x, adapter: a1, target: t}, {id: s, model: «x, adapter: a1, target: t}",
            ),
            (
                "duplicate_id",
                "r].id",
                "{id: r, model: x, adapter: a1, target: t}, {id: «r, model: y, adapter: a1, target: t}",
            ),
        )
    ),
    Bad(
        "CFG-28",
        "ambiguous_adapter openai.model_routes[r].adapter",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [$ADAPTER, {key: a2, type: openai_compat, base_url: "http://h"}]
        openai: {model_routes: [{id: r, model: x, adapter: «openai_compat, target: t}]}
        """,
    ),
    Bad(
        "CFG-28",
        "ambiguous_node openai.model_routes[r].adapter",
        """
        nodes:
          - {id: n1, token: $TOKEN, adapters: [$ADAPTER]}
          - {id: n2, token: $TOKEN2, adapters: [$ADAPTER]}
        openai: {model_routes: [{id: r, model: x, adapter: «a1, target: t}]}
        """,
    ),
]


@pytest.mark.parametrize("row", cases(OPENAI))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
