"""What a fault looks like in a caller's protocol (OAI-5).

Pure: it knows the two error shapes and the table of codes, and nothing of HTTP or of sockets.
"""

from __future__ import annotations

import enum

import msgspec

from iop_shared.errors import Fault

_encode = msgspec.json.Encoder().encode


class Dialect(enum.Enum):
    """Which error shape a caller expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


def dialect_of(path: str, *, has_anthropic_version: bool = False) -> Dialect:
    """The dialect of a request: by its path, and for the model list by the version header."""
    if path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    if has_anthropic_version and path.startswith("/v1/models"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


def error_body(fault: Fault, dialect: Dialect, request_id: str) -> bytes:
    """The JSON body of an error response."""
    if dialect is Dialect.ANTHROPIC:
        return anthropic_error(fault.shape.anthropic_type, fault.message, request_id)
    return openai_error(fault.shape.openai_type, fault.message, fault.param, fault.code.value)


def openai_error(kind: str, message: str, param: str | None, code: str | None) -> bytes:
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def anthropic_error(kind: str, message: str, request_id: str) -> bytes:
    return _encode(
        {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": request_id,
        }
    )


def error_event(fault: Fault, dialect: Dialect, request_id: str) -> bytes:
    """The server-sent event that ends a stream which had already begun (OAI-7)."""
    body = error_body(fault, dialect, request_id)
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + body + b"\n\n"
    return b"data: " + body + b"\n\n"
