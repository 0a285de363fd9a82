"""The one line that makes a fresh machine a node: what it dials, what it trusts, what it pins.

The line needs Python and nothing else. It fetches the join script, runs it only where its sha256
is the one in the line, and hands it everything else as arguments: the edge, the digest of the
manifest, and the edge's own certificate authority where TLS is used with one. A token is no
argument, since arguments are shown to every user of a machine.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.resolving.addresses import HostPort, is_loopback, parse_host_port
from iop_edge.serve.bootstrap.authority import UnusableAuthority, authority_in, authority_of
from iop_shared.ids import NodeId

SCRIPT_PATH = "join.py"
SCRIPT = Path(__file__).with_name("join_script.py").read_bytes()
"""The script as this process serves it, whatever is installed later."""

_WILDCARDS = ("0.0.0.0", "::")

_FETCH = (
    "import {modules}hashlib,sys,urllib.request as r;sys.tracebacklimit=0;u,d=sys.argv[1:3];"
    "s=r.build_opener(r.ProxyHandler({{}}){handler}).open(u,timeout=60).read(1<<20);"
    'hashlib.sha256(s).hexdigest()==d or sys.exit("join: "+u+" is not the script that this line '
    'was made for; nothing was run");exec(compile(s,u,"exec"))'
)
_TRUSTING = (
    ",r.HTTPSHandler(context=ssl.create_default_context(cadata=base64.b64decode("
    'sys.argv[1+sys.argv.index("--ca")])))'
)


class NotJoinable(Exception):
    """No line can be made from this config; the message says which key would make one."""


class JoinLine(Struct, frozen=True, kw_only=True):
    """`line` is what is pasted; `notes` are sentences for the person who pastes it."""

    line: str
    edge: str
    bootstrap: str
    notes: tuple[str, ...]


class NodeFiles(Struct, frozen=True, kw_only=True):
    """Paths on the machine that joins."""

    token_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def join_line(
    config: EffectiveConfig,
    *,
    manifest_sha256: str,
    node_id: NodeId | None = None,
    files: NodeFiles | None = None,
    ca_file: str | None = None,
    token: str | None = None,
    server_listens: str | None = None,
    bootstrap_listens: str | None = None,
) -> JoinLine:
    """The line for one node, or for whichever node the token is of.

    `ca_file` names the authority of the edge's certificates, where it is not in their chain.
    `token`, or a placeholder for it, stands before the line as the value of IOP_NODE_TOKEN.
    `…_listens` are where a running edge really listens. Raises NotJoinable.
    """
    files = files or NodeFiles()
    notes: list[str] = []
    edge = config.edge.advertise or _reachable(server_listens or config.server.listen)
    dialled = parse_host_port(edge)
    url = _bootstrap_url(config, bootstrap_listens, dialled.host)
    if dialled.is_loopback or is_loopback(_host_of(url)):
        notes.append(
            "this line works on this machine alone: set edge.advertise and bootstrap.advertise to "
            "addresses that other machines reach"
        )
    authority = _authority(config, url, ca_file, dialled, notes)
    arguments = ["--edge", edge, "--from", url, "--manifest", manifest_sha256]
    if node_id is not None:
        # As one word: an id may begin with a dash.
        arguments.append(f"--node={node_id}")
    if authority:
        arguments += ["--ca", base64.b64encode(authority).decode("ascii")]
    if config.server.tls is None and (authority or not dialled.is_loopback):
        # Said on loopback too where an authority is pinned, which is then for the fetch alone.
        arguments.append("--insecure")
    if config.server.tls is None and not dialled.is_loopback:
        notes.append("the session is plaintext: server.tls is not set (SEC-3)")
    if config.server.tls is not None and config.server.tls.client_ca_file is not None:
        certificate, key = files.cert_file or "node.crt", files.key_file or "node.key"
        arguments += ["--cert-file", certificate, "--key-file", key]
        notes.append(
            f"the edge asks for a client certificate: {certificate} and {key} must lie on that "
            "machine, and name this node"
        )
    if files.token_file is not None:
        arguments += ["--token-file", files.token_file]
    is_checked = bool(authority) and url.startswith("https:")
    code = _FETCH.format(
        modules="base64,ssl," if is_checked else "", handler=_TRUSTING if is_checked else ""
    )
    words = ["python3", "-c", code, url + SCRIPT_PATH, sha256(SCRIPT).hexdigest(), *arguments]
    prefix = "" if token is None else f"IOP_NODE_TOKEN={shlex.quote(token)} "
    return JoinLine(line=prefix + _joined(words), edge=edge, bootstrap=url, notes=tuple(notes))


def _joined(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _address(listen: str, section: str, advertises: str) -> HostPort:
    address = parse_host_port(listen)
    if address.port == 0:
        raise NotJoinable(
            f"{section}.listen picks a free port at each start: name one, or set {advertises} to "
            "what joining machines dial"
        )
    return address


def _reachable(listen: str) -> str:
    address = _address(listen, "server", "edge.advertise")
    if address.host in _WILDCARDS:
        raise NotJoinable(
            f"server.listen names no host that a node could dial ({address.host}): set "
            "edge.advertise"
        )
    return _text(address.host, address.port)


def _bootstrap_url(config: EffectiveConfig, listens: str | None, edge_host: str) -> str:
    """With a slash at its end. A listener on every address is reached by the edge's own host."""
    scheme = "http" if config.bootstrap.tls is None else "https"
    advertised = config.bootstrap.advertise
    if advertised is not None:
        url = advertised if "://" in advertised else f"{scheme}://{advertised}"
        return url.rstrip("/") + "/"
    listen = listens or config.bootstrap.listen
    address = _address(listen, "bootstrap", "bootstrap.advertise")
    host = edge_host if address.host in _WILDCARDS else address.host
    return f"{scheme}://{_text(host, address.port)}/"


def _authority(
    config: EffectiveConfig, url: str, ca_file: str | None, edge: HostPort, notes: list[str]
) -> bytes:
    """The authorities to pin, each once. Empty where public ones are to be trusted, or none."""
    used = [config.server.tls]
    if url.startswith("https:"):
        used.append(config.bootstrap.tls)
    chains = [tls for tls in used if tls is not None]
    try:
        if ca_file is not None:
            return authority_in(ca_file)
        found = [authority_of(tls) for tls in chains]
    except UnusableAuthority as unusable:
        raise NotJoinable(str(unusable)) from None
    if config.server.tls is not None and not found[0]:
        if edge.is_loopback:
            raise NotJoinable(
                "the chain in server.tls.cert_file ends in no authority of its own: name it with "
                "--ca-file"
            )
        notes.append(
            "the edge's certificate must be one of a public authority: its chain holds no other; "
            "--ca-file names one"
        )
    return b"".join(dict.fromkeys(found))


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
