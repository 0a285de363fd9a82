"""Who may speak to the admin surface: programs on this machine, never a web page (SEC-2).

Listening on loopback keeps the network out; it does not keep out a browser on the same machine.
A page that rebinds its own name to 127.0.0.1 shows in `Host`, one that posts across sites shows
in `Origin`. Pure: it looks at headers and knows no socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit


class Refusal(NamedTuple):
    """Why a request is not answered (HTTP 403). Echoes nothing of it."""

    code: str
    message: str


def refusal(headers: Sequence[tuple[bytes, bytes]], *, is_unix: bool = False) -> Refusal | None:
    """The reason to refuse a request with these headers, or None.

    `Host` must be one loopback address or `localhost`; over a Unix socket, which no browser can
    reach, any name will do. `Origin`, where it is sent, must be that same host.
    """
    hosts = _all(headers, b"host")
    if len(hosts) != 1 or not (is_unix or is_local(hosts[0])):
        return Refusal("host_refused", "Host must be a loopback address or localhost")
    origins = _all(headers, b"origin")
    if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
        return Refusal("origin_refused", "requests from web pages of another origin are refused")
    return None


def is_local(host: str) -> bool:
    """Whether a `Host` value, with or without a port, names this machine."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if name is None or parts.netloc != host or "@" in host:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _all(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1").strip().lower() for key, value in headers if key == name]
