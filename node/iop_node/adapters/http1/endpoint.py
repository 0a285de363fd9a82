"""Where a request goes, and the bytes that follow from it alone. Pure; worked out once per URL."""

from __future__ import annotations

import re
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from msgspec import Struct

_SENDABLE = re.compile(r"[!-~]+")


class Origin(NamedTuple):
    """What a connection leads to. `host` is a name or an address without brackets."""

    is_tls: bool
    host: str
    port: int


class Endpoint(Struct, frozen=True):
    """One URL of an upstream. Escapes in it are meant, and kept as they are (PROF-5)."""

    origin: Origin
    rest_of_line: bytes
    """What follows the method: the target, the version and the Host field."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises ValueError for a URL that cannot be written into a request as it is."""
        if not _SENDABLE.fullmatch(url):
            raise ValueError("a URL is sent as printable ASCII characters without blanks")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a URL that can be dialled begins with http://host or https://host")
        is_tls = parts.scheme == "https"
        usual_port = 443 if is_tls else 80
        port = usual_port if parts.port is None else parts.port
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = host if port == usual_port else f"{host}:{port}"
        target = parts.path or "/"
        if parts.query:
            target += f"?{parts.query}"
        return cls(
            Origin(is_tls, parts.hostname, port),
            f" {target} HTTP/1.1\r\nHost: {authority}\r\n".encode("ascii"),
        )

    def request_head(self, method: bytes, fields: bytes, body_bytes: int | None) -> bytes:
        """A whole head, with exactly one of the two ways to tell where the body ends.

        `fields` are whole lines. `body_bytes` is None for a body whose length is not known.
        """
        if body_bytes is None:
            framing = b"Transfer-Encoding: chunked\r\n\r\n"
        elif body_bytes == 0 and method in (b"GET", b"HEAD"):
            framing = b"\r\n"
        else:
            framing = b"Content-Length: %d\r\n\r\n" % body_bytes
        return b"".join((method, self.rest_of_line, fields, framing))
