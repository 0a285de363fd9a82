"""Statuses of gRPC, the error that carries one, and their forms in headers and trailers.

It decides spelling alone, after "gRPC over HTTP2" (PROTOCOL-HTTP2.md of grpc/grpc), and knows
neither a connection nor what a status means to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from urllib.parse import unquote_to_bytes

Metadata = Iterable[tuple[str, str]]

CONTENT_TYPE = "application/grpc"

_TIMEOUT_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_TIMEOUT_DIGITS = 8


class StatusCode(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that did not end well: its status, what was said, and what came with it."""

    def __init__(self, code: StatusCode, details: str, trailers: Metadata = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.trailers = tuple(trailers)


def status_trailers(error: RpcError | None) -> list[tuple[str, str]]:
    """The trailers that end a call; None is an end without error."""
    if error is None:
        return [("grpc-status", "0")]
    trailers = [("grpc-status", str(int(error.code)))]
    if error.details:
        trailers.append(("grpc-message", _percent_encoded(error.details)))
    return trailers + list(error.trailers)


def error_of(headers: Mapping[str, str]) -> RpcError | None:
    """What the trailers of a call say. A status that is none of the known ones is UNKNOWN."""
    number = headers.get("grpc-status", "")
    details = unquote_to_bytes(headers.get("grpc-message", "")).decode("utf-8", "replace")
    if number == "0":
        return None
    if not number:
        return RpcError(StatusCode.UNKNOWN, "the call ended without a status")
    try:
        code = StatusCode(int(number))
    except ValueError:
        code = StatusCode.UNKNOWN
    return RpcError(code, details)


def plain(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as text. Of one that stands twice, the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def timeout_s(text: str | None) -> float | None:
    """`grpc-timeout` in seconds; None where there is none, or none that can be read."""
    if not text:
        return None
    digits, unit = text[:-1], text[-1]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_TIMEOUT_DIGITS
    if not is_number or unit not in _TIMEOUT_UNITS_S:
        return None
    return int(digits) * _TIMEOUT_UNITS_S[unit]


def _percent_encoded(text: str) -> str:
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )
