"""What the head of a request may say, where the parser alone would let more pass.

It refuses what the next reader of the same bytes could understand in another way (RFC 9112,
sections 3.2, 6.1 and 6.3), and what is over a limit before its body is read. Pure: no connection,
no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

import httptools

from iop_edge.serve.http.head import ByteHeaders
from iop_edge.serve.http.refusal import UnknownCodingError
from iop_shared.errors import Code, Fault

_AUTHORITY = re.compile(rb"[^/?@]+(?=[/?]|$)")
_SINGULAR = (b"authorization", b"content-type", b"x-api-key")


def target_of(url: bytes, pairs: ByteHeaders) -> tuple[str, str]:
    """Path and query of what is asked for. Raises Fault(invalid_value)."""
    if b"#" in url:
        raise Fault(Code.INVALID_VALUE, "the target of a request has no fragment")
    if url.startswith(b"/") or url == b"*":
        raw, _, query = url.partition(b"?")
    else:
        parsed = httptools.parse_url(url)
        _judge_authority(url, pairs)
        raw, query = parsed.path or b"/", parsed.query or b""
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, query.decode("latin-1")


def judge_head(
    headers: Mapping[bytes, bytes], pairs: ByteHeaders, version: str, *, max_body_bytes: int
) -> None:
    """Raises Fault, among them UnknownCodingError, for a head whose request is not to be served.

    `headers` are the pairs by name, of a name that is repeated the last.
    """
    if version != "1.1" or b"host" not in headers or len(headers) != len(pairs):
        _judge_unusual(pairs, version)
    coding = headers.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        raise UnknownCodingError
    length = headers.get(b"content-length")
    if length is not None and int(length) > max_body_bytes:
        raise body_too_large(int(length), max_body_bytes)


def waits_for_continue(headers: Mapping[bytes, bytes], version: str) -> bool:
    """Whether the caller sends its body only once it is told to (RFC 9110, section 10.1.1)."""
    expected = headers.get(b"expect")
    return expected is not None and expected.lower() == b"100-continue" and version == "1.1"


def head_size(url: bytes, pairs: ByteHeaders) -> int:
    """Bytes of a head, as far as its length depends on the caller."""
    return len(url) + sum(len(name) + len(value) + 4 for name, value in pairs)


def without_upgrade(method: bytes, url: bytes, version: str, pairs: ByteHeaders) -> bytes:
    """The same head without the wish for another protocol. Raises Fault(invalid_value) for one
    that cannot be served without."""
    if method == b"CONNECT":
        raise Fault(Code.INVALID_VALUE, "this is no proxy")
    lines = [method, b" ", url, b" HTTP/", version.encode("ascii"), b"\r\n"]
    for name, value in pairs:
        if name == b"connection":
            value = b"close" if b"close" in value.lower() else b"keep-alive"
        if name != b"upgrade":
            lines += (name, b": ", value, b"\r\n")
    return b"".join((*lines, b"\r\n"))


def head_too_large(limit: int) -> Fault:
    return Fault(Code.HEADERS_TOO_LARGE, f"the request head is over {limit} bytes")


def body_too_large(actual: int, limit: int) -> Fault:
    return Fault(
        Code.REQUEST_TOO_LARGE, f"the body has {actual} bytes or more; the limit is {limit}"
    )


def _judge_authority(url: bytes, pairs: ByteHeaders) -> None:
    """Refuse a whole URL on another host than `Host` names: whoever judges the host would judge
    only one of the two (RFC 9112, section 3.2.2)."""
    _, _, behind_scheme = url.partition(b"://")
    authority = _AUTHORITY.match(behind_scheme)
    hosts = [value.lower() for name, value in pairs if name == b"host"]
    if authority is None or any(host != authority[0].lower() for host in hosts):
        raise Fault(Code.INVALID_VALUE, "the target is on another host than Host")


def _judge_unusual(pairs: ByteHeaders, version: str) -> None:
    names = [name for name, _ in pairs]
    if version == "1.1" and names.count(b"host") != 1:
        raise Fault(Code.INVALID_VALUE, "a request of HTTP/1.1 names one Host")
    if version not in ("1.0", "1.1"):
        raise Fault(Code.INVALID_VALUE, "only HTTP/1.1 is spoken here")
    if version == "1.0" and b"transfer-encoding" in names:
        raise Fault(Code.INVALID_VALUE, "HTTP/1.0 knows no Transfer-Encoding")
    if any(names.count(name) > 1 for name in _SINGULAR):
        raise Fault(
            Code.INVALID_VALUE, "Authorization, Content-Type and X-Api-Key are each sent once"
        )
    if names.count(b"transfer-encoding") > 1:
        raise UnknownCodingError
