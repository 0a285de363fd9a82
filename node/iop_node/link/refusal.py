"""What a failed call to the edge means, in words that say what to change."""

from __future__ import annotations

from iop_shared.rpc.client import DialError, DialFailure
from iop_shared.rpc.codes import RpcError

_MEANINGS: dict[DialFailure, str] = {
    "wrong_name": "tls_wrong_name: the edge's certificate is not for the host that IOP_EDGE names",
    "untrusted": (
        "tls_untrusted: the edge's certificate is not signed by the authority that this node "
        "trusts (IOP_EDGE_CA_FILE, or the public ones without it)"
    ),
    "not_tls": (
        "tls_not_spoken: what answers there speaks plaintext, and this node wants TLS "
        "(IOP_EDGE_INSECURE=1 would allow plaintext)"
    ),
    "closed_early": (
        "closed_early: what answers there closed the connection at once; an edge with TLS "
        "does so to a node without it, and one that asks for a certificate to a node without "
        "one of its authority "
        "(IOP_EDGE_CA_FILE, IOP_NODE_CERT_FILE, IOP_NODE_KEY_FILE)"
    ),
}


def meaning_of(error: DialError | RpcError, *, has_heard: bool) -> str:
    """One line for the log. `has_heard`: what answers there has spoken gRPC at all."""
    if isinstance(error, DialError):
        return _MEANINGS.get(error.kind) or f"UNAVAILABLE: {error}"
    return str(error) if has_heard else _MEANINGS["closed_early"]
