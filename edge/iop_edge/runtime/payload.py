"""What a node is sent: its part of the effective config as a NodeConfigPayload (REF-8, PROF-8).

A payload holds adapters with resolved profiles, provider resources and `runtime`; never enabled
flags, priorities, model groups or queue policy. It is the same for configs that mean the same:
everything without an order of its own is sorted. Secrets that the edge resolves are in it as
values, so a payload is never logged; those that the node resolves are in it as references.
"""

from __future__ import annotations

from collections.abc import Mapping

from iop.runtime_pb2 import (
    AdapterConfig,
    AnthropicAdapterConfig,
    NodeConfigPayload,
    NodeRuntimeConfig,
    OllamaAdapterConfig,
    OpenAICompatAdapterConfig,
    ProbeConfig,
    ProtocolProfile,
    ProviderResource,
    UpstreamConfig,
    UpstreamHeader,
)
from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    HeaderValue,
    Node,
    Provider,
    SecretRef,
)
from iop_edge.config.vault import Vault
from iop_shared import profiles
from iop_shared.ids import Generation, NodeId

Payloads = Mapping[NodeId, NodeConfigPayload]


def build_payloads(config: EffectiveConfig, vault: Vault) -> dict[NodeId, NodeConfigPayload]:
    """Each configured node's payload, without a generation yet."""
    drain_deadline_ms = config.server.drain_deadline_ms
    return {NodeId(node.id): _payload(node, drain_deadline_ms, vault) for node in config.nodes}


def changed_nodes(before: Payloads, after: Payloads) -> frozenset[NodeId]:
    """The nodes of `after` whose payload differs from the one before, generations aside."""
    return frozenset(
        node_id
        for node_id, payload in after.items()
        if node_id not in before or not _is_same(before[node_id], payload)
    )


def stamped(before: Payloads, after: Payloads, generation: Generation) -> Payloads:
    """`after` with generations: the new one for a payload that changed, else the one it had."""
    changed = changed_nodes(before, after)
    result = {}
    for node_id, payload in after.items():
        if node_id in changed:
            result[node_id] = NodeConfigPayload()
            result[node_id].CopyFrom(payload)
            result[node_id].generation = generation
        else:
            result[node_id] = before[node_id]
    return result


def _is_same(one: NodeConfigPayload, other: NodeConfigPayload) -> bool:
    return (
        one.runtime == other.runtime
        and one.adapters == other.adapters
        and one.providers == other.providers
    )


def _payload(node: Node, drain_deadline_ms: int, vault: Vault) -> NodeConfigPayload:
    adapters = sorted((one for one in node.adapters if one.enabled), key=lambda one: one.key)
    sent_keys = {adapter.key for adapter in adapters}
    providers = sorted(node.providers, key=lambda one: one.id)
    return NodeConfigPayload(
        adapters=[_adapter(adapter, vault) for adapter in adapters],
        # A provider is sent whether enabled or not, so that enabling it asks nothing of the node
        # (POOL-8). One whose adapter is not there cannot be enabled without a restart (CFG-12).
        providers=[_provider(one, one.adapter) for one in providers if one.adapter in sent_keys],
        runtime=NodeRuntimeConfig(
            concurrency=node.runtime.concurrency, drain_deadline_ms=drain_deadline_ms
        ),
    )


def _provider(provider: Provider, adapter: str | None) -> ProviderResource:
    return ProviderResource(
        id=provider.id,
        adapter=adapter or "",
        models=sorted(provider.models),
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
    )


def _adapter(adapter: Adapter, vault: Vault) -> AdapterConfig:
    upstream = _upstream(adapter, vault)
    label = adapter.provider_label or ""
    match adapter.type:
        case "openai_compat":
            return AdapterConfig(
                key=adapter.key,
                openai_compat=OpenAICompatAdapterConfig(
                    upstream=upstream, profile=_profile(adapter.profile), provider=label
                ),
            )
        case "anthropic":
            return AdapterConfig(
                key=adapter.key,
                anthropic=AnthropicAdapterConfig(
                    upstream=upstream, profile=_profile(adapter.profile), provider=label
                ),
            )
        case "ollama":
            return AdapterConfig(
                key=adapter.key,
                ollama=OllamaAdapterConfig(
                    upstream=upstream, provider=label, context_size=adapter.context_size or 0
                ),
            )


def _upstream(adapter: Adapter, vault: Vault) -> UpstreamConfig:
    return UpstreamConfig(
        base_url=adapter.base_url,
        headers=[
            _header(header, vault) for header in sorted(adapter.headers, key=lambda one: one.name)
        ],
        ca_file=adapter.ca_file or "",
        allow_link_local=adapter.allow_link_local,
        connect_timeout_ms=adapter.connect_timeout_ms,
        first_byte_timeout_ms=adapter.first_byte_timeout_ms,
        idle_timeout_ms=adapter.idle_timeout_ms,
        request_timeout_ms=adapter.request_timeout_ms,
        probe=ProbeConfig(
            path=adapter.probe.path or "",
            interval_ms=adapter.probe.interval_ms,
            timeout_ms=adapter.probe.timeout_ms,
            failures=adapter.probe.failures,
        ),
    )


def _header(header: HeaderValue, vault: Vault) -> UpstreamHeader:
    value = header.value
    match value:
        case str():
            return UpstreamHeader(name=header.name, scheme=header.scheme, text=value)
        case SecretRef(node_env=str(name)):
            return UpstreamHeader(name=header.name, scheme=header.scheme, node_env=name)
        case SecretRef(node_file=str(path)):
            return UpstreamHeader(name=header.name, scheme=header.scheme, node_file=path)
        case SecretRef():
            text = vault.value(value)
            return UpstreamHeader(name=header.name, scheme=header.scheme, text=text)


def _profile(profile: profiles.ProtocolProfile | None) -> ProtocolProfile | None:
    if profile is None:
        return None
    sent = ProtocolProfile(
        id=profile.id,
        driver=profile.driver,
        operation_urls={str(name): url for name, url in profile.operation_urls.items()},
        capabilities=sorted(profile.capabilities),
        model_mapping=profile.model_mapping,
    )
    sent.extensions.update(profile.extensions)
    return sent
