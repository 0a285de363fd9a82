"""Which node a client certificate was made for, where the edge asks nodes for one (SEC-3).

The token says which node a peer claims to be; the certificate must name the same one. It does by
any of:

  a DNS name of its subject alternative names that is the node id
  a URI of them that is `urn:iop:node:<node id>`, percent-encoded: for ids that are no DNS names
  its common name, only where it has no subject alternative name at all

Names are compared as they are, without wildcards and without folding case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from iop_shared.ids import NodeId

URI_PREFIX = "urn:iop:node:"

Certificate = Mapping[str, Any]
"""As `ssl.SSLSocket.getpeercert` gives it, of a certificate that was verified."""


def names_node(certificate: Certificate | None, node_id: NodeId) -> bool:
    """Whether the peer's certificate, which the transport has verified, is that of the node."""
    if certificate is None:
        return False
    alternatives = frozenset(certificate.get("subjectAltName", ()))
    if alternatives:
        accepted = {("DNS", node_id), ("URI", URI_PREFIX + quote(node_id, safe=""))}
        return not accepted.isdisjoint(alternatives)
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    return ("commonName", node_id) in names
