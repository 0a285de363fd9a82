"""The section `openai`: the HTTP ingress, routes, principals, provider tokens, the gate."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from iop_edge.config import effective
from iop_edge.config.document.sections import TlsDocument
from iop_edge.config.document.types import (
    Address,
    BodyBytes,
    Connections,
    FilterTimeoutMs,
    HeaderBytes,
    HeaderName,
    Id,
    IdOrBlank,
    Recoveries,
    Runes,
    Scheme,
    Sha256Hex,
    SnapshotBytes,
    StructType,
    Text,
    TimeoutMs,
)


class LimitsDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What one caller may ask of the listener."""

    EFFECTIVE: ClassVar[StructType] = effective.IngressLimits

    max_body_bytes: Annotated[BodyBytes | None, Meta(description="Largest request body.")] = None
    max_header_bytes: Annotated[
        HeaderBytes | None, Meta(description="Largest head of a request.")
    ] = None
    receive_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="Time in which a whole request must have arrived.")
    ] = None
    write_timeout_ms: Annotated[
        TimeoutMs | None, Meta(description="A caller that accepts no byte for this long is cut.")
    ] = None
    max_connections: Annotated[
        Connections | None, Meta(description="Most connections at once.")
    ] = None


class RouteDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A legacy route: one model id straight to adapter and target, outside the pool (CFG-28)."""

    EFFECTIVE: ClassVar[StructType] = effective.ModelRoute

    id: Annotated[Id, Meta(description="Id of the route; unique.")]
    model: Annotated[Id, Meta(description="Model id that callers name; no `models[].id`.")]
    adapter: Annotated[Id, Meta(description="Adapter key on the node.")]
    target: Annotated[Id, Meta(description="Name that the upstream itself uses.")]
    node: Annotated[
        Id | None, Meta(description="Node; needed where several nodes hold the adapter key.")
    ] = None
    provider_id: Annotated[
        Id | None, Meta(description="Attribution of its usage; by default `openai.provider_id`.")
    ] = None


class PrincipalTokenDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Who may call. The token itself is never written, only its sha256 (CFG-17)."""

    EFFECTIVE: ClassVar[StructType] = effective.PrincipalToken
    REFUSED: ClassVar[dict[str, str]] = {
        "token": "the token itself is never written; write its sha256 as `token_hash_sha256` "
        "(`iop-edge token new` prints both)"
    }

    token_ref: Annotated[Id, Meta(description="Name of this token, the key of its usage; unique.")]
    token_hash_sha256: Annotated[
        Sha256Hex,
        Meta(description="sha256 of the token's UTF-8 bytes, 64 hex digits; unique."),
    ]
    principal_ref: Annotated[Id, Meta(description="Whom the token belongs to.")]
    principal_alias: Annotated[Text | None, Meta(description="A name for people.")] = None


class ProviderAuthDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Passing on a provider token that the caller brings along (CFG-18)."""

    EFFECTIVE: ClassVar[StructType] = effective.ProviderAuth

    enabled: Annotated[bool | None, Meta(description="Forward the caller's token.")] = None
    from_header: Annotated[
        HeaderName | None, Meta(description="Header of the caller that holds it.")
    ] = None
    target_header: Annotated[
        HeaderName | None, Meta(description="Header of the upstream request that receives it.")
    ] = None
    scheme: Annotated[Scheme | None, Meta(description="Put before it, with a space.")] = None
    required: Annotated[
        bool | None, Meta(description="A request without it is refused with 401.")
    ] = None


class SelectorDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Adjusts a filter where all that it names matches: environment, model group, model, provider.

    The most specific selector wins: provider over model over model group over environment.
    """

    REFUSED: ClassVar[dict[str, str]] = dict.fromkeys(
        ("caller", "agent"),
        "a filter cannot be adjusted for a caller or an agent, only for an environment, a model "
        "group, a served model or a provider",
    )

    environment: Annotated[
        effective.GateEnvironment | None, Meta(description="Where `environment` is this one.")
    ] = None
    model_group: Annotated[Id | None, Meta(description="For this `models[].id`.")] = None
    model: Annotated[Id | None, Meta(description="For this served model.")] = None
    provider: Annotated[Id | None, Meta(description="For this provider.")] = None
    enabled: Annotated[bool | None, Meta(description="Switches the filter there.")] = None
    enforcement: Annotated[
        effective.GateEnforcement | None, Meta(description="Its enforcement there.")
    ] = None


class FilterDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One filter of the gate. A filter that is not listed does not exist."""

    EFFECTIVE: ClassVar[StructType] = effective.GateFilter

    filter: Annotated[effective.GateFilterName, Meta(description="Which filter; each once.")]
    enabled: Annotated[bool | None, Meta(description="Whether it works.")] = None
    enforcement: Annotated[
        effective.GateEnforcement | None,
        Meta(description="`blocking` holds and repairs; `observe_only` only looks."),
    ] = None
    capability: Annotated[
        Id | None,
        Meta(
            description="Capability a provider needs where the filter blocks; by default "
            "`output.<filter>`."
        ),
    ] = None
    hold_evidence_runes: Annotated[
        Runes | None, Meta(description="Characters kept as evidence.")
    ] = None
    timeout_ms: Annotated[FilterTimeoutMs | None, Meta(description="Longest hold.")] = None
    selectors: Annotated[
        list[SelectorDocument] | None, Meta(description="Adjustments; the most specific wins.")
    ] = None


class GateDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The stream evidence gate: recovery within one request (CFG-19)."""

    EFFECTIVE: ClassVar[StructType] = effective.StreamEvidenceGate

    enabled: Annotated[bool | None, Meta(description="Whether the gate owns streams.")] = None
    max_request_fault_recovery: Annotated[
        Recoveries | None,
        Meta(description="Most recoveries of one request; 0 switches every recovery off."),
    ] = None
    max_strategy_fault_recovery: Annotated[
        Recoveries | None,
        Meta(
            description="Most recoveries by one strategy; by default the request's maximum, 0 "
            "switches each strategy off."
        ),
    ] = None
    max_ingress_snapshot_bytes: Annotated[
        SnapshotBytes | None,
        Meta(description="Largest request that is kept for a repair; 0 means 16 MiB."),
    ] = None
    environment: Annotated[
        effective.GateEnvironment | None, Meta(description="What selectors match against.")
    ] = None
    filters: Annotated[list[FilterDocument] | None, Meta(description="The filters there are.")] = (
        None
    )


class OpenAIDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The HTTP ingress for callers, OpenAI- and Anthropic-compatible."""

    EFFECTIVE: ClassVar[StructType] = effective.OpenAI

    enabled: Annotated[bool | None, Meta(description="Listen for callers.")] = None
    listen: Annotated[Address | None, Meta(description="`host:port`; port 0 picks one.")] = None
    tls: Annotated[TlsDocument | None, Meta(description="Serve TLS with these files.")] = None
    insecure: Annotated[
        bool | None,
        Meta(description="Allow plaintext off loopback; the check and the start warn of it."),
    ] = None
    limits: Annotated[LimitsDocument | None, Meta(description="What a caller may ask.")] = None
    provider_id: Annotated[
        IdOrBlank | None,
        Meta(description="Attribution of the single-target fallback; needed when enabled."),
    ] = None
    adapter: Annotated[Id | None, Meta(description="Single-target fallback: the adapter key.")] = (
        None
    )
    target: Annotated[
        Id | None, Meta(description="Single-target fallback: the upstream's name of the model.")
    ] = None
    node: Annotated[
        Id | None,
        Meta(description="Single-target fallback: the node, where several hold the key."),
    ] = None
    model_routes: Annotated[list[RouteDocument] | None, Meta(description="Legacy routes.")] = None
    principal_tokens: Annotated[
        list[PrincipalTokenDocument] | None,
        Meta(description="Callers' tokens; without any, only loopback may be listened on."),
    ] = None
    provider_auth: Annotated[
        ProviderAuthDocument | None, Meta(description="Provider tokens that callers bring.")
    ] = None
    stream_evidence_gate: Annotated[
        GateDocument | None, Meta(description="Recovery of streams within a request.")
    ] = None
