"""An upstream's error body in the dialect of the caller.

A body that is an error of that dialect passes as it is. Out of the other forms that upstreams use
the message is taken; of anything else (a proxy's HTML page, plain text) nothing is repeated,
since it may name what is nobody's business outside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from iop_edge.serve.dialect.errors import Dialect, anthropic_error, openai_error
from iop_edge.serve.dialect.json_value import NOT_JSON

_MAX_MESSAGE_CHARS = 4_000

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    529: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def reshaped_error(body: bytes, status: int, dialect: Dialect, request_id: str) -> bytes:
    """The error body for the caller; never raises."""
    try:
        given: Any = msgspec.json.decode(body)
    except NOT_JSON:
        given = None
    error = given.get("error") if isinstance(given, dict) else None
    if dialect is Dialect.OPENAI:
        if _is_openai(given, error):
            return body
        kind = _text(error, "type") or _OPENAI_TYPES.get(status, "upstream_error")
        code = _text(error, "code") or _text(given, "code")
        return openai_error(kind, _message(given, error, status), _text(error, "param"), code)
    if _is_anthropic(given, error):
        return body
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return anthropic_error(kind, _message(given, error, status), request_id)


def _is_openai(given: Any, error: Any) -> bool:
    # Anthropic's error has the same inner object, beside a type of its own.
    return isinstance(error, dict) and isinstance(error.get("message"), str) and "type" not in given


def _is_anthropic(given: Any, error: Any) -> bool:
    return (
        isinstance(error, dict)
        and given.get("type") == "error"
        and isinstance(error.get("type"), str)
        and isinstance(error.get("message"), str)
    )


def _message(given: Any, error: Any, status: int) -> str:
    candidates = (
        _text(error, "message"),
        error if isinstance(error, str) else None,
        _text(given, "message"),
        _text(given, "detail"),
    )
    found = next((text for text in candidates if text), None)
    return found[:_MAX_MESSAGE_CHARS] if found else f"the upstream answered with status {status}"


def _text(holder: Any, key: str) -> str | None:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else None
