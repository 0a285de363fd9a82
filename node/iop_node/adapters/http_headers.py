"""Which headers go to an upstream, and which of its own come back. Pure.

Outwards: what the caller's side passes on, then the adapter's own over it, then the caller's
provider token over both. Inwards: a short list, because everything else an upstream says about
itself (cookies, servers, addresses, connections) is nothing a caller may see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

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
    {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms"}
)
_IN_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")

_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def is_field_name(name: str) -> bool:
    """Whether HTTP allows this as a header's name."""
    return _FIELD_NAME.fullmatch(name) is not None


def is_field_value(value: str) -> bool:
    """Whether a header value can be sent: no control character but the tab."""
    return _CONTROL.search(value) is None


class OutgoingHeaders:
    """Makes the headers of requests to one upstream. `own` are the adapter's, already judged."""

    def __init__(self, own: Iterable[tuple[str, str]]) -> None:
        self._own = tuple(own)
        # The answer is asked for unencoded, since it is relayed as bytes.
        self._own += (("Accept-Encoding", "identity"),)
        self._withheld = _NEVER_OUT | {name.lower() for name, _ in self._own}

    def of(
        self,
        passed_on: Iterable[tuple[str, str]],
        auth_override: tuple[str, str] | None = None,
    ) -> CIMultiDict[str]:
        """The headers of one request. One that HTTP could not carry (CR, LF, NUL) is left out."""
        own, withheld = self._own, self._withheld
        if auth_override is not None:
            replaced = _CREDENTIALS | {auth_override[0].lower()}
            own = tuple(pair for pair in own if pair[0].lower() not in replaced)
            withheld |= replaced
        headers: CIMultiDict[str] = CIMultiDict(
            (name, value)
            for name, value in passed_on
            if name.lower() not in withheld
            and _FIELD_NAME.fullmatch(name)
            and not _CONTROL.search(value)
        )
        headers.extend(own)
        if auth_override is not None and is_field_value(auth_override[1]):
            headers[auth_override[0]] = auth_override[1]
        if "User-Agent" not in headers:
            headers["User-Agent"] = "iop-node"
        return headers


def caller_headers(received: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those of an upstream's response headers that a caller may see, names in lower case."""
    return [
        (lowered, value)
        for name, value in received.items()
        if ((lowered := name.lower()) in _IN or lowered.startswith(_IN_PREFIXES))
        and is_field_value(value)
    ]
