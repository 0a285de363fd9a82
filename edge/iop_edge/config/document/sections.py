"""The root's small sections: identity, listeners, logs, metrics, usage, the pool's queue."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from iop_edge.config import effective
from iop_edge.config.document.types import (
    Address,
    FilePath,
    Id,
    OptionalTimeoutMs,
    QueueLength,
    StructType,
    Text,
    Url,
)

_INSECURE = "Allow plaintext off loopback; `config check` and the start then warn of it."


class TlsDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Certificate and key of a listener, as PEM files on the edge."""

    EFFECTIVE: ClassVar[StructType] = effective.Tls

    cert_file: Annotated[FilePath, Meta(description="Certificate chain, PEM.")]
    key_file: Annotated[FilePath, Meta(description="Private key, PEM.")]
    client_ca_file: Annotated[
        FilePath | None, Meta(description="Ask clients for a certificate of this authority.")
    ] = None


class EdgeDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Who this edge is."""

    EFFECTIVE: ClassVar[StructType] = effective.EdgeIdentity

    id: Annotated[Id | None, Meta(description="Id of this edge, shown in status and logs.")] = None
    name: Annotated[Text | None, Meta(description="A name for people.")] = None
    advertise: Annotated[
        Address | None, Meta(description="`host:port` that joining nodes dial.")
    ] = None


class ServerDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The gRPC listener for nodes and SubmitRun."""

    EFFECTIVE: ClassVar[StructType] = effective.Server

    listen: Annotated[Address | None, Meta(description="`host:port`; port 0 picks one.")] = None
    tls: Annotated[TlsDocument | None, Meta(description="Serve TLS with these files.")] = None
    insecure: Annotated[bool | None, Meta(description=_INSECURE)] = None
    drain_deadline_ms: Annotated[
        OptionalTimeoutMs | None,
        Meta(description="How long replaced registries and a stopping edge let runs finish."),
    ] = None
    grpc_health: Annotated[bool | None, Meta(description="Offer the gRPC health service.")] = None
    grpc_reflection: Annotated[bool | None, Meta(description="Offer gRPC reflection.")] = None


class BootstrapDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The listener that a fresh machine joins from with one pasted command."""

    EFFECTIVE: ClassVar[StructType] = effective.Bootstrap

    listen: Annotated[Address | None, Meta(description="`host:port`; port 0 picks one.")] = None
    advertise: Annotated[
        Address | None,
        Meta(description="`host:port` or URL that the join command names; by default `listen`."),
    ] = None
    artifact_dir: Annotated[
        FilePath | None, Meta(description="Directory of the wheels that nodes install.")
    ] = None
    tls: Annotated[TlsDocument | None, Meta(description="Serve TLS with these files.")] = None
    insecure: Annotated[bool | None, Meta(description=_INSECURE)] = None


class AdminDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The operator's own listener: refresh, status, config."""

    EFFECTIVE: ClassVar[StructType] = effective.Admin

    listen: Annotated[
        Address | None,
        Meta(description="`host:port` on loopback, or `unix:/path`; nothing else is allowed."),
    ] = None


class LoggingDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The edge's own logs, on standard error."""

    EFFECTIVE: ClassVar[StructType] = effective.Logging

    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        Meta(description="The least severe level that is written."),
    ] = None
    format: Annotated[
        Literal["json", "console"] | None, Meta(description="JSON lines, or text for people.")
    ] = None


class MetricsDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The Prometheus listener."""

    EFFECTIVE: ClassVar[StructType] = effective.Metrics

    listen: Annotated[Address | None, Meta(description="`host:port`; port 0 picks one.")] = None


class UsageDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Usage records, one for each run."""

    EFFECTIVE: ClassVar[StructType] = effective.Usage

    file: Annotated[FilePath | None, Meta(description="Append JSON lines to this file.")] = None


class TelemetryDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Traces; needs the extra `iop[otel]`."""

    EFFECTIVE: ClassVar[StructType] = effective.Telemetry

    otlp_endpoint: Annotated[Url | None, Meta(description="OTLP/HTTP collector for traces.")] = None


class ConsoleDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A web console. Not built yet: enabling it is a warning."""

    EFFECTIVE: ClassVar[StructType] = effective.Console

    enabled: Annotated[bool | None, Meta(description="Has no effect yet.")] = None
    listen: Annotated[Address | None, Meta(description="`host:port`.")] = None


class ControlPlaneDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A control plane to report to. Not built yet: enabling it is a warning."""

    EFFECTIVE: ClassVar[StructType] = effective.ControlPlane

    enabled: Annotated[bool | None, Meta(description="Has no effect yet.")] = None
    url: Annotated[Url | None, Meta(description="Where it is.")] = None


class A2ADocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An agent-to-agent listener. Not built yet: enabling it is a warning."""

    EFFECTIVE: ClassVar[StructType] = effective.A2A

    enabled: Annotated[bool | None, Meta(description="Has no effect yet.")] = None
    listen: Annotated[Address | None, Meta(description="`host:port`.")] = None


class ProviderPoolDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The one queue that all model groups share (CFG-7)."""

    EFFECTIVE: ClassVar[StructType] = effective.QueuePolicy

    max_queue: Annotated[
        QueueLength | None,
        Meta(description="Most requests that wait in the whole pool; 0 means the default."),
    ] = None
    queue_timeout_ms: Annotated[
        OptionalTimeoutMs | None,
        Meta(description="Longest wait of one request; an explicit 0 means no limit."),
    ] = None
