"""The shapes of the admin surface's JSON (interface, section 3), for those who send and read it.

Every collection is present, and ordered by id. Light to import: the commands use it too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from iop_edge.config.effective import Health
from iop_edge.pool.pool import QueueStatus
from iop_edge.refresh.receipt import LastError, NodeReport, RefreshResult
from iop_shared.ids import Generation, ModelId, NodeId, ProviderId

ProviderState = Literal["available", "busy", "unavailable", "disabled"]


class GenerationFacts(Struct, frozen=True, kw_only=True):
    """The four facts of a node's configuration (REF-9).

    `sent` is None without a session. The other two are None until a session of this edge process
    said so; of a node that is away they are what it last said.
    """

    desired: Generation | None
    sent: Generation | None
    acknowledged: Generation | None
    effective: Generation | None


class DrainingRegistry(Struct, frozen=True, kw_only=True):
    generation: Generation
    active_runs: int
    deadline_ms: int
    """Milliseconds that are left of its drain deadline."""


class NodeStatus(Struct, frozen=True, kw_only=True):
    """`connected` means that the node's providers are candidates (POOL-1)."""

    node_id: NodeId
    alias: str | None
    agent_kind: str
    concurrency: int
    connected: bool
    state: Literal["disconnected", "joining", "connected"]
    session: int | None
    generation: GenerationFacts
    last_failure: str | None
    active_runs: int
    draining_registries: tuple[DrainingRegistry, ...]


class ProviderStatus(Struct, frozen=True, kw_only=True):
    provider_id: ProviderId
    node_id: NodeId
    status: ProviderState
    health: Health | Literal["disabled"]
    capacity: int
    in_flight: int
    long_context_capacity: int | None
    long_in_flight: int
    priority: int


class ModelStatus(Struct, frozen=True, kw_only=True):
    model_id: ModelId
    display_name: str | None
    providers: tuple[ProviderId, ...]
    available_providers: int
    """How many of them are available or busy."""
    context_window_tokens: int | None


class EdgeStatus(Struct, frozen=True, kw_only=True):
    generation: Generation
    started_at: datetime
    config_digest: str
    last_error: LastError | None
    pending_restart_paths: tuple[str, ...]
    queue: QueueStatus
    nodes: tuple[NodeStatus, ...]
    providers: tuple[ProviderStatus, ...]
    models: tuple[ModelStatus, ...]


class Readiness(Struct, frozen=True, kw_only=True):
    """`waiting_for` names what is missing; it is empty exactly where the edge is ready."""

    ready: bool
    waiting_for: tuple[str, ...]


class PlanLine(Struct, frozen=True):
    """The first line of a streamed refresh: what has been put in effect, and who is told."""

    plan: RefreshResult
    waiting_for: tuple[NodeId, ...]


class NodeLine(Struct, frozen=True):
    """One line of a streamed refresh: a node has answered."""

    node: NodeReport


class ResultLine(Struct, frozen=True):
    """The last line of a streamed refresh."""

    result: RefreshResult
