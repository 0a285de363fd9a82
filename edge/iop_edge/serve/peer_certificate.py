"""Which node a client certificate was made for, where the edge asks nodes for one (SEC-3).

The token says which node a peer claims to be; the certificate must name the same one. It does by
any of:

  a DNS name of its subject alternative names that is the node id
  a URI of them that is `urn:iop:node:<node id>`, percent-encoded: for ids that are no DNS names
  its common name, only where it has no subject alternative name at all

Names are compared as they are, without wildcards and without folding case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from iop_shared.ids import NodeId

URI_PREFIX = "urn:iop:node:"

AuthContext = Mapping[str, Iterable[bytes]]
"""What gRPC knows of a peer: property names to values."""


def names_node(peer: AuthContext, node_id: NodeId) -> bool:
    """Whether the peer's certificate, which the transport has verified, is that of the node."""
    alternatives = frozenset(peer.get("x509_subject_alternative_name", ()))
    if alternatives:
        accepted = {node_id.encode(), (URI_PREFIX + quote(node_id, safe="")).encode()}
        return not accepted.isdisjoint(alternatives)
    return node_id.encode() in peer.get("x509_common_name", ())
