"""The section `nodes`: machines, the adapters on them, and the providers that own capacity."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from iop_edge.config import effective
from iop_edge.config.document.secrets import SecretDocument
from iop_edge.config.document.types import (
    Concurrency,
    FilePath,
    HeaderName,
    Id,
    Label,
    LongSlots,
    OptionalTimeoutMs,
    Priority,
    ProbeFailures,
    ProbeIntervalMs,
    ProbePath,
    QueueLength,
    Slots,
    StructType,
    Text,
    TimeoutMs,
    Tokens,
    TotalTokens,
    Url,
)

ProviderType = Literal[
    "openai_compat",
    "anthropic",
    "ollama",
    "openai",
    "vllm",
    "sglang",
    "llama_cpp",
    "lm_studio",
    "seulgivibe_claude",
    "seulgivibe_openai",
]

HeaderText = Annotated[
    str,
    Meta(
        max_length=8192,
        pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*$(?!\n)",
        extra={"wants": "one line of text, or a reference such as {env: NAME}"},
    ),
]

_HEADERS = (
    "Headers of every upstream request. Those that hold credentials take a reference such as "
    "{env: NAME} or {node_env: NAME}."
)


class ProbeDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Asks the upstream whether it is well. It can lower the declared health, never raise it."""

    EFFECTIVE: ClassVar[StructType] = effective.Probe

    path: Annotated[ProbePath | None, Meta(description="GET this path; without it, no probe.")] = (
        None
    )
    interval_ms: Annotated[ProbeIntervalMs | None, Meta(description="Between two probes.")] = None
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Longest wait for an answer.")] = None
    failures: Annotated[
        ProbeFailures | None, Meta(description="In a row, until the upstream counts as down.")
    ] = None


class AdapterDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One named adapter instance: how to talk to one upstream (CFG-9)."""

    EFFECTIVE: ClassVar[StructType] = effective.Adapter

    key: Annotated[Id, Meta(description="Key of the instance; unique within its node.")]
    type: Annotated[effective.AdapterType, Meta(description="Kind of upstream.")]
    enabled: Annotated[bool | None, Meta(description="A disabled one cannot be named.")] = None
    base_url: Annotated[
        Url | None, Meta(description="Where the upstream is; by default the profile's.")
    ] = None
    headers: Annotated[
        dict[HeaderName, HeaderText | SecretDocument] | None, Meta(description=_HEADERS)
    ] = None
    context_size: Annotated[
        Tokens | None, Meta(description="Context to ask of the upstream (`ollama`: num_ctx).")
    ] = None
    ca_file: Annotated[
        FilePath | None, Meta(description="Authority of the upstream's certificate, on the node.")
    ] = None
    allow_link_local: Annotated[
        bool | None, Meta(description="Allow a link-local address in base_url.")
    ] = None
    connect_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Longest wait for a connection.")
    ] = None
    first_byte_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Longest wait for the first byte of an answer.")
    ] = None
    idle_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Longest silence within an answer.")
    ] = None
    request_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Longest duration of one request in all.")
    ] = None
    probe: Annotated[ProbeDocument | None, Meta(description="Health probe of the upstream.")] = None


class ProviderDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One capacity-owning resource (CFG-10).

    It names an adapter of its node, or it carries the provider-first fields `base_url` (or
    `endpoint`), `headers`, `context_size`, `request_timeout_ms`, from which an adapter under its
    own id is made. `provider` may stand in both forms.
    """

    EFFECTIVE: ClassVar[StructType] = effective.Provider

    id: Annotated[Id, Meta(description="Id; unique in the whole config.")]
    type: Annotated[ProviderType, Meta(description="Kind of upstream, which must fit the adapter.")]
    category: Annotated[effective.Category, Meta(description="Kind of resource.")]
    models: Annotated[
        list[Id], Meta(min_length=1, description="Served models: names the upstream itself uses.")
    ]
    capacity: Annotated[Slots, Meta(description="Requests at once.")]
    adapter: Annotated[
        Id | None, Meta(description="Key of an enabled adapter of the same node.")
    ] = None
    profile: Annotated[
        Id | None, Meta(description="Protocol profile; by default the one of the type.")
    ] = None
    long_context_capacity: Annotated[
        LongSlots | None,
        Meta(
            description="Long requests at once, each in an ordinary slot too; 0: none. Left out: "
            "they take ordinary slots only."
        ),
    ] = None
    total_context_tokens: Annotated[
        TotalTokens | None,
        Meta(
            description="Context of the whole provider; at least window times "
            "long_context_capacity."
        ),
    ] = None
    priority: Annotated[Priority | None, Meta(description="Lower wins among equally busy.")] = None
    enabled: Annotated[bool | None, Meta(description="Whether it takes part in dispatch.")] = None
    health: Annotated[effective.Health | None, Meta(description="Declared health.")] = None
    lifecycle_capabilities: Annotated[
        list[effective.LifecycleCapability] | None,
        Meta(description="What can be asked of its lifecycle."),
    ] = None
    provider: Annotated[
        Text | None, Meta(description="Label of the upstream in the node's adapter config.")
    ] = None
    endpoint: Annotated[Url | None, Meta(description="Provider-first: same as base_url.")] = None
    base_url: Annotated[Url | None, Meta(description="Provider-first: the upstream.")] = None
    headers: Annotated[
        dict[HeaderName, HeaderText | SecretDocument] | None,
        Meta(description=f"Provider-first. {_HEADERS}"),
    ] = None
    context_size: Annotated[
        Tokens | None, Meta(description="Provider-first: context to ask of the upstream.")
    ] = None
    request_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Provider-first: longest duration of one request.")
    ] = None
    max_queue: Annotated[
        QueueLength | None, Meta(description="Legacy; read only without `provider_pool` (CFG-8).")
    ] = None
    queue_timeout_ms: Annotated[
        OptionalTimeoutMs | None,
        Meta(description="Legacy; read only without `provider_pool` (CFG-8)."),
    ] = None


class RuntimeDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Legacy metadata of a node."""

    EFFECTIVE: ClassVar[StructType] = effective.NodeRuntime

    concurrency: Annotated[
        Concurrency | None, Meta(description="Shown in status; never used for admission.")
    ] = None


class NodeDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One machine that dials this edge."""

    EFFECTIVE: ClassVar[StructType] = effective.Node

    id: Annotated[Id, Meta(description="Id; unique.")]
    token: Annotated[SecretDocument, Meta(description="What the node proves itself with.")]
    alias: Annotated[Text | None, Meta(description="A name for people.")] = None
    agent_kind: Annotated[Label | None, Meta(description="A label.")] = None
    runtime: Annotated[RuntimeDocument | None, Meta(description="Legacy metadata.")] = None
    adapters: Annotated[
        list[AdapterDocument] | None, Meta(description="Ways to talk to upstreams.")
    ] = None
    providers: Annotated[
        list[ProviderDocument] | None, Meta(description="Resources with capacity.")
    ] = None
