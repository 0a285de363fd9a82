"""What a failed call to the edge means, in words that say what to change.

gRPC tells every failure to connect as UNAVAILABLE with the text of the layer that failed. The
fragments below are those texts; a test provokes each of them against a real listener, so that a
new version of the library cannot silently make the words go astray.
"""

from __future__ import annotations

import grpc

_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        "Hostname Verification Check failed",
        "tls_wrong_name: the edge's certificate is not for the host that IOP_EDGE names",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        (
            "tls_untrusted: the edge's certificate is not signed by the authority that this node "
            "trusts (IOP_EDGE_CA_FILE, or the public ones without it)"
        ),
    ),
    (
        "WRONG_VERSION_NUMBER",
        (
            "tls_not_spoken: what answers there speaks plaintext, and this node wants TLS "
            "(IOP_EDGE_INSECURE=1 would allow plaintext)"
        ),
    ),
    (
        "Socket closed",
        (
            "closed_early: what answers there closed the connection at once; an edge with TLS "
            "does so to a node without it, and one that asks for a certificate to a node without "
            "one of its authority "
            "(IOP_EDGE_CA_FILE, IOP_NODE_CERT_FILE, IOP_NODE_KEY_FILE)"
        ),
    ),
)


def meaning_of(code: grpc.StatusCode, details: str | None) -> str:
    """One line for the log. `details` is what gRPC or the edge said."""
    if code is grpc.StatusCode.UNAVAILABLE:
        for fragment, meaning in _MEANINGS:
            if fragment in (details or ""):
                return meaning
    return f"{code.name}: {details}"
