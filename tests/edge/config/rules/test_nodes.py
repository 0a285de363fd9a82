# ruff: noqa: E501 - a row reads best with its text on one line
"""Nodes, adapters and providers (CFG-9…12, CFG-25, CFG-26).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import NODE, Bad, assert_told, cases

NODES = [
    Bad(
        "CFG-21",
        "duplicate_id nodes[n1].id",
        "nodes:\n  - {id: n1, token: $TOKEN}\n  - {id: «n1, token: $TOKEN2}",
    ),
    Bad(
        "CFG-21",
        "bad_format nodes[n1].agent_kind",
        "nodes: [{id: n1, token: $TOKEN, agent_kind: «A b}]",
    ),
    Bad(
        "CFG-22",
        "out_of_range nodes[n1].runtime.concurrency",
        "nodes: [{id: n1, token: $TOKEN, runtime: {concurrency: «-1}}]",
    ),
    Bad(
        "CFG-21",
        "duplicate_id nodes[n1].adapters[a1].key",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters:
              - $ADAPTER
              - {key: «a1, type: ollama, base_url: "http://h"}
        """,
    ),
    Bad(
        "CFG-9",
        "not_one_of nodes[n1].adapters[x].type",
        "nodes: [{id: n1, token: $TOKEN, adapters: [{key: x, type: «vllm}]}]",
    ),
    Bad(
        "CFG-9",
        "not_one_of nodes[n1].adapters[vllm].type",
        "nodes:\n  - id: n1\n    token: $TOKEN\n    adapters: {«vllm: {base_url: 'http://h'}}",
    ),
    Bad(
        "CFG-9",
        "unknown_key nodes[n1].adapters.ollama.key",
        "nodes: [{id: n1, token: $TOKEN, adapters: {ollama: {base_url: 'http://h', «key: x}}}]",
    ),
    Bad(
        "CFG-9",
        "missing_key nodes[n1].adapters[x]",
        "nodes: [{id: n1, token: $TOKEN, adapters: [«{key: x, type: ollama}]}]",
    ),
    *(
        Bad(
            "CFG-9",
            "bad_url nodes[n1].adapters[x].base_url",
            f"nodes: [{{id: n1, token: $TOKEN, adapters: [{{key: x, type: ollama, base_url: «'{url}'}}]}}]",
        )
        for url in (
            "file:///etc/passwd",
            "ftp://h",
            "127.0.0.1:80",
            "http://user:pw@h",
            "http://user@h",
            "http://",
            "http://h:0",
            "http://h:99999",
            "http://h?key=x",
            "http://h/#x",
            "http://0x7f000001",
            "http://2130706433",
            "http://h\\\\@evil",
            "http://[::1",
            "http://exa mple"[:7] + "-bad-",
        )
    ),
    *(
        Bad(
            "CFG-9",
            "link_local nodes[n1].adapters[x].base_url",
            f"nodes: [{{id: n1, token: $TOKEN, adapters: [{{key: x, type: ollama, base_url: «'{url}'}}]}}]",
        )
        for url in (
            "http://169.254.169.254/latest",
            "http://[fe80::1]:80",
            "http://[::ffff:169.254.1.1]",
        )
    ),
    Bad(
        "CFG-10",
        "\n".join(f"missing_key nodes[n1].providers[{one}]" for one in "00000"),
        NODE + "      - ««««««{}".replace("««««««", "«" * 5),
    ),
    Bad(
        "CFG-10",
        "empty_list nodes[n1].providers[p].models",
        NODE
        + "      - {id: p, type: vllm, category: api, capacity: 1, adapter: a1,\n         «models: []}",
    ),
    Bad(
        "CFG-10",
        "quote_it nodes[n1].providers[p].models[1]",
        NODE
        + "      - {id: p, type: vllm, category: api, capacity: 1, adapter: a1, models: [a, «null]}",
    ),
    Bad(
        "CFG-10",
        "duplicate_id nodes[n1].providers[p].models[1]",
        NODE
        + "      - {id: p, type: vllm, category: api, capacity: 1, adapter: a1, models: [a, «a]}",
    ),
    Bad(
        "CFG-10",
        "out_of_range nodes[n1].providers[p].capacity",
        NODE + "      - {id: p, type: vllm, category: api, capacity: «0, adapter: a1, models: [a]}",
    ),
    Bad(
        "CFG-10",
        "out_of_range nodes[n1].providers[p1].long_context_capacity",
        NODE + "      - {$P1, adapter: a1, long_context_capacity: «-1}",
    ),
    Bad(
        "CFG-10",
        "out_of_range nodes[n1].providers[p1].priority",
        NODE + "      - {$P1, adapter: a1, priority: «-1}",
    ),
    Bad(
        "CFG-10",
        "out_of_range nodes[n1].providers[p1].total_context_tokens",
        NODE + "      - {$P1, adapter: a1, total_context_tokens: «-1}",
    ),
    Bad(
        "CFG-10",
        "not_one_of nodes[n1].providers[p1].health",
        NODE + "      - {$P1, adapter: a1, health: «fine}",
    ),
    Bad(
        "CFG-10",
        "not_one_of nodes[n1].providers[p1].lifecycle_capabilities[0]",
        NODE + "      - {$P1, adapter: a1, lifecycle_capabilities: [«reboot]}",
    ),
    Bad(
        "CFG-10",
        "duplicate_id nodes[n2].providers[p1].id",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [$ADAPTER]
            providers: [{$P1, adapter: a1}]
          - id: n2
            token: $TOKEN2
            adapters: [$ADAPTER]
            providers: [{id: «p1, type: vllm, category: api, models: [m], capacity: 1, adapter: a1}]
        """,
    ),
    Bad(
        "CFG-11",
        "unknown_adapter nodes[n1].providers[p1].adapter",
        NODE + "      - {$P1, adapter: «a2}",
    ),
    Bad("CFG-11", "missing_key nodes[n1].providers[p1]", NODE + "      - «{$P1}"),
    Bad(
        "CFG-11",
        "adapter_disabled nodes[n1].providers[p1].adapter",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [{key: a1, type: openai_compat, base_url: "http://h", enabled: false}]
            providers: [{$P1, adapter: «a1}]
        """,
    ),
    Bad(
        "CFG-11",
        "ambiguous_adapter nodes[n1].providers[p1].adapter",
        """
        nodes:
          - id: n1
            token: $TOKEN
            adapters: [$ADAPTER, {key: a2, type: openai_compat, base_url: "http://h"}]
            providers: [{$P1, adapter: «openai_compat}]
        """,
    ),
    Bad(
        "CFG-11", "type_unfit nodes[n1].providers[p1].adapter", NODE + "      - {$P1, adapter: «o1}"
    ),
    Bad(
        "CFG-11",
        "type_unfit nodes[n1].providers[p].adapter",
        NODE
        + "      - {id: p, type: anthropic, category: api, capacity: 1, models: [m], adapter: «a1}",
    ),
    Bad(
        "CFG-11",
        "adapter_key_taken nodes[n1].providers[a1].id",
        NODE
        + "      - {id: «a1, type: vllm, category: api, capacity: 1, models: [m], base_url: 'http://h'}",
    ),
    Bad(
        "CFG-12",
        "not_one_of nodes[n1].providers[p].type\nout_of_range nodes[n1].providers[p].capacity",
        NODE
        + "      - {id: p, type: «x, category: api, capacity: «0, models: [m], enabled: false}",
    ),
    Bad(
        "CFG-26",
        "endpoint_and_base_url nodes[n1].providers[p1].endpoint",
        NODE + "      - {$P1, base_url: 'http://h', «endpoint: 'http://h'}",
    ),
    *(
        Bad(
            "CFG-26",
            f"field_beside_adapter nodes[n1].providers[p1].{field}",
            NODE + f"      - {{$P1, adapter: a1, «{field}: {value}}}",
        )
        for field, value in {
            "endpoint": "'http://h'",
            "base_url": "'http://h'",
            "headers": "{}",
            "context_size": "4096",
            "request_timeout_ms": "1000",
        }.items()
    ),
    Bad(
        "CFG-25",
        "adapter_shared_unequally nodes[n1].providers[p2].adapter",
        NODE + "      - {$P1, adapter: a1, provider: x}\n      - {$P2, adapter: «a1, provider: y}",
    ),
    Bad(
        "CFG-25",
        "adapter_shared_unequally nodes[n1].providers[p].adapter",
        NODE + "      - {$P1, adapter: a1}\n"
        "      - {id: p, type: vllm, category: api, capacity: 1, models: [m], adapter: «a1}",
    ),
]


@pytest.mark.parametrize("row", cases(NODES))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
