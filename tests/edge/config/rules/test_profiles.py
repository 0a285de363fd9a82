# ruff: noqa: E501 - a row reads best with its text on one line
"""Protocol profiles (PROF-1…7).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, Bad, assert_told, cases

PROFILES = [
    Bad("PROF-2", "unknown_base protocol_profiles[x].base", "protocol_profiles: {x: {base: «vlm}}"),
    Bad("PROF-2", "profile_cycle protocol_profiles[x].base", "protocol_profiles: {x: {base: «x}}"),
    Bad(
        "PROF-2",
        "profile_cycle protocol_profiles[c].base",
        "protocol_profiles: {a: {base: b}, b: {base: c}, c: {base: «a}}",
    ),
    Bad("PROF-2", "missing_key protocol_profiles[x]", "protocol_profiles:\n  «x: {}"),
    Bad(
        "CFG-20",
        "bad_header protocol_profiles[x].auth.header",
        "protocol_profiles: {x: {base: vllm, auth: {header: «Host}}}",
    ),
    Bad(
        "PROF-2",
        "built_in_profile protocol_profiles[vllm]",
        "protocol_profiles:\n  «vllm: {base: openai}",
    ),
    Bad(
        "PROF-2",
        "confusable_id protocol_profiles[vLLM]",
        "protocol_profiles:\n  «vLLM: {base: openai}",
    ),
    Bad(
        "PROF-2",
        "capability_unfit protocol_profiles[x].capabilities[1]",
        "protocol_profiles: {x: {base: vllm, capabilities: [chat, «messages]}}",
    ),
    Bad(
        "PROF-2",
        "operation_unfit protocol_profiles[x].driver",
        "protocol_profiles: {x: {base: openai_responses, driver: «anthropic_messages, capabilities: []}}",
    ),
    Bad(
        "PROF-3",
        "operation_unfit protocol_profiles[x].operations[messages]",
        "protocol_profiles: {x: {base: vllm, operations: {«messages: /v1/messages}}}",
    ),
    Bad(
        "PROF-3",
        "not_one_of protocol_profiles[x].operations[embed]",
        "protocol_profiles: {x: {base: vllm, operations: {«embed: /v1/x}}}",
    ),
    Bad(
        "PROF-4",
        "not_one_of protocol_profiles[x].capabilities[0]",
        "protocol_profiles: {x: {base: vllm, capabilities: [«vision]}}",
    ),
    Bad(
        "PROF-1",
        "not_one_of protocol_profiles[x].driver",
        "protocol_profiles: {x: {driver: «grpc}}",
    ),
    Bad(
        "PROF-5",
        "bad_format protocol_profiles[x].operations[models]",
        "protocol_profiles: {x: {base: vllm, operations: {models: «v1/models}}}",
    ),
    Bad(
        "PROF-5",
        "bad_url protocol_profiles[x].operations[models]",
        "protocol_profiles: {x: {base: vllm, operations: {models: «'https://a:b@h/v1/models'}}}",
    ),
    Bad(
        "PROF-5",
        "bad_url protocol_profiles[x].base_url",
        "protocol_profiles: {x: {base: vllm, base_url: «'https://h/?a=b'}}",
    ),
    Bad(
        "PROF-7",
        "unknown_profile nodes[n1].providers[p1].profile",
        NODE + "      - {$P1, adapter: a1, profile: «vlm}",
    ),
    Bad(
        "PROF-7",
        "profile_unfit nodes[n1].providers[p].profile",
        NODE
        + "      - {id: p, type: ollama, category: api, capacity: 1, models: [m], adapter: o1,\n"
        "         profile: «vllm}",
    ),
    Bad(
        "PROF-7",
        "profile_unfit nodes[n1].providers[p].profile",
        NODE
        + "      - {id: p, type: anthropic, category: api, capacity: 1, models: [m], adapter: c1,\n"
        "         profile: «vllm}",
    ),
    Bad(
        "CFG-3",
        "out_of_range protocol_profiles[x].extensions[a][b]",
        "protocol_profiles: {x: {base: vllm, extensions: {a: {b: «.nan}}}}",
    ),
    Bad(
        "CFG-3",
        "out_of_range protocol_profiles[x].extensions[a][0]",
        "protocol_profiles: {x: {base: vllm, extensions: {a: [«9007199254740993]}}}",
    ),
]


@pytest.mark.parametrize("row", cases(PROFILES))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
