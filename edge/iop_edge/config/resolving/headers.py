"""Headers of upstream requests: literals where they are no secret, references where they are."""

from __future__ import annotations

from collections.abc import Mapping

from iop_edge.config.document import SecretDocument
from iop_edge.config.effective import HeaderValue, ProfileAuth
from iop_edge.config.reading.decode import secret_advice
from iop_edge.config.reading.secret_paths import is_credential_header
from iop_edge.config.resolving.context import Context
from iop_edge.config.resolving.secrets import UPSTREAM_FORMS, SecretSite, secret_ref
from iop_edge.config.yaml12.places import Steps

_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


Written = Mapping[str, str | SecretDocument]


def check_header_name(
    name: str | None, steps: Steps, context: Context, *, on_key: bool = False
) -> None:
    """Report a header that no config may set."""
    if name is not None and name.casefold() in _OF_THE_CONNECTION:
        context.report.error(
            "bad_header",
            "this header belongs to the connection, which the node keeps itself",
            steps,
            on_key=on_key,
        )


def read_headers(
    written: Written | None,
    steps: Steps,
    sites: list[SecretSite],
    context: Context,
) -> tuple[HeaderValue, ...]:
    """The headers under `steps`. Every reference is added to `sites`."""
    if not written:
        return ()
    report = context.report
    headers: dict[str, HeaderValue] = {}
    for name, value in written.items():
        at = (*steps, name)
        folded = name.casefold()
        check_header_name(name, at, context, on_key=True)
        if folded in headers:
            report.error("duplicate_id", "this header stands here a second time", at, on_key=True)
        if isinstance(value, SecretDocument):
            ref = secret_ref(value, UPSTREAM_FORMS, at, report)
            sites.append(SecretSite(ref, at))
            headers[folded] = HeaderValue(name=name, value=ref)
        else:
            if is_credential_header(name):
                report.error("secret_literal", secret_advice(at), at)
            headers[folded] = HeaderValue(name=name, value=value)
    return tuple(headers.values())


def with_auth(headers: tuple[HeaderValue, ...], auth: ProfileAuth) -> tuple[HeaderValue, ...]:
    """The profile's credential added, unless a header of that name stands nearer (CFG-26)."""
    if auth.value is None or auth.header is None:
        return headers
    folded = auth.header.casefold()
    if any(header.name.casefold() == folded for header in headers):
        return headers
    return (*headers, HeaderValue(name=auth.header, value=auth.value, scheme=auth.scheme))
