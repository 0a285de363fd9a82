"""Resolve what a payload leaves to the node: environment, files, certificates.

It turns an `UpstreamConfig` into an `UpstreamSpec` or refuses it. It may block on the file system
and is therefore run outside the event loop's thread; it never knows a loop or a socket. Secret
values leave it only inside the spec, and as a keyed digest inside the fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import ssl
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from iop_node.adapters.http_headers import is_field_name
from iop_node.adapters.refused import PayloadRefused
from iop_node.adapters.upstream_spec import ProbeSpec, UpstreamSpec
from iop_node.adapters.upstream_url import check_upstream_url
from iop_shared.profiles import join_url

if TYPE_CHECKING:
    from iop.runtime_pb2 import AdapterConfig, UpstreamConfig, UpstreamHeader

MAX_FILE_BYTES = 1_048_576

_FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "proxy-connection", "expect", "accept-encoding"}
)

# A fingerprint lives as long as the process and must not be comparable outside of it.
_KEY = secrets.token_bytes(32)


class NodeSources(Struct, frozen=True, kw_only=True):
    """What a node resolves references from. Files are read as they are named."""

    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return "NodeSources(...)"


class ResolvedUpstream(Struct, frozen=True, kw_only=True):
    """`fingerprint` is equal exactly where adapter config and resolved values are equal."""

    spec: UpstreamSpec
    fingerprint: bytes


def resolve_upstream(
    config: AdapterConfig, upstream: UpstreamConfig, sources: NodeSources
) -> ResolvedUpstream:
    """Everything about one adapter's upstream that can be known before it is dialled.

    Raises PayloadRefused: bad_base_url, link_local_refused, missing_env, missing_file,
    bad_header, missing_ca_file, bad_ca_file.
    """
    where = f"adapter {config.key}"
    check_upstream_url(upstream.base_url, what=where, allow_link_local=upstream.allow_link_local)
    headers = tuple(_header(header, where, sources) for header in upstream.headers)
    authority = _read(upstream.ca_file, "ca_file", where) if upstream.ca_file else b""
    digest = hashlib.blake2b(config.SerializeToString(deterministic=True), key=_KEY)
    for part in (*(value.encode() for _, value in headers), authority):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    default = UpstreamSpec(base_url="")
    return ResolvedUpstream(
        spec=UpstreamSpec(
            base_url=upstream.base_url,
            headers=headers,
            tls=_tls(authority, where) if authority else None,
            allow_link_local=upstream.allow_link_local,
            connect_timeout_s=upstream.connect_timeout_ms / 1000 or default.connect_timeout_s,
            first_byte_timeout_s=(
                upstream.first_byte_timeout_ms / 1000 or default.first_byte_timeout_s
            ),
            idle_timeout_s=upstream.idle_timeout_ms / 1000 or default.idle_timeout_s,
            total_timeout_s=upstream.request_timeout_ms / 1000 or default.total_timeout_s,
            probe=_probe(upstream, where),
        ),
        fingerprint=digest.digest(),
    )


def _probe(upstream: UpstreamConfig, where: str) -> ProbeSpec | None:
    probe = upstream.probe
    if not probe.path:
        return None
    check_upstream_url(
        join_url(upstream.base_url, probe.path),
        what=f"probe of {where}",
        allow_link_local=upstream.allow_link_local,
    )
    return ProbeSpec(
        path=probe.path,
        interval_s=probe.interval_ms / 1000 or 10.0,
        timeout_s=probe.timeout_ms / 1000 or 2.0,
        failures=probe.failures or 3,
    )


def _header(header: UpstreamHeader, where: str, sources: NodeSources) -> tuple[str, str]:
    name = header.name
    if not is_field_name(name):
        raise PayloadRefused("bad_header", f"{where}: a header name is not one HTTP allows")
    if name.lower() in _FRAMING_HEADERS:
        raise PayloadRefused("bad_header", f"{where}: header {name} is the connection's own")
    match header.WhichOneof("value"):
        case "node_env":
            value = sources.environ.get(header.node_env, "")
            if not value:
                raise PayloadRefused(
                    "missing_env",
                    f"{where}: header {name} needs the environment variable "
                    f"{header.node_env}, which this node does not have",
                )
        case "node_file":
            content = _read(header.node_file, f"header {name}", where)
            try:
                value = content.decode().strip()
            except UnicodeDecodeError:
                raise PayloadRefused(
                    "bad_header", f"{where}: the file of header {name} is not UTF-8"
                ) from None
            if not value:
                raise PayloadRefused("missing_file", f"{where}: the file of header {name} is empty")
        case _:
            value = header.text
    value = f"{header.scheme} {value}" if header.scheme else value
    if any((character < " " and character != "\t") or character == "\x7f" for character in value):
        raise PayloadRefused(
            "bad_header", f"{where}: the value of header {name} holds control characters"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        # So a variable looks whose bytes are no UTF-8.
        raise PayloadRefused(
            "bad_header", f"{where}: the value of header {name} is not UTF-8"
        ) from None
    return name, value


def _read(path: str, what: str, where: str) -> bytes:
    code = "missing_ca_file" if what == "ca_file" else "missing_file"
    try:
        # Without waiting: to open a pipe would hold up this payload and all that come after it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PayloadRefused(code, f"{where}: {what} {path} is no regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such path"
        raise PayloadRefused(
            code, f"{where}: {what} {path} cannot be read on this node ({why})"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise PayloadRefused(code, f"{where}: {what} {path} is larger than {MAX_FILE_BYTES} bytes")
    if what == "ca_file" and not content:
        raise PayloadRefused("bad_ca_file", f"{where}: ca_file {path} is empty")
    return content


def _tls(authority: bytes, where: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise PayloadRefused(
            "bad_ca_file", f"{where}: ca_file holds no certificate in PEM form"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context
