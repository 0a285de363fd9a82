"""A registry: everything one payload means on this node. Built whole or not at all.

It decides what a payload's adapters and providers are; it never knows which registry serves, nor
when it stops (that is `core.generations`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from iop.runtime_pb2 import NodeConfigPayload
from iop_node.adapters.base import Adapter
from iop_node.adapters.kinds import KINDS, Build
from iop_node.adapters.refused import PayloadRefused
from iop_node.runtime.resolve import NodeSources, resolve_upstream
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, ProviderId

__all__ = ["AdapterRegistry", "PayloadRefused", "Provider"]

DEFAULT_DRAIN_S = 600.0


class Provider(Struct, frozen=True, kw_only=True):
    """A capacity-owning resource of this node, as the payload names it."""

    id: ProviderId
    adapter: AdapterKey
    capacity: int


class _Member(Struct, frozen=True):
    adapter: Adapter
    fingerprint: bytes


class AdapterRegistry:
    """The adapters and providers of one generation. Immutable once built; compared by identity."""

    def __init__(
        self,
        generation: int,
        members: Mapping[AdapterKey, _Member],
        providers: Mapping[ProviderId, Provider],
        drain_s: float,
        fresh: frozenset[AdapterKey],
    ) -> None:
        self.generation = generation
        self.providers = providers
        self.drain_s = drain_s
        """How long the registry that this one replaces may finish its runs, in seconds."""
        self._members = members
        self._fresh = fresh

    @classmethod
    def build(
        cls,
        payload: NodeConfigPayload,
        sources: NodeSources,
        kinds: Mapping[str, Build] = KINDS,
    ) -> AdapterRegistry:
        """A registry of fresh adapters, none of them started. Blocks on the file system.

        Raises PayloadRefused, the codes of `resolve_upstream` and: unknown_adapter_kind,
        unknown_adapter, duplicate_id, bad_payload.
        """
        members: dict[AdapterKey, _Member] = {}
        for config in payload.adapters:
            key = AdapterKey(config.key)
            if not key:
                raise PayloadRefused("bad_payload", "an adapter has no key")
            if key in members:
                raise PayloadRefused("duplicate_id", f"two adapters have the key {key}")
            kind = config.WhichOneof("kind")
            build = None if kind is None else kinds.get(kind)
            if kind is None or build is None:
                raise PayloadRefused(
                    "unknown_adapter_kind",
                    f"adapter {key} is of a kind that this node does not know; it knows "
                    + ", ".join(sorted(kinds)),
                )
            resolved = resolve_upstream(config, getattr(config, kind).upstream, sources)
            members[key] = _Member(build(config, resolved.spec), resolved.fingerprint)
        return cls(
            payload.generation,
            MappingProxyType(members),
            MappingProxyType(_providers(payload, members)),
            # A deadline of 0 is one: runs of a replaced registry end at once.
            payload.runtime.drain_deadline_ms / 1000
            if payload.HasField("runtime")
            else DEFAULT_DRAIN_S,
            frozenset(members),
        )

    def sharing(self, alive: Iterable[AdapterRegistry]) -> AdapterRegistry:
        """The same registry, with adapters of equal config carried over from those alive (NODE-3).

        Synchronous, so that nothing can stop between the choice and the hold that follows it.
        """
        known = {
            (key, member.fingerprint): member
            for registry in alive
            for key, member in registry._members.items()
        }
        members: dict[AdapterKey, _Member] = {}
        fresh: set[AdapterKey] = set()
        for key, member in self._members.items():
            carried = known.get((key, member.fingerprint))
            members[key] = carried or member
            if carried is None:
                fresh.add(key)
        return AdapterRegistry(
            self.generation,
            MappingProxyType(members),
            self.providers,
            self.drain_s,
            frozenset(fresh),
        )

    async def start(self) -> None:
        """Start the adapters that were not carried over. All of them, or none stays started.

        Raises PayloadRefused(adapter_start_failed).
        """
        started: list[Adapter] = []
        try:
            for key in sorted(self._fresh):
                adapter = self._members[key].adapter
                try:
                    await adapter.start()
                except Exception as error:
                    raise PayloadRefused(
                        "adapter_start_failed",
                        f"adapter {key} could not be started ({type(error).__name__})",
                    ) from error
                started.append(adapter)
        except BaseException:
            for adapter in reversed(started):
                await adapter.stop()
            raise

    @property
    def held(self) -> tuple[Adapter, ...]:
        """What stops with the last registry that holds it."""
        return tuple(member.adapter for member in self._members.values())

    @property
    def fresh(self) -> frozenset[AdapterKey]:
        """The keys of the adapters that were not carried over."""
        return self._fresh

    def adapter(self, key: AdapterKey) -> Adapter:
        """Raises Fault(no_provider) for a key that this generation does not have."""
        member = self._members.get(key)
        if member is None:
            raise Fault(
                Code.NO_PROVIDER,
                f"generation {self.generation} of the node has no adapter {key}",
            )
        return member.adapter

    @property
    def adapters(self) -> Mapping[AdapterKey, Adapter]:
        return {key: member.adapter for key, member in self._members.items()}

    def __repr__(self) -> str:
        adapters = ", ".join(self._members) or "none"
        providers = ", ".join(self.providers) or "none"
        return (
            f"AdapterRegistry(generation {self.generation}: "
            f"adapters {adapters}; providers {providers})"
        )


def _providers(
    payload: NodeConfigPayload, members: Mapping[AdapterKey, _Member]
) -> dict[ProviderId, Provider]:
    providers: dict[ProviderId, Provider] = {}
    for resource in payload.providers:
        provider_id = ProviderId(resource.id)
        if not provider_id:
            raise PayloadRefused("bad_payload", "a provider has no id")
        if provider_id in providers:
            raise PayloadRefused("duplicate_id", f"two providers have the id {provider_id}")
        # A disabled provider may stand without its adapter (CFG-12): it is then named by none.
        if resource.adapter and AdapterKey(resource.adapter) not in members:
            raise PayloadRefused(
                "unknown_adapter",
                f"provider {provider_id} names adapter {resource.adapter}, which the payload "
                "does not hold",
            )
        providers[provider_id] = Provider(
            id=provider_id, adapter=AdapterKey(resource.adapter), capacity=resource.capacity
        )
    return providers
