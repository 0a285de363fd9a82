"""The secrets of one candidate, resolved once, beside the config and never in it.

Nothing here prints, logs or serializes a value. A diff sees secrets only through fingerprints.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import MappingProxyType

from iop_edge.config.effective import EffectiveConfig, SecretRef
from iop_shared.ids import NodeId


class Vault:
    """Immutable. Holds the values of `env` and `file` references and the digests of node tokens."""

    __slots__ = ("_fingerprint_key", "_token_digests", "_values")

    def __init__(
        self,
        *,
        values: Mapping[SecretRef, str],
        token_digests: Mapping[NodeId, bytes],
        fingerprint_key: bytes,
    ) -> None:
        self._values = MappingProxyType(dict(values))
        self._token_digests = MappingProxyType(dict(token_digests))
        self._fingerprint_key = fingerprint_key

    def __repr__(self) -> str:
        return "Vault(…)"

    def __reduce__(self) -> str:
        raise TypeError("a vault is not written anywhere")

    def value(self, ref: SecretRef) -> str:
        """The secret behind an `env` or `file` reference of the config this vault belongs to.

        Raises KeyError for any other reference, and where secrets were skipped.
        """
        return self._values[ref]

    def node_token_sha256(self, node_id: NodeId) -> bytes:
        """The 32 bytes of the sha256 of the node's token. Raises KeyError as `value` does."""
        return self._token_digests[node_id]

    def fingerprint(self, ref: SecretRef) -> bytes:
        """A keyed digest of what the reference leads to: equal for equal secrets of one process.

        For a reference that the edge does not resolve, it is a digest of the reference itself.
        """
        value = self._values.get(ref)
        kind, text = ("value", value) if value is not None else ("reference", repr(ref))
        message = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._fingerprint_key, message, sha256).digest()


def secret_paths(config: EffectiveConfig) -> Iterator[tuple[str, SecretRef]]:
    """Every secret reference of `config` with its path, in the config's order."""
    for profile_id, profile in config.protocol_profiles.items():
        if profile.auth.value is not None:
            yield f"protocol_profiles[{profile_id}].auth.value", profile.auth.value
    for node in config.nodes:
        yield f"nodes[{node.id}].token", node.token
        for adapter in node.adapters:
            for header in adapter.headers:
                if isinstance(header.value, SecretRef):
                    path = f"nodes[{node.id}].adapters[{adapter.key}].headers[{header.name}].value"
                    yield path, header.value
