"""Which addresses a node may be told to dial.

Pure. The edge checks the same at load; the node checks again, because it is the node's network
that a bad address would open, and because names resolve here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

from iop_node.adapters.refused import PayloadRefused

# Addresses and names at which clouds hand out credentials, beside the link-local networks.
_METADATA_ADDRESSES = frozenset({"fd00:ec2::254", "100.100.100.200"})
_METADATA_NAMES = frozenset({"metadata.google.internal", "metadata", "instance-data"})

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_link_local(address: str) -> bool:
    """Whether an IP address is link-local or a metadata service, in any of its written forms.

    Raises ValueError for a string that is no IP address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            ip = inner
    return ip.is_link_local or str(ip) in _METADATA_ADDRESSES


def check_upstream_url(url: str, *, what: str, allow_link_local: bool) -> SplitResult:
    """The parts of an upstream URL that a node will dial.

    `what` names it in the refusal. Raises PayloadRefused(bad_base_url) for a scheme other than
    http and https, userinfo, a fragment, a missing or malformed host or port, and
    PayloadRefused(link_local_refused) for a link-local or metadata address unless allowed.
    """

    def refused(reason: str) -> PayloadRefused:
        return PayloadRefused("bad_base_url", f"{what}: {reason}")

    if any(character <= " " or character == "\x7f" or character == "\\" for character in url):
        raise refused("an upstream URL holds no blank, control character or backslash")
    if not url.isascii():
        raise refused("write the host in its ASCII form (xn--…) and escape the rest")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refused("this is no URL; write http://host:port") from None
    if parts.scheme not in ("http", "https"):
        raise refused("the scheme must be http or https")
    if parts.username is not None or parts.password is not None:
        raise refused("credentials do not belong in a URL; write them as a header")
    if not host:
        raise refused("the host is missing; write http://host:port")
    if port == 0:
        raise refused("port 0 cannot be dialled")
    if parts.fragment or "#" in url:
        raise refused("a fragment is never sent; leave it out")
    _check_host(host.rstrip(".").lower(), refused_as=what, allow_link_local=allow_link_local)
    return parts


def _check_host(host: str, *, refused_as: str, allow_link_local: bool) -> None:
    try:
        is_local = is_link_local(host)
    except ValueError:
        is_local = host in _METADATA_NAMES
        # 2852039166, 0xa9fea9fe and 169.254.43518 are all read as addresses by resolvers.
        last = host.rsplit(".", 1)[-1]
        if last.isdigit() or last.startswith("0x"):
            raise PayloadRefused(
                "bad_base_url", f"{refused_as}: write an IPv4 address as four decimal numbers"
            ) from None
    if is_local and not allow_link_local:
        raise PayloadRefused(
            "link_local_refused",
            f"{refused_as}: a link-local or metadata address is dialled only where the adapter "
            "says allow_link_local: true",
        )


def operation_urls(
    urls: Mapping[str, str], *, adapter: str, allow_link_local: bool
) -> Mapping[str, str]:
    """The complete operation URLs of a profile, each of them checked (PROF-5)."""
    for operation, url in urls.items():
        check_upstream_url(
            url,
            what=f"operation {operation} of adapter {adapter}",
            allow_link_local=allow_link_local,
        )
    return MappingProxyType(dict(urls))
