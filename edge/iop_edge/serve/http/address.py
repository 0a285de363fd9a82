"""Where a listener listens: parsing an address and binding its sockets.

An address is `host:port`, `[ipv6]:port` or `unix:/path`. Binding is synchronous and apart from
serving, so that an edge can claim every address before it starts anything.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

BACKLOG = 2048
"""Connections that may wait to be accepted; more at once wait a second and knock again."""


class ListenError(Exception):
    """An address cannot be listened on. Names the address and the reason."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


def split_host_port(address: str) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port` as its two parts. Raises ListenError."""
    host, colon, port_text = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise ListenError(address, "write an IPv6 address in brackets, as in [::1]:8080")
    if not colon or not host:
        raise ListenError(address, "expected host:port, [ipv6]:port or unix:/path")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise ListenError(address, "the port is a number from 0 to 65535")
    return host, int(port_text)


def bind(address: str, *, unix_mode: int = 0o600) -> list[socket.socket]:
    """Bound, listening sockets: one for each address that a host name stands for.

    Port 0 picks a free one, the same for all of them. `[::]` takes IPv4 as well. A socket file
    that nobody listens on any more is replaced; its mode is `unix_mode` from the first moment.
    Raises ListenError, and then leaves nothing bound.
    """
    if address.startswith("unix:"):
        return [_bind_unix(address, Path(address.removeprefix("unix:")), unix_mode)]
    host, port = split_host_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(address, f"the host is not known ({error.strerror})") from None
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            with_port = (place[0], port, *place[2:])
            bound.append(_bind_tcp(family, kind, protocol, with_port))
            port = bound[0].getsockname()[1]
    except OSError as error:
        for each in bound:
            each.close()
        raise ListenError(address, _reason(error)) from None
    return bound


def _bind_tcp(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(place[0] != "::"))
        listening.setblocking(False)
        listening.bind(place)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _bind_unix(address: str, path: Path, mode: int) -> socket.socket:
    if not path.is_absolute():
        raise ListenError(address, "the path of a socket is absolute, as in unix:/run/iop.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask is the process's own; nothing awaits between setting it and putting it back.
    mask = os.umask(0o777 & ~mode)
    try:
        _remove_stale_socket(address, path)
        listening.setblocking(False)
        listening.bind(str(path))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ListenError(address, _reason(error)) from None
    except ListenError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def _remove_stale_socket(address: str, path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenError(address, "a file that is no socket stands there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise ListenError(address, "the address is already in use")


def bound_address(listening: socket.socket) -> str:
    """The address a socket is really bound to, in the form that is written in a config."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listening.family == socket.AF_INET6 else name[0]
    return f"{host}:{name[1]}"


def remove_socket_file(listening_address: str) -> None:
    """Take the file of a Unix socket away when its listener stops; others need nothing."""
    if listening_address.startswith("unix:"):
        with suppress(FileNotFoundError):
            Path(listening_address.removeprefix("unix:")).unlink()


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the address is already in use"
    if error.errno == errno.EACCES:
        return "permission denied"
    return (error.strerror or type(error).__name__).lower()
