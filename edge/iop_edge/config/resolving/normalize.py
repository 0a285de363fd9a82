"""The document to the effective config: every room in its order."""

from __future__ import annotations

from typing import NamedTuple

from iop_edge.config import effective
from iop_edge.config.document import Document, ProfileDocument
from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.resolving.catalog import Catalog
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.listeners import check_listeners, tls_of
from iop_edge.config.resolving.models import resolve_models, served_by_id
from iop_edge.config.resolving.nodes import resolve_nodes
from iop_edge.config.resolving.openai import resolve_openai
from iop_edge.config.resolving.queue import QueueSource, resolve_queue
from iop_edge.config.resolving.secrets import SecretSite


class Normalized(NamedTuple):
    """The config, and where its secrets are asked for. Valid only if nothing was reported."""

    config: EffectiveConfig
    sites: list[SecretSite]
    queue_source: QueueSource


def _has_own_secret(profile: ProfileDocument) -> bool:
    """Whether the credential stands in this profile. One of its base is asked for there alone."""
    return profile.auth is not None and profile.auth.value is not None


def normalize(document: Document, context: Context) -> Normalized:
    """Fill in, resolve and check everything. Reports into the context and raises nothing."""
    check_listeners(document, context)
    profiles = document.protocol_profiles or {}
    catalog = Catalog(profiles, context)
    sites = [
        SecretSite(profile.auth.value, ("protocol_profiles", profile_id, "auth", "value"))
        for profile_id, profile in catalog.custom().items()
        if profile.auth.value is not None and _has_own_secret(profiles[profile_id])
    ]
    nodes = resolve_nodes(document.nodes or [], catalog, sites, context)
    models = resolve_models(document.models or [], served_by_id(nodes), context)
    queue = resolve_queue(document, context)
    config = fill(
        EffectiveConfig,
        document,
        edge=fill(effective.EdgeIdentity, document.edge),
        server=fill(effective.Server, document.server, tls=tls_of(document.server)),
        bootstrap=fill(effective.Bootstrap, document.bootstrap, tls=tls_of(document.bootstrap)),
        admin=fill(effective.Admin, document.admin),
        logging=fill(effective.Logging, document.logging),
        metrics=fill(effective.Metrics, document.metrics),
        usage=fill(effective.Usage, document.usage),
        telemetry=fill(effective.Telemetry, document.telemetry),
        console=fill(effective.Console, document.console),
        control_plane=fill(effective.ControlPlane, document.control_plane),
        a2a=fill(effective.A2A, document.a2a),
        provider_pool=queue.policy,
        openai=resolve_openai(document, nodes, context),
        protocol_profiles=catalog.custom(),
        models=models,
        nodes=nodes,
    )
    return Normalized(config, sites, queue.source)
