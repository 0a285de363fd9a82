"""What any value of the config must look like (CFG-3, CFG-4).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import Bad, assert_told, cases

SHAPES = [
    Bad("CFG-3", "unknown_key edge.nmae", "edge: {«nmae: x}"),
    Bad("CFG-3", "unknown_key sevrer", "«sevrer: {}"),
    Bad("CFG-3", "not_a_mapping edge", "edge: «5"),
    Bad("CFG-3", "bad_format edge.name", 'edge: {name: «"a\\ab"}'),
    Bad("CFG-3", "bad_format edge.name", 'edge: {name: «"\\e[31m"}'),
    Bad("CFG-3", "unknown_key models[0].idd", "models: [{«idd: m, providers: {}}]"),
    Bad(
        "CFG-3",
        "missing_key models[0]\nretired_key nodes[n1].mode",
        "models: [«{providers: {}}]\nnodes: [{id: n1, token: $TOKEN, «mode: x}]",
    ),
    Bad("CFG-3", "not_a_list nodes", "«nodes: {}"),
    Bad("CFG-3", "not_a_mapping nodes[0]", "nodes: [«5]"),
    Bad("CFG-3", "quote_it edge.name", "edge: {name: «true}"),
    Bad("CFG-3", "quote_it edge.name", "edge: {name: «12}"),
    Bad("CFG-3", "quote_it edge.name", "edge: {name: «1.5}"),
    Bad("CFG-3", "not_text edge.name", "edge:\n  «name: [x]"),
    Bad("CFG-3", "empty_text edge.name", 'edge: {name: «""}'),
    Bad("CFG-3", "bad_format edge.name", 'edge: {name: «"  "}'),
    Bad("CFG-3", "bad_format edge.id", 'edge: {id: «"a\\nb"}'),
    Bad("CFG-3", "bad_format edge.id", 'edge: {id: «"a\\n"}'),
    Bad("CFG-3", "not_a_boolean server.grpc_health", "server: {grpc_health: «yes}"),
    Bad("CFG-3", "not_a_boolean server.grpc_health", 'server: {grpc_health: «"true"}'),
    Bad("CFG-3", "not_a_boolean server.grpc_health", "server: {grpc_health: «1}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «1e3}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", 'provider_pool: {max_queue: «"3"}'),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «003}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «3.0}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «true}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «.nan}"),
    Bad("CFG-3", "not_a_number provider_pool.max_queue", "provider_pool: {max_queue: «1e309}"),
    Bad("CFG-3", "out_of_range provider_pool.max_queue", "provider_pool: {max_queue: «1000001}"),
    Bad(
        "CFG-3",
        "out_of_range provider_pool.max_queue",
        "provider_pool: {max_queue: «99999999999999999999}",
    ),
    Bad(
        "CFG-3",
        "out_of_range models[m].chars_per_token",
        "models: [{id: m, chars_per_token: «.nan}]",
    ),
    Bad(
        "CFG-3",
        "out_of_range models[m].chars_per_token",
        "models: [{id: m, chars_per_token: «.inf}]",
    ),
    Bad(
        "CFG-3", "out_of_range models[m].chars_per_token", "models: [{id: m, chars_per_token: «-1}]"
    ),
    Bad("CFG-3", "missing_key models[0]", "models: [«{}]"),
    Bad("CFG-3", "missing_key models[0].id", "models: [{id: «null}]"),
    Bad("CFG-3", "not_one_of logging.level", "logging: {level: «inof}"),
    Bad("CFG-3", "quote_it logging.level", "logging: {level: «1}"),
    Bad("CFG-3", 'bad_format models["m\\u200b"].id', 'models: [{id: m}, {id: «"m\\u200b"}]'),
    Bad("CFG-3", 'bad_format models["m\\u202e"].id', 'models: [{id: m}, {id: «"m\\u202e"}]'),
    Bad("CFG-3", "duplicate_id models[m].id", "models: [{id: m}, {id: «m}]"),
    Bad("CFG-3", "confusable_id models[M].id", "models: [{id: m}, {id: «M}]"),
    Bad("CFG-3", "confusable_id models[ﬁ].id", "models: [{id: fi}, {id: «ﬁ}]"),
    Bad(
        "CFG-3",
        "confusable_id models[e\u0301].id",
        "models: [{id: \u00e9}, {id: «e\u0301}]",
    ),
    Bad("CFG-4", 'unknown_key models["a b"].x', "models: [{id: a b, «x: 1}]"),
    Bad("CFG-4", 'unknown_key models["a[b]"].x', 'models: [{id: "a[b]", «x: 1}]'),
    Bad("CFG-4", "missing_key models[0]\nunknown_key models[0].x", "models: [«{«x: 1}]"),
]


@pytest.mark.parametrize("row", cases(SHAPES))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
