"""Faults as HTTP responses, and the request id that every response carries.

It decides status, headers and body of an error response. It knows nothing of sockets: the
listener writes what is rendered here for requests that never became one, the router for the rest.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from iop_edge.serve.dialect.errors import dialect_of, error_body
from iop_shared.errors import Fault

_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_DEFAULT_RETRY_AFTER_S = 1
_random = random.Random()  # noqa: S311 - seeded by the system, and ids are no secrets
JSON = b"application/json"


class Rendered(NamedTuple):
    """A response without its length and request id, which whoever writes it adds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class FaultRenderer(Protocol):
    """How a surface shapes its errors. `headers` may lack some where reading them had to end."""

    def __call__(
        self, fault: Fault, path: str, headers: Mapping[bytes, bytes], request_id: str
    ) -> Rendered: ...


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The caller's `x-request-id` where it is 1 to 128 plain characters, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _SANE_REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return new_id("req_")


def id_headers(request_id: str, path: str) -> list[tuple[bytes, bytes]]:
    """The request id as a header, for Anthropic's clients also under the name that they read."""
    value = request_id.encode("ascii")
    if path.startswith("/v1/messages"):
        return [(b"x-request-id", value), (b"request-id", value)]
    return [(b"x-request-id", value)]


def new_id(prefix: str) -> str:
    """An id that no other request of any process has; it is no secret, and may be guessed."""
    return f"{prefix}{_random.getrandbits(96):024x}"


def retry_after_s(fault: Fault) -> int | None:
    """Whole seconds for `Retry-After`, at least 1; None where the code sends none."""
    if not fault.shape.sends_retry_after:
        return None
    if fault.retry_after_s is None or not math.isfinite(fault.retry_after_s):
        return _DEFAULT_RETRY_AFTER_S
    return max(1, math.ceil(fault.retry_after_s))


def render_fault(
    fault: Fault, path: str, headers: Mapping[bytes, bytes], request_id: str
) -> Rendered:
    """A fault in the caller's dialect (interface: errors a caller sees)."""
    dialect = dialect_of(path, has_anthropic_version=b"anthropic-version" in headers)
    body = error_body(fault, dialect, request_id)
    response_headers = [(b"content-type", JSON)]
    retry_after = retry_after_s(fault)
    if retry_after is not None:
        response_headers.append((b"retry-after", b"%d" % retry_after))
    return Rendered(fault.shape.status, response_headers, body)
