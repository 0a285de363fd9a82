"""Which headers go to an upstream, and which of its own come back. Pure.

Outwards: what the caller's side passes on, then the adapter's own over it, then the caller's
provider token over both. Inwards: a short list, because everything else an upstream says about
itself (cookies, servers, addresses, connections) is nothing a caller may see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_NEVER_OUT = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Where an upstream may look for a credential: a caller's provider token stands in for all of them.
_CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})

_IN = frozenset(
    {
        b"content-type",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"openai-processing-ms",
    }
)
_IN_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")

_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def is_field_name(name: str) -> bool:
    """Whether HTTP allows this as a header's name."""
    return _FIELD_NAME.fullmatch(name) is not None


@lru_cache(maxsize=256)
def _lowered_field_name(name: str) -> str:
    """Empty for what is no name. There are few names, and every request has the same."""
    return name.lower() if is_field_name(name) else ""


def is_field_value(value: str) -> bool:
    """Whether a header value can be sent: no control character but the tab."""
    # The first test is the quicker one, and nearly always enough.
    return value.isprintable() or _CONTROL.search(value) is None


class OutgoingHeaders:
    """Makes the headers of requests to one upstream. `own` are the adapter's, already judged."""

    def __init__(self, own: Iterable[tuple[str, str]]) -> None:
        # The answer is asked for unencoded, since it is relayed as bytes.
        self._own = (*own, ("Accept-Encoding", "identity"))
        own_names = {name.lower() for name, _ in self._own}
        self._withheld = _NEVER_OUT | own_names
        self._own_lines = _lines(self._own)
        self._default_agent = "" if "user-agent" in own_names else "User-Agent: iop-node\r\n"
        self._default_type = (
            "" if "content-type" in own_names else "Content-Type: application/json\r\n"
        )

    def of(
        self,
        passed_on: Iterable[tuple[str, str]],
        auth_override: tuple[str, str] | None = None,
        *,
        has_body: bool = False,
    ) -> bytes:
        """The header lines of one request, without those that frame it. A header that HTTP could
        not carry (CR, LF, NUL) is left out."""
        own_lines, withheld = self._own_lines, self._withheld
        if auth_override is not None:
            replaced = _CREDENTIALS | {auth_override[0].lower()}
            withheld |= replaced
            own = [pair for pair in self._own if pair[0].lower() not in replaced]
            if is_field_name(auth_override[0]) and is_field_value(auth_override[1]):
                own.append(auth_override)
            own_lines = _lines(own)
        lines = ""
        names = set()
        for name, value in passed_on:
            lowered = _lowered_field_name(name)
            if lowered and lowered not in withheld and is_field_value(value):
                lines += f"{name}: {value}\r\n"
                names.add(lowered)
        if has_body and "content-type" not in names:
            lines += self._default_type
        if "user-agent" not in names:
            lines += self._default_agent
        return lines.encode("utf-8", "surrogateescape") + own_lines


def caller_headers(received: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Those of an upstream's response headers that a caller may see, names in lower case."""
    return [
        (name.decode("ascii"), value.decode("latin-1"))
        for name, value in received
        if (name in _IN or name.startswith(_IN_PREFIXES))
        and is_field_value(value.decode("latin-1"))
    ]


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode(
        "utf-8", "surrogateescape"
    )
