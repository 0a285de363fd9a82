"""Addresses to listen on and URLs to call, read by rule and never by looking anything up.

Sentences say what is wrong and hold nothing of the address: a URL may carry a credential.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

_PORT = re.compile(r"[0-9]{1,5}\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9.])?\Z")
_NUMERIC_HOST = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)(?:\.(?:0[xX][0-9A-Fa-f]*|[0-9]+))*\.?\Z")

MAX_PORT = 65535


class Refused(ValueError):
    """The text is no such address. The message completes "this …"."""


class HostPort(NamedTuple):
    """`host` is without brackets."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there."""
    if host.casefold() in ("localhost", "ip6-localhost"):
        return True
    address = _address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def is_link_local(host: str) -> bool:
    """Whether the host is a link-local address (where cloud metadata services live)."""
    address = _address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_link_local


def parse_host_port(text: str) -> HostPort:
    """`host:port`, an IPv6 host in brackets. Raises Refused."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not rest.startswith(":"):
            raise Refused("is no `[address]:port`")
        port = rest[1:]
        if not isinstance(_address(host), IPv6Address):
            raise Refused("holds no IPv6 address in its brackets")
    else:
        host, colon, port = text.rpartition(":")
        if not colon:
            raise Refused("has no port; write `host:port`")
        if ":" in host:
            raise Refused("holds an IPv6 address, which is written in brackets: `[::1]:port`")
        if not host:
            raise Refused("has no host; write `127.0.0.1:port`, or `0.0.0.0:port` for all")
        if not _HOST_NAME.match(host) or (_NUMERIC_HOST.match(host) and _address(host) is None):
            raise Refused("holds no host name or IP address before the port")
    if not _PORT.match(port) or int(port) > MAX_PORT:
        raise Refused(f"must end in a port from 0 to {MAX_PORT}")
    return HostPort(host, int(port))


def check_url(url: str) -> str:
    """The host of an http(s) URL that may be called. Raises Refused.

    Without userinfo, query and fragment: credentials have a place of their own, and a path is
    joined to the end.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.casefold() not in ("http", "https"):
        raise Refused("must begin with `http://` or `https://`")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refused("is no URL that can be read") from None
    if parts.username is not None or parts.password is not None:
        raise Refused(
            "holds a user or password; put credentials into `headers` or a profile's `auth`"
        )
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise Refused("holds a query or fragment; a base URL ends with its path")
    host = parts.hostname
    if not host or "\\" in url:
        raise Refused("names no host")
    if port == 0:
        raise Refused(f"must have a port from 1 to {MAX_PORT}")
    if "[" not in parts.netloc and _NUMERIC_HOST.match(host) and _address(host) is None:
        raise Refused("names an IPv4 address in an unusual form; write four decimal numbers")
    if "[" not in parts.netloc and not _HOST_NAME.match(host):
        raise Refused("names no host that can be looked up")
    return host


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
