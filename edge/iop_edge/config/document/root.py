"""The root of a config file: every section, each of which may be left out."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from iop_edge.config import effective
from iop_edge.config.document.models import ModelDocument
from iop_edge.config.document.nodes import NodeDocument
from iop_edge.config.document.openai import OpenAIDocument
from iop_edge.config.document.profiles import ProfileDocument
from iop_edge.config.document.sections import (
    A2ADocument,
    AdminDocument,
    BootstrapDocument,
    ConsoleDocument,
    ControlPlaneDocument,
    EdgeDocument,
    LoggingDocument,
    MetricsDocument,
    ProviderPoolDocument,
    ServerDocument,
    TelemetryDocument,
    UsageDocument,
)
from iop_edge.config.document.types import Id, StructType, Tokens


class Document(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The config of one IOP edge."""

    EFFECTIVE: ClassVar[StructType] = effective.EffectiveConfig

    edge: Annotated[EdgeDocument | None, Meta(description="Who this edge is.")] = None
    server: Annotated[
        ServerDocument | None, Meta(description="gRPC listener for nodes and SubmitRun.")
    ] = None
    bootstrap: Annotated[
        BootstrapDocument | None, Meta(description="Listener that fresh machines join from.")
    ] = None
    admin: Annotated[AdminDocument | None, Meta(description="Operator's listener.")] = None
    logging: Annotated[LoggingDocument | None, Meta(description="Logs.")] = None
    metrics: Annotated[MetricsDocument | None, Meta(description="Prometheus listener.")] = None
    usage: Annotated[UsageDocument | None, Meta(description="Usage records.")] = None
    telemetry: Annotated[TelemetryDocument | None, Meta(description="Traces.")] = None
    console: Annotated[ConsoleDocument | None, Meta(description="Web console, not built.")] = None
    control_plane: Annotated[
        ControlPlaneDocument | None, Meta(description="Control plane, not built.")
    ] = None
    a2a: Annotated[A2ADocument | None, Meta(description="A2A listener, not built.")] = None
    long_context_threshold_tokens: Annotated[
        Tokens | None,
        Meta(description="Estimated input tokens from which a request counts as long."),
    ] = None
    provider_pool: Annotated[ProviderPoolDocument | None, Meta(description="The pool's queue.")] = (
        None
    )
    openai: Annotated[OpenAIDocument | None, Meta(description="HTTP ingress for callers.")] = None
    protocol_profiles: Annotated[
        dict[Id, ProfileDocument] | None, Meta(description="Custom profiles by id.")
    ] = None
    models: Annotated[
        list[ModelDocument] | None, Meta(description="Model groups that callers name.")
    ] = None
    nodes: Annotated[list[NodeDocument] | None, Meta(description="Machines that serve models.")] = (
        None
    )
