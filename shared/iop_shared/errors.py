"""Every fault a caller can meet, and what it looks like in each dialect (OAI-5).

One table, total: a test walks it and every raise names a code out of it. This module knows
no socket and no request; the ingress shapes bodies from what stands here.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import NamedTuple


class Code(enum.StrEnum):
    """Stable codes. The value is what a caller reads in `error.code`."""

    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_BY_MODEL = "unsupported_by_model"
    UNSUPPORTED_FIELD = "unsupported_field"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    PROVIDER_TOKEN_REQUIRED = "provider_token_required"  # noqa: S105 - a code, not a token
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REQUEST_TOO_LARGE = "request_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_PROVIDER = "no_provider"
    DRAINING = "draining"
    NODE_LOST = "node_lost"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_CLOSED = "upstream_closed"
    UPSTREAM_INVALID = "upstream_invalid"
    UPSTREAM_CONNECT_TIMEOUT = "upstream_connect_timeout"
    UPSTREAM_FIRST_BYTE_TIMEOUT = "upstream_first_byte_timeout"
    UPSTREAM_IDLE_TIMEOUT = "upstream_idle_timeout"
    UPSTREAM_TOTAL_TIMEOUT = "upstream_total_timeout"
    DRAIN_DEADLINE = "drain_deadline"
    INTERNAL = "internal"


class Shape(NamedTuple):
    """How one code looks from outside."""

    status: int
    """HTTP status, the same in both dialects."""
    openai_type: str
    anthropic_type: str
    grpc_status: str
    """Name of a gRPC status code."""
    is_retryable: bool
    """The same request may succeed later or elsewhere."""
    sends_retry_after: bool = False


_INVALID = ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")
_AUTH = ("authentication_error", "authentication_error", "UNAUTHENTICATED")
_UNAVAILABLE = ("service_unavailable_error", "overloaded_error", "UNAVAILABLE")
_UPSTREAM = ("upstream_error", "api_error", "UNAVAILABLE")
_TIMEOUT = ("upstream_error", "timeout_error", "DEADLINE_EXCEEDED")

SHAPES: MappingProxyType[Code, Shape] = MappingProxyType(
    {
        Code.INVALID_VALUE: Shape(400, *_INVALID, False),
        Code.UNSUPPORTED_BY_MODEL: Shape(400, *_INVALID, False),
        Code.UNSUPPORTED_FIELD: Shape(400, *_INVALID, False),
        Code.CONTEXT_LENGTH_EXCEEDED: Shape(400, *_INVALID, False),
        Code.INVALID_API_KEY: Shape(401, *_AUTH, False),
        Code.PROVIDER_TOKEN_REQUIRED: Shape(401, *_AUTH, False),
        Code.MODEL_NOT_FOUND: Shape(
            404, "invalid_request_error", "not_found_error", "NOT_FOUND", False
        ),
        Code.NOT_FOUND: Shape(404, "invalid_request_error", "not_found_error", "NOT_FOUND", False),
        Code.METHOD_NOT_ALLOWED: Shape(
            405, "invalid_request_error", "invalid_request_error", "UNIMPLEMENTED", False
        ),
        Code.UNSUPPORTED_MEDIA_TYPE: Shape(415, *_INVALID, False),
        Code.REQUEST_TOO_LARGE: Shape(
            413, "invalid_request_error", "request_too_large", "RESOURCE_EXHAUSTED", False
        ),
        Code.HEADERS_TOO_LARGE: Shape(
            431, "invalid_request_error", "request_too_large", "RESOURCE_EXHAUSTED", False
        ),
        Code.REQUEST_TIMEOUT: Shape(
            408, "invalid_request_error", "timeout_error", "DEADLINE_EXCEEDED", False
        ),
        Code.QUEUE_FULL: Shape(
            429, "rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED", True, True
        ),
        Code.QUEUE_TIMEOUT: Shape(503, *_UNAVAILABLE, True, True),
        Code.NO_PROVIDER: Shape(503, *_UNAVAILABLE, True, True),
        Code.DRAINING: Shape(503, *_UNAVAILABLE, True, True),
        Code.NODE_LOST: Shape(502, *_UPSTREAM, True),
        Code.UPSTREAM_REFUSED: Shape(502, *_UPSTREAM, True),
        Code.UPSTREAM_CLOSED: Shape(502, *_UPSTREAM, True),
        Code.UPSTREAM_INVALID: Shape(502, *_UPSTREAM, True),
        Code.UPSTREAM_CONNECT_TIMEOUT: Shape(504, *_TIMEOUT, True),
        Code.UPSTREAM_FIRST_BYTE_TIMEOUT: Shape(504, *_TIMEOUT, True),
        Code.UPSTREAM_IDLE_TIMEOUT: Shape(504, *_TIMEOUT, True),
        Code.UPSTREAM_TOTAL_TIMEOUT: Shape(504, *_TIMEOUT, True),
        Code.DRAIN_DEADLINE: Shape(503, *_UNAVAILABLE, True),
        Code.INTERNAL: Shape(500, "server_error", "api_error", "INTERNAL", True),
    }
)


class Fault(Exception):
    """A failure a caller is told of: a stable code, a sentence, and facts.

    `message` is for people and holds no secret, prompt, completion or private endpoint (SEC-1).
    `param` names the offending field of the request. `retry_after_s` is in seconds, and is sent
    only for codes whose shape says so.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def shape(self) -> Shape:
        return SHAPES[self.code]

    def __repr__(self) -> str:
        return f"Fault({self.code.value}: {self.message})"
