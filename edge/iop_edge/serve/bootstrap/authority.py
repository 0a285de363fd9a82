"""Which certificate authority a joining node shall trust: the edge's own, where it has one."""

from __future__ import annotations

import ssl

from iop_edge.config.effective import Tls


class UnusableAuthority(Exception):
    """A file holds no certificate that could be trusted; the message names it."""


def authority_of(tls: Tls) -> bytes:
    """The self-issued authorities in a listener's chain, in DER, one after the other.

    Empty where the chain ends in none: its certificate is then one of a public authority, or of
    one that has to be named apart. Raises UnusableAuthority.
    """
    return _authorities(tls.cert_file, is_own=True)


def authority_in(path: str) -> bytes:
    """Every authority in a PEM file, in DER. Raises UnusableAuthority, also where there is none."""
    found = _authorities(path, is_own=False)
    if not found:
        raise UnusableAuthority(f"{path} holds no certificate of an authority")
    return found


def _authorities(path: str, *, is_own: bool) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise UnusableAuthority(f"{path} is no usable PEM file") from None
    except OSError as error:
        raise UnusableAuthority(f"{path} cannot be read ({error.strerror})") from None
    facts = context.get_ca_certs()
    encoded = context.get_ca_certs(binary_form=True)
    return b"".join(
        der
        for fact, der in zip(facts, encoded, strict=True)
        if not is_own or fact["subject"] == fact["issuer"]
    )
