"""A lab config in its effective form, with something at every path that can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from iop_edge.config.effective import (
    A2A,
    Adapter,
    Bootstrap,
    CatalogProfile,
    Console,
    ControlPlane,
    EdgeIdentity,
    EffectiveConfig,
    GateFilter,
    GateSelector,
    HeaderValue,
    ModelGroup,
    ModelRoute,
    Node,
    NodeRuntime,
    OpenAI,
    PrincipalToken,
    ProfileAuth,
    Provider,
    SecretRef,
    Server,
    StreamEvidenceGate,
    Telemetry,
    Tls,
    Usage,
)
from iop_edge.refresh.shape import Keyed, Record, Shape, Table, effective_shape, rows
from iop_shared.profiles import ProtocolProfile

TLS = Tls(cert_file="/etc/iop/tls.crt", key_file="/etc/iop/tls.key", client_ca_file="/etc/ca.crt")

CATALOG_PROFILE = CatalogProfile(
    base="vllm",
    driver="openai_chat",
    base_url="http://127.0.0.1:8000",
    operations={"models": "/v1/models"},
    auth=ProfileAuth(header="Authorization", scheme="Bearer", value=SecretRef(env="KEY")),
    capabilities=frozenset({"models", "chat"}),
    model_mapping={"smart": "Qwen/Qwen3-32B"},
    extensions={"flag": True, "nested": {"api_key": "canary-extension"}},
)

PROFILE = ProtocolProfile(
    id="lab_vllm",
    driver="openai_chat",
    operation_urls={"models": "http://127.0.0.1:8000/v1/models"},
    capabilities=frozenset({"models", "chat"}),
    model_mapping={"smart": "Qwen/Qwen3-32B"},
    extensions={"flag": True, "nested": {"api_key": "canary-extension"}},
)


def node(node_id: str, provider_id: str) -> Node:
    return Node(
        id=node_id,
        alias=f"rack-{node_id}",
        token=SecretRef(env=f"TOKEN_{node_id.upper().replace('-', '_')}"),
        runtime=NodeRuntime(concurrency=8),
        adapters=(
            Adapter(
                key="main",
                type="openai_compat",
                base_url="http://127.0.0.1:8000",
                headers=(
                    HeaderValue(name="X-Team", value="lab"),
                    HeaderValue(name="Authorization", value=SecretRef(env="KEY"), scheme="Bearer"),
                ),
                provider_label="vllm",
                profile=PROFILE,
                context_size=8192,
                ca_file="/etc/ca.crt",
            ),
        ),
        providers=(
            Provider(
                id=provider_id,
                type="vllm",
                category="local_inference",
                adapter="main",
                profile="lab_vllm",
                models=("Qwen/Qwen3-32B", "small"),
                capacity=8,
                long_context_capacity=2,
                total_context_tokens=262_144,
                lifecycle_capabilities=("status", "load"),
            ),
        ),
    )


@pytest.fixture(scope="session")
def lab() -> EffectiveConfig:
    return EffectiveConfig(
        edge=EdgeIdentity(id="edge-1", name="Lab", advertise="edge.example:50051"),
        server=Server(tls=TLS),
        bootstrap=Bootstrap(tls=TLS),
        usage=Usage(file="/var/lib/iop/usage.jsonl"),
        telemetry=Telemetry(otlp_endpoint="http://collector:4317"),
        console=Console(enabled=False),
        control_plane=ControlPlane(url="http://control.example"),
        a2a=A2A(enabled=False),
        openai=OpenAI(
            enabled=True,
            tls=TLS,
            provider_id="lab",
            adapter="main",
            target="small",
            node="gpu-a",
            model_routes=(
                ModelRoute(id="legacy", model="old", adapter="main", target="small", node="gpu-a"),
            ),
            principal_tokens=(
                PrincipalToken(token_ref="ci", token_hash_sha256="a" * 64, principal_ref="team-ci"),
            ),
            stream_evidence_gate=StreamEvidenceGate(
                filters=(
                    GateFilter(
                        filter="repeat_guard",
                        enabled=True,
                        enforcement="blocking",
                        capability="output.repeat_guard",
                        hold_evidence_runes=500,
                        timeout_ms=5000,
                        selectors=(
                            GateSelector(provider="p-a", enabled=False),
                            GateSelector(model="small", enabled=True),
                        ),
                    ),
                )
            ),
        ),
        protocol_profiles={"lab_vllm": CATALOG_PROFILE},
        models=(
            ModelGroup(id="smart", providers={"p-a": "Qwen/Qwen3-32B", "p-b": "small"}),
            ModelGroup(id="other", providers={"p-b": "small"}),
        ),
        nodes=(node("gpu-a", "p-a"), node("gpu-b", "p-b")),
    )


@pytest.fixture(scope="session")
def touch() -> Callable[[EffectiveConfig, str], EffectiveConfig]:
    """Change a config at the first path that fits a pattern, and nowhere else."""
    return lambda config, pattern: touched(effective_shape(), config, pattern)


def touched(shape: Shape, value: Any, pattern: str) -> Any:
    match shape:
        case Record(at, _, fields, _):
            for name, inner in fields:
                if any(row.pattern == pattern for row in rows(inner)):
                    changed = touched(inner, getattr(value, name), pattern)
                    return structs.replace(value, **{name: changed})
            raise AssertionError(f"{at} does not lead to {pattern}")
        case Keyed(at, _, _, entry):
            first, rest = value[:1], value[1:]
            if not first or pattern == f"{at}[]":
                return rest
            return (touched(entry, first[0], pattern), *rest)
        case Table(at, _, entry):
            if not value or pattern == f"{at}[]":
                return {name: value[name] for name in sorted(value)[1:]}
            return {**value, min(value): touched(entry, value[min(value)], pattern)}
        case _:
            return other(value)


def other(value: Any) -> Any:
    match value:
        case SecretRef():
            return SecretRef(file="/run/secrets/other")
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}-other"
        case None:
            return 7
        case tuple() | frozenset():
            return type(value)(list(value)[1:])
        case _:
            raise AssertionError(f"no other value for a {type(value).__name__}")
