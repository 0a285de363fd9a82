"""The catalog: which resource may serve which model, read out of one effective config.

Decides nothing about a moment: it knows capacities and abilities, never how many slots are taken
or which node is connected. Immutable; a refresh builds a new one and replaces it whole (REF-7).

Two configs that mean the same give equal catalogs: resources stand in the order of their ids, not
of the file, so writing the same thing in another order changes no decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    Health,
    ModelGroup,
    ModelRoute,
    Node,
    Provider,
    UsageAttribution,
)
from iop_edge.gate.filters import GATED_OPERATIONS, admission_needs
from iop_edge.gate.options import GateOptions
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, Resource, RouteId, Target
from iop_shared.profiles import Capability, Operation

Path = Literal["tunnel", "normalized"]
"""How a run reaches its upstream (POOL-14): the caller's own bytes, or rendered by the node."""

_CAPABILITY_OF: Mapping[Operation, Capability] = MappingProxyType(
    {
        "models": "models",
        "chat_completions": "chat",
        "responses": "responses",
        "messages": "messages",
        "count_tokens": "count_tokens",
    }
)
"""The capability that an operation needs beside those which the request needs (POOL-14)."""

_NORMALIZABLE: frozenset[Operation | None] = frozenset(
    {None, "chat_completions", "responses", "messages"}
)
"""Operations that the normalized path can serve. None is SubmitRun."""

_OLLAMA_NATIVE: frozenset[Capability] = frozenset({"models", "chat", "streaming", "tool_calling"})
"""What Ollama's own API can do. Its adapter has no profile to say so."""


class Abilities(Struct, frozen=True, kw_only=True):
    """What one provider can do, whichever model it serves (POOL-14).

    `operations` are those it takes unchanged: its profile has the operation and declares the
    capability that belongs to it. `runs_normalized` is true where its adapter renders a chat of
    its own. `is_known` is false for a disabled provider whose adapter could not be resolved
    (CFG-12): it is never a candidate, but nothing says that it could not serve.
    """

    operations: frozenset[Operation] = frozenset()
    capabilities: frozenset[Capability] = frozenset()
    runs_normalized: bool = False
    is_known: bool = True

    def path_for(
        self, operation: Operation | None, capabilities: frozenset[Capability]
    ) -> Path | None:
        """The path on which such a request would run; None where it cannot run at all.

        Unknown abilities are taken for able, so that the answer is "not now" and not "never".
        """
        if not self.is_known:
            return "normalized" if operation is None else "tunnel"
        if not capabilities <= self.capabilities:
            return None
        if operation is not None and operation in self.operations:
            return "tunnel"
        if self.runs_normalized and operation in _NORMALIZABLE:
            return "normalized"
        return None

    def lacks_for_gate(
        self, operation: Operation | None, gate_needs: frozenset[Capability]
    ) -> frozenset[Capability]:
        """What the stream evidence gate asks for and this provider does not have (GATE-3).

        Nothing for an operation that is not the gate's. Unknown abilities lack nothing.
        """
        if operation not in GATED_OPERATIONS or not self.is_known:
            return frozenset()
        return gate_needs - self.capabilities


class Attribution(Struct, frozen=True):
    """Whom the usage of a run is counted for (POOL-10, POOL-11). Known to the edge alone.

    `id` is None only for a direct route while neither it nor `openai` names a provider id.
    """

    kind: UsageAttribution
    id: str | None


class ResourceSpec(Struct, frozen=True, kw_only=True):
    """One owner of capacity, as configured.

    `long_slots`: None, long requests take ordinary slots only; 0, it takes no long request; N, at
    most N at once (CFG-14; never more than `capacity`). `adapter` is None only where
    `abilities.is_known` is false.
    """

    resource: Resource
    adapter: AdapterKey | None
    capacity: int
    long_slots: int | None
    priority: int
    is_enabled: bool
    health: Health
    abilities: Abilities


class Candidate(Struct, frozen=True):
    """One resource as one model sees it.

    `gate_needs` are the capabilities that the gate's blocking filters ask for at this very target
    (GATE-3). They stay as they are while a request waits: the gate changes with a restart alone
    (REF-11).
    """

    resource: Resource
    target: Target
    attribution: Attribution
    gate_needs: frozenset[Capability] = frozenset()


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One model group. `candidates` stand in the order of their resources."""

    id: ModelId
    candidates: tuple[Candidate, ...]
    context_window_tokens: int | None
    usage_attribution: UsageAttribution
    chars_per_token: float | None


class DirectTarget(Struct, frozen=True, kw_only=True):
    """Where a route or the fallback sends a request: past the pool, without a slot (CFG-28).

    `route_id` is None for the fallback of `openai.adapter` and `openai.target`. `gate_needs` are
    those of a candidate, without a model group and a provider for a selector to match.
    """

    node_id: NodeId
    adapter: AdapterKey
    target: Target
    attribution: Attribution
    abilities: Abilities
    route_id: RouteId | None
    gate_needs: frozenset[Capability] = frozenset()


class Catalog(Struct, frozen=True, kw_only=True):
    """Everything that admission reads from the config, queue policy apart."""

    resources: Mapping[Resource, ResourceSpec]
    """In the order of (node id, provider id)."""
    models: Mapping[ModelId, ModelSpec]
    long_context_threshold_tokens: int
    routes: Mapping[ModelId, DirectTarget]
    """By the external model id that the route maps."""
    fallback: DirectTarget | None

    @classmethod
    def from_config(cls, config: EffectiveConfig) -> Catalog:
        """Read a validated config. Raises KeyError or ValueError on one that is not."""
        specs = sorted(_resources(config.nodes), key=lambda spec: spec.resource)
        resources = {spec.resource: spec for spec in specs}
        owner = {resource.provider_id: resource for resource in resources}
        nodes = {node.id: node for node in config.nodes}
        openai = config.openai
        gate = GateOptions.freeze(openai.stream_evidence_gate, None)
        return cls(
            resources=MappingProxyType(resources),
            models=MappingProxyType(
                {group.id: _model(group, owner, gate) for group in config.models}
            ),
            long_context_threshold_tokens=config.long_context_threshold_tokens,
            routes=MappingProxyType(
                {
                    route.model: _route(route, nodes, openai.provider_id, gate)
                    for route in openai.model_routes
                }
            ),
            fallback=_fallback(config, gate),
        )


def _resources(nodes: tuple[Node, ...]) -> Iterator[ResourceSpec]:
    for node in nodes:
        adapters = {adapter.key: adapter for adapter in node.adapters}
        for provider in node.providers:
            yield _resource(node, provider, adapters)


def _resource(
    node: Node, provider: Provider, adapters: Mapping[AdapterKey, Adapter]
) -> ResourceSpec:
    adapter = None if provider.adapter is None else adapters[provider.adapter]
    if adapter is None and provider.enabled:
        raise ValueError(f"provider {provider.id} is enabled and has no adapter")
    long_slots = provider.long_context_capacity
    return ResourceSpec(
        resource=Resource(node.id, provider.id),
        adapter=None if adapter is None else adapter.key,
        capacity=provider.capacity,
        long_slots=None if long_slots is None else min(long_slots, provider.capacity),
        priority=provider.priority,
        is_enabled=provider.enabled,
        health=provider.health,
        abilities=Abilities(is_known=False) if adapter is None else abilities_of(adapter),
    )


def abilities_of(adapter: Adapter) -> Abilities:
    """What an adapter can do. Adapters without a profile speak their upstream's own API."""
    profile = adapter.profile
    if profile is None:
        is_ollama = adapter.type == "ollama"
        return Abilities(
            capabilities=_OLLAMA_NATIVE if is_ollama else frozenset(), runs_normalized=is_ollama
        )
    capabilities = profile.capabilities
    return Abilities(
        operations=frozenset(
            operation
            for operation in profile.operation_urls
            if _CAPABILITY_OF[operation] in capabilities
        ),
        capabilities=capabilities,
        runs_normalized=adapter.type == "ollama"
        or (adapter.type == "openai_compat" and "chat" in capabilities),
    )


def _gate_needs(
    gate: GateOptions | None,
    model_group: ModelId | None,
    target: Target,
    provider_id: ProviderId | None,
) -> frozenset[Capability]:
    if gate is None:
        return frozenset()
    return admission_needs(
        gate.filters_at(model_group=model_group, target=target, provider_id=provider_id)
    )


def _model(
    group: ModelGroup, owner: Mapping[ProviderId, Resource], gate: GateOptions | None
) -> ModelSpec:
    is_by_group = group.usage_attribution == "model_group"

    def candidate(provider_id: ProviderId, target: Target) -> Candidate:
        attribution = Attribution(group.usage_attribution, group.id if is_by_group else provider_id)
        gate_needs = _gate_needs(gate, group.id, target, provider_id)
        return Candidate(owner[provider_id], target, attribution, gate_needs)

    return ModelSpec(
        id=group.id,
        candidates=tuple(
            sorted(
                (candidate(*mapping) for mapping in group.providers.items()),
                key=lambda found: found.resource,
            )
        ),
        context_window_tokens=group.context_window_tokens,
        usage_attribution=group.usage_attribution,
        chars_per_token=group.chars_per_token,
    )


def _route(
    route: ModelRoute,
    nodes: Mapping[NodeId, Node],
    default_provider_id: str | None,
    gate: GateOptions | None,
) -> DirectTarget:
    adapters = {adapter.key: adapter for adapter in nodes[route.node].adapters}
    return DirectTarget(
        node_id=route.node,
        adapter=route.adapter,
        target=route.target,
        attribution=Attribution("provider", route.provider_id or default_provider_id),
        abilities=abilities_of(adapters[route.adapter]),
        route_id=route.id,
        gate_needs=_gate_needs(gate, None, route.target, None),
    )


def _fallback(config: EffectiveConfig, gate: GateOptions | None) -> DirectTarget | None:
    openai = config.openai
    if not openai.adapter or not openai.target:
        return None
    holders = [
        (node, adapter)
        for node in config.nodes
        if openai.node in (None, node.id)
        for adapter in node.adapters
        if adapter.key == openai.adapter
    ]
    if len(holders) != 1:
        raise ValueError(
            f"openai.adapter {openai.adapter} stands on {len(holders)} nodes; one is needed"
        )
    node, adapter = holders[0]
    return DirectTarget(
        node_id=node.id,
        adapter=adapter.key,
        target=openai.target,
        attribution=Attribution("provider", openai.provider_id),
        abilities=abilities_of(adapter),
        route_id=None,
        gate_needs=_gate_needs(gate, None, openai.target, None),
    )
