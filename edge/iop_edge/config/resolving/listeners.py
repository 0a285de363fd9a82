"""Everything that listens: where it may, and what it needs off loopback (SEC-2, SEC-3)."""

from __future__ import annotations

from typing import Any

from iop_edge.config import effective
from iop_edge.config.document import Document
from iop_edge.config.document.openai import OpenAIDocument
from iop_edge.config.document.sections import BootstrapDocument, ServerDocument
from iop_edge.config.resolving.addresses import HostPort, Refused, check_url, parse_host_port
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.yaml12.places import Steps

MAX_SOCKET_PATH_BYTES = 107
"""What the operating system takes."""

_EVERYWHERE = frozenset({"0.0.0.0", "::"})

NOT_BUILT = ("console", "control_plane", "a2a")


def tls_of(document: ServerDocument | BootstrapDocument | OpenAIDocument | None) -> Any:
    """The effective TLS files of a section, or None."""
    return fill(effective.Tls, document.tls) if document and document.tls else None


def check_listeners(document: Document, context: Context) -> None:
    """Report every address that cannot be listened on, and what must not be listened on so."""
    written: dict[str, HostPort] = {}
    for name in ("server", "bootstrap", "metrics", "openai", *NOT_BUILT):
        section = getattr(document, name)
        address = _address(getattr(section, "listen", None), (name, "listen"), context)
        if address is not None:
            written[name] = address
            if name in ("server", "bootstrap", "openai"):
                _check_plaintext(name, section, address, context)
    admin = _admin(document, context)
    if admin is not None:
        written["admin"] = admin
    _check_free(document, written, context)
    _check_principals(document.openai, context)
    for name in NOT_BUILT:
        section = getattr(document, name)
        if section is not None and section.enabled:
            context.report.warning(
                "not_built",
                f"`{name}` is not built yet; enabling it does nothing",
                (name, "enabled"),
            )
    _check_advertised(document, context)


def _check_free(document: Document, written: dict[str, HostPort], context: Context) -> None:
    """No two listeners share an address. Told at one that is written, for two defaults differ."""
    taken: list[tuple[str, HostPort]] = []
    listening = ["server", "bootstrap", "admin", "metrics"]
    if document.openai is not None and document.openai.enabled:
        listening.append("openai")
    for name in sorted(listening, key=lambda name: name in written):
        address = written.get(name)
        if address is None:
            if getattr(getattr(document, name), "listen", None) is not None:
                continue  # A socket, or no address at all.
            address = parse_host_port(getattr(effective.EffectiveConfig(), name).listen)
        other = next((one for one, held in taken if _overlap(held, address)), None)
        if other is not None:
            context.report.error(
                "address_taken", f"`{other}` listens on this address already", (name, "listen")
            )
        taken.append((name, address))


def _overlap(one: HostPort, other: HostPort) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or bool({one.host, other.host} & _EVERYWHERE)


def _address(listen: str | None, steps: Steps, context: Context) -> HostPort | None:
    if listen is None:
        return None
    try:
        return parse_host_port(listen)
    except Refused as refused:
        context.report.error("bad_address", f"this {refused}", steps)
        return None


def _check_plaintext(name: str, section: Any, address: HostPort, context: Context) -> None:
    if address.is_loopback or section.tls is not None:
        return
    steps = (name, "listen")
    if section.insecure:
        context.report.warning(
            "plaintext_off_loopback",
            "other machines reach this listener, and it speaks plaintext (`insecure: true`)",
            steps,
        )
    else:
        context.report.error(
            "plaintext_off_loopback",
            "other machines reach this listener, and it would speak plaintext; add `tls`, listen "
            "on 127.0.0.1, or allow it with `insecure: true`",
            steps,
        )


def _admin(document: Document, context: Context) -> HostPort | None:
    """The operator's own address where it is one of a host (SEC-2)."""
    listen = document.admin.listen if document.admin is not None else None
    steps = ("admin", "listen")
    if listen is not None and listen.startswith("unix:"):
        _check_socket(listen.removeprefix("unix:"), steps, context)
        return None
    address = _address(listen, steps, context)
    if address is not None and not address.is_loopback:
        context.report.error(
            "admin_off_loopback",
            "the admin listener is for this machine alone; listen on 127.0.0.1, [::1] or "
            "`unix:/path`",
            steps,
        )
    return address


def _check_socket(path: str, steps: Steps, context: Context) -> None:
    length = len(path.encode("utf-8"))
    if not path.startswith("/"):
        context.report.error(
            "bad_address", "this must name a socket by its whole path: `unix:/path`", steps
        )
    elif length > MAX_SOCKET_PATH_BYTES:
        context.report.error(
            "bad_address",
            f"a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, and this has {length}",
            steps,
        )


def _check_principals(openai: OpenAIDocument | None, context: Context) -> None:
    """Without principals nobody is asked for a token, so only this machine may call (OAI-3)."""
    if openai is None or openai.listen is None or openai.principal_tokens:
        return
    try:
        address = parse_host_port(openai.listen)
    except Refused:
        return
    if not address.is_loopback:
        context.report.error(
            "open_to_all",
            "other machines reach this listener, and without `principal_tokens` nobody is asked "
            "for a token; add entries, or listen on 127.0.0.1",
            ("openai", "listen"),
        )


def _check_advertised(document: Document, context: Context) -> None:
    if document.edge is not None and document.edge.advertise is not None:
        _check_dialled(document.edge.advertise, ("edge", "advertise"), context)
    if document.bootstrap is not None and document.bootstrap.advertise is not None:
        steps = ("bootstrap", "advertise")
        if "://" in document.bootstrap.advertise:
            _check_called(document.bootstrap.advertise, steps, context)
        else:
            _check_dialled(document.bootstrap.advertise, steps, context)
    if document.telemetry is not None and document.telemetry.otlp_endpoint is not None:
        _check_called(document.telemetry.otlp_endpoint, ("telemetry", "otlp_endpoint"), context)
    if document.control_plane is not None and document.control_plane.url is not None:
        _check_called(document.control_plane.url, ("control_plane", "url"), context)


def _check_dialled(address: str, steps: Steps, context: Context) -> None:
    try:
        port = parse_host_port(address).port
    except Refused as refused:
        context.report.error("bad_address", f"this {refused}", steps)
        return
    if port == 0:
        context.report.error("bad_address", "this must name the port that nodes dial", steps)


def _check_called(url: str, steps: Steps, context: Context) -> None:
    try:
        check_url(url)
    except Refused as refused:
        context.report.error("bad_url", f"this {refused}", steps)
