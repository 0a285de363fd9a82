from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
from msgspec import Struct

from iop_edge.config.effective import EffectiveConfig, SecretRef
from iop_edge.config.reload_class import Derived, Reload
from iop_edge.refresh.diff import diff
from iop_edge.refresh.reasons import reason_for
from iop_edge.refresh.shape import ENTRY_KEYS, effective_shape, rows, shape_of

Touch = Callable[[EffectiveConfig, str], EffectiveConfig]

# What REF-3 and REF-4 say, path by path. The system itself has no such list.
LIVE_PATHS = """
long_context_threshold_tokens
provider_pool.max_queue
provider_pool.queue_timeout_ms
models[]
models[].display_name
models[].providers[]
models[].context_window_tokens
models[].default_max_tokens
models[].min_max_tokens
models[].default_thinking_token_budget
models[].usage_attribution
models[].chars_per_token
nodes[].runtime.concurrency
nodes[].providers[].capacity
nodes[].providers[].long_context_capacity
nodes[].providers[].total_context_tokens
nodes[].providers[].priority
nodes[].providers[].enabled
"""

RESTART_PATHS = """
edge.id edge.name edge.advertise
server.listen server.tls.cert_file server.tls.key_file server.tls.client_ca_file server.insecure
server.drain_deadline_ms server.grpc_health server.grpc_reflection
bootstrap.listen bootstrap.advertise bootstrap.artifact_dir bootstrap.tls.cert_file
bootstrap.tls.key_file bootstrap.tls.client_ca_file bootstrap.insecure
admin.listen logging.level logging.format metrics.listen usage.file telemetry.otlp_endpoint
console.enabled console.listen control_plane.enabled control_plane.url a2a.enabled a2a.listen
openai.enabled openai.listen openai.tls.cert_file openai.tls.key_file openai.tls.client_ca_file
openai.insecure openai.limits.max_body_bytes openai.limits.max_header_bytes
openai.limits.receive_timeout_ms openai.limits.write_timeout_ms openai.limits.max_connections
openai.provider_id openai.adapter openai.target openai.node
openai.model_routes[] openai.model_routes[].model openai.model_routes[].adapter
openai.model_routes[].target openai.model_routes[].node openai.model_routes[].provider_id
openai.principal_tokens[] openai.principal_tokens[].token_hash_sha256
openai.principal_tokens[].principal_ref openai.principal_tokens[].principal_alias
openai.provider_auth.enabled openai.provider_auth.from_header openai.provider_auth.target_header
openai.provider_auth.scheme openai.provider_auth.required
openai.stream_evidence_gate.enabled openai.stream_evidence_gate.max_request_fault_recovery
openai.stream_evidence_gate.max_strategy_fault_recovery
openai.stream_evidence_gate.max_ingress_snapshot_bytes openai.stream_evidence_gate.environment
openai.stream_evidence_gate.filters[] openai.stream_evidence_gate.filters[].enabled
openai.stream_evidence_gate.filters[].enforcement openai.stream_evidence_gate.filters[].capability
openai.stream_evidence_gate.filters[].hold_evidence_runes
openai.stream_evidence_gate.filters[].timeout_ms openai.stream_evidence_gate.filters[].selectors
protocol_profiles[] protocol_profiles[].base protocol_profiles[].driver
protocol_profiles[].base_url protocol_profiles[].operations[] protocol_profiles[].auth.header
protocol_profiles[].auth.scheme protocol_profiles[].auth.value protocol_profiles[].capabilities
protocol_profiles[].model_mapping[] protocol_profiles[].extensions[]
nodes[] nodes[].alias nodes[].agent_kind nodes[].token
nodes[].adapters[] nodes[].adapters[].type nodes[].adapters[].enabled nodes[].adapters[].base_url
nodes[].adapters[].headers[] nodes[].adapters[].headers[].value
nodes[].adapters[].headers[].scheme nodes[].adapters[].provider_label
nodes[].adapters[].context_size nodes[].adapters[].ca_file nodes[].adapters[].allow_link_local
nodes[].adapters[].connect_timeout_ms nodes[].adapters[].first_byte_timeout_ms
nodes[].adapters[].idle_timeout_ms nodes[].adapters[].request_timeout_ms
nodes[].adapters[].probe.path nodes[].adapters[].probe.interval_ms
nodes[].adapters[].probe.timeout_ms nodes[].adapters[].probe.failures
nodes[].providers[] nodes[].providers[].type nodes[].providers[].category
nodes[].providers[].adapter nodes[].providers[].profile nodes[].providers[].models
nodes[].providers[].health nodes[].providers[].lifecycle_capabilities
"""

EXPECTED = {
    **dict.fromkeys(LIVE_PATHS.split(), Reload.LIVE),
    **dict.fromkeys(RESTART_PATHS.split(), Reload.RESTART),
}


@pytest.mark.req("REF-3", "REF-4", "REF-6")
def test_every_path_has_the_class_that_the_contract_says() -> None:
    assert {row.pattern: row.reload for row in rows(effective_shape())} == EXPECTED


class Marked(Struct):
    near: Annotated[int, Reload.LIVE]
    far: int


class Unmarked(Struct):
    inner: Marked


class Enclosed(Struct):
    inner: Annotated[Marked | None, Reload.RESTART]


class Resolved(Struct):
    written: Annotated[int, Reload.LIVE]
    worked_out: Annotated[Marked | None, Derived.DERIVED]


class Holder(Struct):
    secret: SecretRef


class Holders(Struct):
    holders: Annotated[tuple[Holder, ...], Reload.RESTART]


@pytest.mark.req("REF-6")
def test_a_leaf_that_no_mark_encloses_is_refused() -> None:
    with pytest.raises(TypeError, match=r"inner\.far"):
        shape_of(Unmarked)


@pytest.mark.req("REF-6")
def test_the_nearest_enclosing_mark_wins() -> None:
    found = {row.pattern: row.reload for row in rows(shape_of(Enclosed))}
    assert found == {"inner.near": Reload.LIVE, "inner.far": Reload.RESTART}


@pytest.mark.req("REF-12", "CFG-23")
def test_a_field_that_is_worked_out_from_others_is_no_path() -> None:
    assert [row.pattern for row in rows(shape_of(Resolved))] == ["written"]


def test_a_secret_in_a_collection_without_a_key_is_refused() -> None:
    with pytest.raises(TypeError, match="holders"):
        shape_of(Holders)


@pytest.mark.parametrize("pattern", sorted(EXPECTED))
@pytest.mark.req("REF-2", "REF-3", "REF-4", "REF-12")
def test_a_change_at_any_path_is_found_alone_and_in_its_class(
    lab: EffectiveConfig, touch: Touch, pattern: str
) -> None:
    changed = touch(lab, pattern)
    changes = diff(lab, changed, same_secret=lambda _: True)
    assert len(changes) == 1
    change = changes[0]
    assert change.reload is EXPECTED[pattern]
    assert change.old != change.new
    assert (change.reason is not None) is (change.reload is Reload.RESTART)
    back = diff(changed, lab, same_secret=lambda _: True)
    assert [(one.path, one.old, one.new) for one in back] == [(change.path, change.new, change.old)]


@pytest.mark.parametrize("pattern", sorted(RESTART_PATHS.split()))
@pytest.mark.req("REF-12")
def test_every_restart_path_has_a_reason(pattern: str) -> None:
    assert reason_for(pattern).endswith(".")


def test_a_path_that_no_reason_is_known_for_is_an_error() -> None:
    with pytest.raises(KeyError):
        reason_for("nodesque.listen")


def test_every_entry_key_is_a_field_of_its_type() -> None:
    assert all(key in struct.__struct_fields__ for struct, key in ENTRY_KEYS.items())
