"""What a node is started with: the edge's address, its token, and nothing it could be told later.

Read from the environment alone (NODE-1). A missing or contradictory variable is named, with what
would be right; a token's value never is.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from iop_node.identity import (
    SettingsInvalid,
    bytes_of,
    edge_address,
    host_of,
    node_token,
    path_of,
)
from iop_shared.logs import Format, Level

MAX_TLS_FILE_BYTES = 1_048_576


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Everything that a node process is told from outside."""

    edge_address: str
    token: str
    is_plaintext: bool
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    metrics_address: str | None = None
    otlp_endpoint: str | None = None
    log_level: Level = "info"
    log_format: Format = "json"

    def __repr__(self) -> str:
        return f"NodeSettings(edge={self.edge_address}, plaintext={self.is_plaintext})"

    def tls_context(self) -> ssl.SSLContext | None:
        """TLS of the session; None where it is plaintext. Raises SettingsInvalid for a file that
        cannot be read, or that holds something else."""
        if self.is_plaintext:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        _trust(context, self.ca_file)
        _present(context, self.cert_file, self.key_file)
        return context


def read_settings(environment: Mapping[str, str]) -> NodeSettings:
    """Settings from environment variables. Raises SettingsInvalid."""
    address = edge_address(environment)
    host = host_of("IOP_EDGE", address, "edge:50051")
    metrics = environment.get("IOP_NODE_METRICS", "").strip()
    if metrics:
        host_of("IOP_NODE_METRICS", metrics, "127.0.0.1:9465", lowest_port=0)
    cert = path_of(environment, "IOP_NODE_CERT_FILE")
    key = path_of(environment, "IOP_NODE_KEY_FILE")
    if (cert is None) != (key is None):
        raise SettingsInvalid("IOP_NODE_CERT_FILE and IOP_NODE_KEY_FILE belong together")
    ca_file = path_of(environment, "IOP_EDGE_CA_FILE")
    wants_plaintext = environment.get("IOP_EDGE_INSECURE", "") == "1"
    has_tls_material = ca_file is not None or cert is not None
    if wants_plaintext and has_tls_material:
        raise SettingsInvalid(
            "IOP_EDGE_INSECURE=1 asks for plaintext, and IOP_EDGE_CA_FILE and IOP_NODE_CERT_FILE "
            "are for TLS: keep either"
        )
    return NodeSettings(
        edge_address=address,
        token=node_token(environment),
        # SEC-3: TLS unless the edge is on loopback or plaintext was asked for.
        is_plaintext=wants_plaintext or (_is_loopback(host) and not has_tls_material),
        ca_file=ca_file,
        cert_file=cert,
        key_file=key,
        metrics_address=metrics or None,
        otlp_endpoint=_endpoint(environment),
        log_level=cast(Level, _choice(environment, "IOP_LOG_LEVEL", get_args(Level), "info")),
        log_format=cast(Format, _choice(environment, "IOP_LOG_FORMAT", get_args(Format), "json")),
    )


def _endpoint(environment: Mapping[str, str]) -> str | None:
    endpoint = environment.get("IOP_OTLP_ENDPOINT", "").strip()
    if not endpoint:
        return None
    try:
        url = urlsplit(endpoint)
        is_usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
        is_usable = is_usable and url.username is None and not (url.query or url.fragment)
    except ValueError:
        is_usable = False
    if not is_usable:
        # Not shown: a user's password may stand in it.
        raise SettingsInvalid(
            "IOP_OTLP_ENDPOINT is no address of a collector: it takes http(s)://host:port, "
            "as in http://collector:4318, without user or query"
        )
    return endpoint


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trust(context: ssl.SSLContext, ca_file: Path | None) -> None:
    """The authority of a file alone, or those of the machine."""
    if ca_file is None:
        context.load_default_certs()
        return
    content = bytes_of("IOP_EDGE_CA_FILE", ca_file, MAX_TLS_FILE_BYTES)
    try:
        context.load_verify_locations(cadata=content.decode("ascii", "replace"))
    except OSError as error:
        raise _unusable("IOP_EDGE_CA_FILE", ca_file, error) from None


def _present(context: ssl.SSLContext, cert_file: Path | None, key_file: Path | None) -> None:
    if cert_file is None or key_file is None:
        return
    bytes_of("IOP_NODE_CERT_FILE", cert_file, MAX_TLS_FILE_BYTES)
    bytes_of("IOP_NODE_KEY_FILE", key_file, MAX_TLS_FILE_BYTES)
    try:
        # Without a password, an encrypted key would be asked for on the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except OSError as error:
        name = "IOP_NODE_CERT_FILE with IOP_NODE_KEY_FILE"
        raise _unusable(name, cert_file, error) from None


def _unusable(name: str, path: Path | None, error: OSError) -> SettingsInvalid:
    if isinstance(error, ssl.SSLError):
        what = error.reason or "it holds no certificate, or its key has a password"
        why = f"is no usable PEM file ({what})"
    else:
        why = f"cannot be read ({error.strerror})"
    return SettingsInvalid(f"{name}: {str(path)!r} {why}")


def _choice(
    environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str
) -> str:
    value = environment.get(name, "") or default
    if value not in choices:
        raise SettingsInvalid(f"{name} is {value!r}: it takes one of {', '.join(choices)}")
    return value
