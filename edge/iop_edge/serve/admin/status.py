"""What `GET /status` shows, put together from the config that runs and from live views.

Pure: it takes views and gives shapes. Every collection is present, and ordered by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from iop_edge.config.effective import EffectiveConfig, ModelGroup, Node
from iop_edge.pool.pool import QueueStatus
from iop_edge.pool.resource import ResourceStatus
from iop_edge.refresh.receipt import LastError
from iop_edge.runtime.node_hub import NodeView
from iop_edge.runtime.snapshot import RuntimeSnapshot
from iop_edge.serve.admin.shapes import (
    DrainingRegistry,
    EdgeStatus,
    GenerationFacts,
    ModelStatus,
    NodeStatus,
    ProviderStatus,
)
from iop_shared.ids import ProviderId, Resource


class PoolViews(Protocol):
    """What status needs of the dispatcher."""

    def queue_status(self) -> QueueStatus: ...
    def loads(self) -> Mapping[Resource, ResourceStatus]: ...


def edge_status(
    snapshot: RuntimeSnapshot,
    *,
    started_at: datetime,
    last_error: LastError | None,
    pending_restart_paths: tuple[str, ...],
    nodes: Sequence[NodeView],
    pool: PoolViews,
) -> EdgeStatus:
    """The whole status, of one generation."""
    config = snapshot.config
    views = {view.node_id: view for view in nodes}
    providers = _providers(config, pool.loads())
    usable = {one.provider_id for one in providers if one.status in ("available", "busy")}
    return EdgeStatus(
        generation=snapshot.generation,
        started_at=started_at,
        config_digest=snapshot.config_digest,
        last_error=last_error,
        pending_restart_paths=pending_restart_paths,
        queue=pool.queue_status(),
        nodes=tuple(
            _node(node, views.get(node.id)) for node in sorted(config.nodes, key=lambda one: one.id)
        ),
        providers=providers,
        models=tuple(
            _model(group, usable) for group in sorted(config.models, key=lambda one: one.id)
        ),
    )


def _node(node: Node, view: NodeView | None) -> NodeStatus:
    return NodeStatus(
        node_id=node.id,
        alias=node.alias,
        agent_kind=node.agent_kind,
        concurrency=node.runtime.concurrency,
        connected=view is not None and view.state == "connected",
        state=view.state if view else "disconnected",
        session=view.session if view else None,
        generation=GenerationFacts(
            desired=view.desired if view else None,
            sent=view.sent if view else None,
            acknowledged=view.acknowledged if view else None,
            effective=view.effective if view else None,
        ),
        last_failure=view.last_failure if view else None,
        active_runs=view.active_runs if view else 0,
        draining_registries=tuple(
            DrainingRegistry(generation=generation, active_runs=runs, deadline_ms=deadline_ms)
            for generation, runs, deadline_ms in (view.draining if view else ())
        ),
    )


def _providers(
    config: EffectiveConfig, loads: Mapping[Resource, ResourceStatus]
) -> tuple[ProviderStatus, ...]:
    resources = (
        Resource(node.id, provider.id) for node in config.nodes for provider in node.providers
    )
    return tuple(
        _provider(loads[resource])
        for resource in sorted(resources, key=lambda one: one.provider_id)
    )


def _provider(load: ResourceStatus) -> ProviderStatus:
    return ProviderStatus(
        provider_id=load.resource.provider_id,
        node_id=load.resource.node_id,
        status=load.status,
        health=load.health,
        capacity=load.capacity,
        in_flight=load.in_flight,
        long_context_capacity=load.long_context_capacity,
        long_in_flight=load.long_in_flight,
        priority=load.priority,
    )


def _model(group: ModelGroup, usable: set[ProviderId]) -> ModelStatus:
    return ModelStatus(
        model_id=group.id,
        display_name=group.display_name,
        providers=tuple(sorted(group.providers)),
        available_providers=sum(provider_id in usable for provider_id in group.providers),
        context_window_tokens=group.context_window_tokens,
    )
