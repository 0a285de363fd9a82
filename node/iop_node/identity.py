"""Which node this is, of which edge: the two variables that a node cannot do without (NODE-1).

Apart from the other settings, since a health check reads these alone, every few seconds: nothing
here imports what only a running node needs. A token's value is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MIN_TOKEN_CHARACTERS = 32

MAX_TOKEN_FILE_BYTES = 65_536


class SettingsInvalid(Exception):
    """A variable is missing or wrong; the message names it."""


def edge_address(environment: Mapping[str, str]) -> str:
    """The edge's host:port. Raises SettingsInvalid."""
    address = environment.get("IOP_EDGE", "").strip()
    if not address:
        raise SettingsInvalid("IOP_EDGE is not set: it takes the edge's host:port")
    host_of("IOP_EDGE", address, "edge:50051")
    return address


def node_token(environment: Mapping[str, str]) -> str:
    """This node's token, out of its variable or its file. Raises SettingsInvalid."""
    token = environment.get("IOP_NODE_TOKEN", "").strip()
    source = "IOP_NODE_TOKEN"
    path = path_of(environment, "IOP_NODE_TOKEN_FILE")
    if token and path is not None:
        raise SettingsInvalid("IOP_NODE_TOKEN and IOP_NODE_TOKEN_FILE are both set: keep one")
    if path is not None:
        source = "IOP_NODE_TOKEN_FILE"
        token = bytes_of(source, path, MAX_TOKEN_FILE_BYTES).decode(errors="replace").strip()
    elif not token:
        raise SettingsInvalid(
            "IOP_NODE_TOKEN is not set (nor IOP_NODE_TOKEN_FILE): `iop-edge token new` makes one"
        )
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise SettingsInvalid(
            f"{source} holds no token: one has {MIN_TOKEN_CHARACTERS} or more printable ASCII "
            f"characters, this has {len(token)}"
        )
    return token


def host_of(name: str, address: str, example: str, *, lowest_port: int = 1) -> str:
    """The host of host:port, without brackets. Raises SettingsInvalid for what is no such thing,
    a URL among them."""
    host, separator, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and lowest_port <= int(port) < 65536
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_host = bare.isprintable() and not set(bare) & set("/@?#[] \\")
    # Without brackets, which colon stands before the port is anybody's guess.
    if not (separator and bare and is_host and is_port) or (":" in bare and not is_bracketed):
        raise SettingsInvalid(
            f"{name} is {address!r}: it takes host:port, as in {example}, "
            "an IPv6 address in brackets"
        )
    return bare


def path_of(environment: Mapping[str, str], name: str) -> Path | None:
    """The path in a variable; None where it is not set or empty."""
    value = environment.get(name, "").strip()
    return Path(value) if value else None


def bytes_of(name: str, path: Path, limit: int) -> bytes:
    """What the file holds, which a variable of this name names. Raises SettingsInvalid."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise SettingsInvalid(f"{name}: {str(path)!r} cannot be read ({error.strerror})") from None
    if len(content) > limit:
        raise SettingsInvalid(f"{name}: {str(path)!r} is larger than {limit} bytes")
    return content
