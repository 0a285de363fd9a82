"""The effective config as operators see it: in the file's own shape, without secrets (CFG-23).

What is shown can be written into a file and means the same, save for what is hidden in it: text
under keys of `extensions` that speak of a secret, and queries of URLs. What only a running edge
has, resolved profiles and the queue policy that legacy keys were promoted to, stands apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from iop_edge.config.effective import (
    Adapter,
    CatalogProfile,
    EffectiveConfig,
    HeaderValue,
    Node,
    Provider,
    SecretRef,
)

REDACTED = "[redacted]"

_SECRET_KEY = re.compile(r"auth|cookie|credential|key|passw|secret|token", re.IGNORECASE)
_USERINFO_OR_QUERY = re.compile(r"(?<=://)[^/?#\s]*@|(?<=[^?#\s])[?#]\S*")


def view(config: EffectiveConfig, *, is_queue_promoted: bool = False) -> dict[str, Any]:
    """The config as a document. A promoted queue policy is left out of it."""
    shown = {name: _plain(getattr(config, name)) for name in config.__struct_fields__}
    if is_queue_promoted:
        del shown["provider_pool"]
    shown["protocol_profiles"] = {
        name: _profile(profile) for name, profile in config.protocol_profiles.items()
    }
    shown["nodes"] = [_node(node, config) for node in config.nodes]
    return shown


def resolved(config: EffectiveConfig, *, queue_source: str) -> dict[str, Any]:
    """What is never written back: where the queue policy comes from, and profiles in full."""
    return {
        "provider_pool": {**_plain(config.provider_pool), "source": queue_source},
        "adapters": [
            {
                "node": node.id,
                "key": adapter.key,
                "provider": adapter.provider_label,
                "profile": _plain(adapter.profile),
            }
            for node in config.nodes
            for adapter in node.adapters
        ],
    }


def without_credentials(text: str) -> str:
    """The text with userinfo and query taken out of a URL in it (SEC-1)."""
    return _USERINFO_OR_QUERY.sub("", text) if "://" in text else text


def _plain(value: Any) -> Any:
    match value:
        case SecretRef():
            return _reference(value)
        case Struct():
            return {name: _field(name, getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case frozenset():
            return sorted(value)
        case tuple() | list():
            return [_plain(inner) for inner in value]
        case str():
            return without_credentials(value)
        case _:
            return value


def _field(name: str, value: Any) -> Any:
    return free("", value) if name == "extensions" else _plain(value)


def free(key: str, value: Any, *, is_secret: bool = False) -> Any:
    """A value of a free map: text is hidden under every key that speaks of a secret."""
    is_secret = is_secret or _SECRET_KEY.search(key) is not None
    match value:
        case str():
            return REDACTED if is_secret else without_credentials(value)
        case Mapping():
            return {
                str(name): free(str(name), inner, is_secret=is_secret)
                for name, inner in value.items()
            }
        case tuple() | list():
            return [free(key, inner, is_secret=is_secret) for inner in value]
        case _:
            return value


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if value is not None}


def _reference(ref: SecretRef) -> dict[str, str]:
    """The one field that is set. None of them is a secret."""
    return {
        name: value for name in ref.__struct_fields__ if (value := getattr(ref, name)) is not None
    }


def _profile(profile: CatalogProfile) -> dict[str, Any]:
    return {
        **{
            name: _plain(getattr(profile, name))
            for name in ("base", "driver", "base_url")
            if getattr(profile, name) is not None
        },
        "operations": {name: without_credentials(one) for name, one in profile.operations.items()},
        "auth": _without_none(_plain(profile.auth)),
        "capabilities": sorted(profile.capabilities),
        "model_mapping": dict(profile.model_mapping),
        "extensions": free("", profile.extensions),
    }


def _node(node: Node, config: EffectiveConfig) -> dict[str, Any]:
    shown: dict[str, Any] = _plain(node)
    labels = {adapter.key: adapter.provider_label for adapter in node.adapters}
    shown["adapters"] = [_adapter(adapter, config) for adapter in node.adapters]
    shown["providers"] = [
        _provider(provider, labels.get(provider.adapter) if provider.adapter else None)
        for provider in node.providers
    ]
    return shown


def _adapter(adapter: Adapter, config: EffectiveConfig) -> dict[str, Any]:
    shown: dict[str, Any] = _plain(adapter)
    del shown["profile"], shown["provider_label"]
    shown["headers"] = {
        header.name: _plain(header.value)
        for header in adapter.headers
        if not _is_of_profile(header, adapter, config)
    }
    return shown


def _provider(provider: Provider, label: str | None) -> dict[str, Any]:
    shown: dict[str, Any] = _plain(provider)
    if label is not None:
        shown["provider"] = label
    return shown


def _is_of_profile(header: HeaderValue, adapter: Adapter, config: EffectiveConfig) -> bool:
    """Whether the header comes from the adapter's profile, where it is shown already."""
    if adapter.profile is None:
        return False
    profile = config.protocol_profiles.get(adapter.profile.id)
    return profile is not None and (
        (header.name, header.value, header.scheme)
        == (profile.auth.header, profile.auth.value, profile.auth.scheme)
    )
