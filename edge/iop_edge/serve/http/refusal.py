"""Responses to what never became a request: whole, as bytes, and the last of their connection."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from iop_edge.serve.http.errors import FaultRenderer, id_headers, request_id_of
from iop_edge.serve.http.head import response_head
from iop_shared.errors import Code, Fault, Shape


class UnknownCodingError(Fault):
    """A transfer coding that nobody here can undo (RFC 9112, section 6.1): 501 among the codes
    for what is no request."""

    def __init__(self) -> None:
        super().__init__(
            Code.INVALID_VALUE, "send the body as it is, or as Transfer-Encoding: chunked alone"
        )

    @property
    def shape(self) -> Shape:
        return super().shape._replace(status=HTTPStatus.NOT_IMPLEMENTED)


def refusal_bytes(
    render: FaultRenderer, fault: Fault, path: str, headers: Mapping[bytes, bytes]
) -> bytes:
    """The response in the surface's own shape. `path` and `headers` may lack what was not read."""
    request_id = request_id_of(headers)
    rendered = render(fault, path, headers, request_id)
    named = (
        *rendered.headers,
        (b"content-length", b"%d" % len(rendered.body)),
        *id_headers(request_id, path),
    )
    return response_head(rendered.status, named, keeps_open=False) + rendered.body
