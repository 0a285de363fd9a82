"""Model groups and the legacy queue policy (CFG-8, CFG-14, CFG-15).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, Bad, assert_told, cases

MODELS = [
    Bad(
        "CFG-15",
        "unknown_provider models[smart].providers",
        NODE + "      - {$P1, adapter: a1}\nmodels: [{id: smart, providers: {«p2: m}}]",
    ),
    Bad(
        "CFG-15",
        "unknown_served_model models[smart].providers[p1]",
        NODE + "      - {$P1, adapter: a1}\nmodels: [{id: smart, providers: {p1: «x}}]",
    ),
    Bad(
        "CFG-15",
        "policy_contradiction models[smart].default_max_tokens",
        "models: [{id: smart, default_max_tokens: «5, min_max_tokens: 6}]",
    ),
    Bad(
        "CFG-15",
        "policy_contradiction models[smart].default_thinking_token_budget",
        "models: [{id: smart, default_max_tokens: 5, default_thinking_token_budget: «5}]",
    ),
    Bad(
        "CFG-15",
        "not_one_of models[smart].usage_attribution",
        "models: [{id: smart, usage_attribution: «caller}]",
    ),
    Bad(
        "CFG-14",
        "long_context_budget models[smart].providers[p1]",
        NODE + "      - {$P1, adapter: a1, long_context_capacity: 2, total_context_tokens: 19}\n"
        "models: [{id: smart, context_window_tokens: 10, providers: {«p1: m}}]",
    ),
    Bad(
        "PROF-6",
        "mapping_conflict models[smart].providers[p1]",
        """
        protocol_profiles: {x: {base: openai, model_mapping: {smart: other}}}
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [$ADAPTER]
            providers: [{$P1, adapter: a1, profile: x}]
        models: [{id: smart, providers: {p1: «m}}]
        """,
    ),
    Bad(
        "CFG-8",
        "legacy_queue_conflict nodes[n1].providers[p2]",
        NODE + "      - {$P1, adapter: a1, max_queue: 3}\n      - «{$P2, adapter: a1}\n"
        "models: [{id: smart, providers: {p1: m, p2: m}}]",
    ),
    Bad(
        "CFG-8",
        "out_of_range nodes[n1].providers[p1].max_queue",
        NODE + "      - {$P1, adapter: a1, max_queue: «-1}",
    ),
]


@pytest.mark.parametrize("row", cases(MODELS))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
