"""The effective config: what an edge runs by. Immutable, complete, and free of secret values.

Every default is filled in, every legacy form is normalized, every reference is resolved to the
thing it names, and every secret is a *reference* (its value lives in the vault beside the
snapshot). Two files that mean the same give equal effective configs, so a diff of two of these is
a diff of meaning.

These types say nothing about how a file is written; that is `document`. They carry the refresh
class of every path (REF-6); the nearest enclosing mark counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct, field

from iop_edge.config.reload_class import Derived, Reload
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, RouteId, Target
from iop_shared.profiles import Capability, Driver, Operation, ProtocolProfile

Restart = Reload.RESTART
Live = Reload.LIVE

Health = Literal["healthy", "degraded", "unavailable", "unknown"]
UsageAttribution = Literal["provider", "model_group"]
AdapterType = Literal["openai_compat", "anthropic", "ollama"]
Category = Literal["api", "local_inference"]
LifecycleCapability = Literal["status", "load", "unload"]
GateEnforcement = Literal["blocking", "observe_only"]
GateFilterName = Literal["repeat_guard", "schema_gate", "provider_error"]
GateEnvironment = Literal["dev", "dev-corp"]


class SecretRef(Struct, frozen=True, gc=False):
    """Where a secret is to be found; never the secret. Exactly one field is set.

    `env` and `file` are resolved on the edge, `node_env` and `node_file` on the node; `sha256`
    is the digest of a node token that the edge itself need not know.
    """

    env: str | None = None
    file: str | None = None
    sha256: str | None = None
    node_env: str | None = None
    node_file: str | None = None


class Tls(Struct, frozen=True, kw_only=True, gc=False):
    cert_file: str
    key_file: str
    client_ca_file: str | None = None


class EdgeIdentity(Struct, frozen=True, kw_only=True, gc=False):
    id: str = "edge"
    name: str | None = None
    advertise: str | None = None


class Server(Struct, frozen=True, kw_only=True, gc=False):
    """The gRPC listener for nodes and SubmitRun."""

    listen: str = "127.0.0.1:50051"
    tls: Tls | None = None
    insecure: bool = False
    drain_deadline_ms: int = 600_000
    grpc_health: bool = True
    grpc_reflection: bool = False


class Bootstrap(Struct, frozen=True, kw_only=True, gc=False):
    listen: str = "127.0.0.1:18080"
    advertise: str | None = None
    artifact_dir: str = "/var/lib/iop/artifacts"
    tls: Tls | None = None
    insecure: bool = False


class Admin(Struct, frozen=True, kw_only=True, gc=False):
    """`host:port` on loopback, or `unix:/path` (SEC-2)."""

    listen: str = "127.0.0.1:18081"


class Logging(Struct, frozen=True, kw_only=True, gc=False):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class Metrics(Struct, frozen=True, kw_only=True, gc=False):
    listen: str = "127.0.0.1:9464"


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    file: str | None = None


class Telemetry(Struct, frozen=True, kw_only=True, gc=False):
    otlp_endpoint: str | None = None


class Console(Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = False
    listen: str = "127.0.0.1:18082"


class ControlPlane(Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = False
    url: str | None = None


class A2A(Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = False
    listen: str = "127.0.0.1:18083"


class QueuePolicy(Struct, frozen=True, kw_only=True, gc=False):
    """The one queue of the provider pool (CFG-7). `queue_timeout_ms` 0 means no timeout."""

    max_queue: int = 16
    queue_timeout_ms: int = 30_000


class IngressLimits(Struct, frozen=True, kw_only=True, gc=False):
    max_body_bytes: int = 33_554_432
    max_header_bytes: int = 65_536
    receive_timeout_ms: int = 10_000
    write_timeout_ms: int = 60_000
    max_connections: int = 10_000


class ModelRoute(Struct, frozen=True, kw_only=True, gc=False):
    """A legacy route: model name to adapter + target on one node, outside the pool (CFG-28)."""

    id: RouteId
    model: ModelId
    adapter: AdapterKey
    target: Target
    node: NodeId
    provider_id: str | None = None


class PrincipalToken(Struct, frozen=True, kw_only=True, gc=False):
    token_ref: str
    token_hash_sha256: str
    principal_ref: str
    principal_alias: str | None = None


class ProviderAuth(Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = False
    from_header: str = "X-IOP-Provider-Authorization"
    target_header: str = "Authorization"
    scheme: str = "Bearer"
    required: bool = True


class GateSelector(Struct, frozen=True, kw_only=True, gc=False):
    """Adjusts one filter where every dimension that it names matches (CFG-19).

    At least one of the four is named. `model_group` is a `models[].id`, `model` a served model.
    """

    environment: GateEnvironment | None = None
    model_group: ModelId | None = None
    model: Target | None = None
    provider: ProviderId | None = None
    enabled: bool | None = None
    enforcement: GateEnforcement | None = None

    @property
    def specificity(self) -> tuple[bool, bool, bool, bool]:
        """Of two selectors that match, the one with the greater specificity wins.

        Decided by the most specific dimension first: provider, model, model_group, environment.
        No two selectors of one filter that can match the same target are equal in it and differ in
        what they adjust.
        """
        return (
            self.provider is not None,
            self.model is not None,
            self.model_group is not None,
            self.environment is not None,
        )


class GateFilter(Struct, frozen=True, kw_only=True, gc=False):
    filter: GateFilterName
    enabled: bool = True
    enforcement: GateEnforcement = "blocking"
    capability: str
    hold_evidence_runes: int = 500
    timeout_ms: int = 5_000
    selectors: tuple[GateSelector, ...] = ()


class StreamEvidenceGate(Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = False
    max_request_fault_recovery: int = 3
    max_strategy_fault_recovery: int = 3
    max_ingress_snapshot_bytes: int = 16_777_216
    environment: GateEnvironment = "dev"
    filters: tuple[GateFilter, ...] = ()


class OpenAI(Struct, frozen=True, kw_only=True, gc=False):
    """The HTTP ingress for callers, OpenAI- and Anthropic-compatible."""

    enabled: bool = False
    listen: str = "127.0.0.1:8080"
    tls: Tls | None = None
    insecure: bool = False
    limits: IngressLimits = IngressLimits()
    provider_id: str | None = None
    adapter: AdapterKey | None = None
    target: Target | None = None
    node: NodeId | None = None
    model_routes: tuple[ModelRoute, ...] = ()
    principal_tokens: tuple[PrincipalToken, ...] = ()
    provider_auth: ProviderAuth = ProviderAuth()
    stream_evidence_gate: StreamEvidenceGate = StreamEvidenceGate()


class ModelGroup(Struct, frozen=True, kw_only=True, gc=False):
    """One external model id and the providers that serve it (CFG-15).

    `providers` maps provider id to the name that the provider's upstream uses.
    """

    id: ModelId
    display_name: str | None = None
    providers: Mapping[ProviderId, Target]
    context_window_tokens: int | None = None
    default_max_tokens: int | None = None
    min_max_tokens: int | None = None
    default_thinking_token_budget: int | None = None
    usage_attribution: UsageAttribution = "provider"
    chars_per_token: float | None = None


class Probe(Struct, frozen=True, kw_only=True, gc=False):
    path: str | None = None
    interval_ms: int = 10_000
    timeout_ms: int = 2_000
    failures: int = 3


class HeaderValue(Struct, frozen=True, kw_only=True, gc=False):
    """One upstream header. `value` is a literal only where the header is no secret (CFG-2)."""

    name: str
    value: str | SecretRef
    scheme: str = ""


class Adapter(Struct, frozen=True, kw_only=True, gc=False):
    """One named adapter instance of a node: how to talk to one upstream.

    `profile` is resolved: driver, complete operation URLs, capabilities, mapping. It is None for
    adapter types that have none (`ollama`). `provider_label` is CFG-13's label.
    """

    key: AdapterKey
    type: AdapterType
    enabled: bool = True
    base_url: str
    headers: tuple[HeaderValue, ...] = ()
    provider_label: str | None = None
    profile: Annotated[ProtocolProfile | None, Derived.DERIVED] = None
    context_size: int | None = None
    ca_file: str | None = None
    allow_link_local: bool = False
    connect_timeout_ms: int = 5_000
    first_byte_timeout_ms: int = 300_000
    idle_timeout_ms: int = 120_000
    request_timeout_ms: int = 600_000
    probe: Probe = Probe()


class Provider(Struct, frozen=True, kw_only=True, gc=False):
    """One capacity-owning resource under one node (CFG-10).

    `adapter` is always the key of one of the node's adapters. It is None only for a disabled
    provider whose reference could not be resolved (CFG-12).
    """

    id: ProviderId
    type: str
    category: Category
    adapter: AdapterKey | None
    profile: str | None = None
    models: tuple[Target, ...]
    capacity: Annotated[int, Live]
    long_context_capacity: Annotated[int | None, Live] = None
    total_context_tokens: Annotated[int | None, Live] = None
    priority: Annotated[int, Live] = 0
    enabled: Annotated[bool, Live] = True
    health: Health = "unknown"
    lifecycle_capabilities: tuple[LifecycleCapability, ...] = ()


class NodeRuntime(Struct, frozen=True, kw_only=True, gc=False):
    concurrency: Annotated[int, Live] = 0


class Node(Struct, frozen=True, kw_only=True, gc=False):
    id: NodeId
    alias: str | None = None
    agent_kind: str = "node"
    token: SecretRef
    runtime: NodeRuntime = NodeRuntime()
    adapters: tuple[Adapter, ...] = ()
    providers: tuple[Provider, ...] = ()


class ProfileAuth(Struct, frozen=True, kw_only=True, gc=False):
    """The header that carries an upstream's credential. Without `value` nothing is sent."""

    header: str | None = None
    scheme: str = ""
    value: SecretRef | None = None


class CatalogProfile(Struct, frozen=True, kw_only=True, gc=False):
    """A custom profile with everything of its bases filled in (PROF-2), before it meets an
    adapter: operations are still paths, and its own base URL is only a fallback (CFG-26)."""

    base: str | None = None
    driver: Driver
    base_url: str | None = None
    operations: Mapping[Operation, str]
    auth: ProfileAuth = ProfileAuth()
    capabilities: frozenset[Capability]
    model_mapping: Mapping[str, str]
    extensions: Mapping[str, Any]


class EffectiveConfig(Struct, frozen=True, kw_only=True, gc=False):
    """The whole. Collections keyed by id are tuples in the file's order; ids are unique."""

    edge: Annotated[EdgeIdentity, Restart] = EdgeIdentity()
    server: Annotated[Server, Restart] = Server()
    bootstrap: Annotated[Bootstrap, Restart] = Bootstrap()
    admin: Annotated[Admin, Restart] = Admin()
    logging: Annotated[Logging, Restart] = Logging()
    metrics: Annotated[Metrics, Restart] = Metrics()
    usage: Annotated[Usage, Restart] = Usage()
    telemetry: Annotated[Telemetry, Restart] = Telemetry()
    console: Annotated[Console, Restart] = Console()
    control_plane: Annotated[ControlPlane, Restart] = ControlPlane()
    a2a: Annotated[A2A, Restart] = A2A()
    long_context_threshold_tokens: Annotated[int, Live] = 100_000
    provider_pool: Annotated[QueuePolicy, Live] = QueuePolicy()
    openai: Annotated[OpenAI, Restart] = OpenAI()
    protocol_profiles: Annotated[Mapping[str, CatalogProfile], Restart] = field(
        default_factory=dict
    )
    models: Annotated[tuple[ModelGroup, ...], Live] = ()
    nodes: Annotated[tuple[Node, ...], Restart] = ()
