"""Which headers go to an upstream, and which of its own come back. Pure.

Outwards: what the caller's side passes on, then the adapter's own over it, then the caller's
provider token over both. Inwards: a short list, because everything else an upstream says about
itself (cookies, servers, addresses, connections) is nothing a caller may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

_NEVER_OUT = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "accept-encoding"}
)
# Where an upstream may look for a credential: a caller's provider token stands in for all of them.
_CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})

_IN = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms"}
)
_IN_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")


def is_field_value(value: str) -> bool:
    """Whether a header value can be sent: no control character but the tab."""
    return not any((char < " " and char != "\t") or char == "\x7f" for char in value)


def upstream_headers(
    passed_on: Iterable[tuple[str, str]],
    own: Iterable[tuple[str, str]],
    auth_override: tuple[str, str] | None,
) -> CIMultiDict[str]:
    """The headers of one upstream request.

    A header that HTTP could not carry (CR, LF, NUL in its name or value) is left out. The answer
    is asked for unencoded, since it is relayed as bytes.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in passed_on:
        if name.lower() not in _NEVER_OUT and _is_field_name(name) and is_field_value(value):
            headers.add(name, value)
    own = tuple(own)
    if auth_override is not None:
        overridden = {auth_override[0].lower(), *_CREDENTIALS}
        own = tuple(pair for pair in own if pair[0].lower() not in overridden)
        for name in overridden:
            headers.popall(name, None)
    for name, _ in own:
        headers.popall(name, None)
    for name, value in own:
        headers.add(name, value)
    if auth_override is not None and is_field_value(auth_override[1]):
        headers[auth_override[0]] = auth_override[1]
    headers["Accept-Encoding"] = "identity"
    headers.setdefault("User-Agent", "iop-node")
    return headers


def caller_headers(received: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those of an upstream's response headers that a caller may see, names in lower case."""
    return [
        (lowered, value)
        for name, value in received.items()
        if ((lowered := name.lower()) in _IN or lowered.startswith(_IN_PREFIXES))
        and is_field_value(value)
    ]


def _is_field_name(name: str) -> bool:
    return bool(name) and name.isascii() and all(char.isalnum() or char in "-_" for char in name)
