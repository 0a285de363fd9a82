"""What a config has from elsewhere in itself: values that were worked out and not written there.

Three places hold such a value in the same field as one that was written (CFG-26, PROF-7):
 1. an adapter's base URL, where it is that of its profile;
 2. an adapter's header, where it is the one that its profile sends;
 3. a provider's profile, where it is the one that its type stands for.
Where a path holds such a value, or nothing, both before and after, its change follows from a
change of the profile, of the provider's profile or of its type, and is told there. A value that is
written out and equals the inherited one counts as inherited: it means the same.
"""

from __future__ import annotations

from functools import cached_property

from iop_edge.config.effective import (
    Adapter,
    CatalogProfile,
    EffectiveConfig,
    HeaderValue,
    Provider,
)
from iop_edge.config.resolving.catalog import PROFILE_OF_TYPE
from iop_edge.refresh.path import ConfigPath, Entry


class Inherited:
    """The inherited values of one config."""

    def __init__(self, config: EffectiveConfig) -> None:
        self._config = config

    def holds(self, path: ConfigPath) -> bool:
        """Whether the value at this path, if there is one, comes from elsewhere."""
        match path.steps:
            case ("nodes", Entry(node_id), "adapters", Entry(key), "base_url"):
                adapter = self._adapters.get((node_id, key))
                profile = self._profile_of(adapter)
                return (
                    adapter is not None
                    and profile is not None
                    and adapter.base_url == profile.base_url
                )
            case ("nodes", Entry(node_id), "adapters", Entry(key), "headers", Entry(name), *_):
                adapter = self._adapters.get((node_id, key))
                header = _header(adapter, name)
                return header is None or _is_sent_by(self._profile_of(adapter), header)
            case ("nodes", Entry(), "providers", Entry(provider_id), "profile"):
                provider = self._providers.get(provider_id)
                return provider is not None and _is_of_its_type(provider)
            case _:
                return False

    @cached_property
    def _adapters(self) -> dict[tuple[str, str], Adapter]:
        return {
            (node.id, adapter.key): adapter
            for node in self._config.nodes
            for adapter in node.adapters
        }

    @cached_property
    def _providers(self) -> dict[str, Provider]:
        return {provider.id: provider for node in self._config.nodes for provider in node.providers}

    def _profile_of(self, adapter: Adapter | None) -> CatalogProfile | None:
        """The custom profile behind an adapter. The built-in ones lend no value."""
        if adapter is None or adapter.profile is None:
            return None
        return self._config.protocol_profiles.get(adapter.profile.id)


def _header(adapter: Adapter | None, name: str) -> HeaderValue | None:
    headers = adapter.headers if adapter is not None else ()
    return next((header for header in headers if header.name == name), None)


def _is_sent_by(profile: CatalogProfile | None, header: HeaderValue) -> bool:
    return profile is not None and (header.name, header.value, header.scheme) == (
        profile.auth.header,
        profile.auth.value,
        profile.auth.scheme,
    )


def _is_of_its_type(provider: Provider) -> bool:
    return provider.profile == PROFILE_OF_TYPE.get(provider.type)
