"""Statuses of gRPC, the error that carries one, and their forms in headers and trailers.

It decides spelling alone, after "gRPC over HTTP2" (PROTOCOL-HTTP2.md of grpc/grpc), and knows
neither a connection nor what a status means to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from urllib.parse import unquote_to_bytes

from h2.errors import ErrorCodes

Metadata = Iterable[tuple[str, str]]

CONTENT_TYPE = "application/grpc"

MAX_DETAILS_BYTES = 4096
"""Of a status's words, as they are sent: half of what a peer takes for all its headers."""

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
    if not number:
        return RpcError(StatusCode.UNKNOWN, "the call ended without a status")
    try:
        code = StatusCode(int(number))
    except ValueError:
        code = StatusCode.UNKNOWN
    if code is StatusCode.OK:
        return None
    message = headers.get("grpc-message", "").encode("latin-1")
    details = unquote_to_bytes(message).decode("utf-8", "replace")
    return RpcError(code, details, filter(_is_metadata, headers.items()))


def plain(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as text. Those of one name are one, joined by commas: so nobody who reads them takes
    the first where another takes the last."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def is_grpc(content_type: str) -> bool:
    """`application/grpc`, with the name of an encoding (`+proto`) or parameters or without."""
    kind, _, _ = content_type.partition(";")
    name, _, _ = kind.strip().lower().partition("+")
    return name == CONTENT_TYPE


def timeout_s(text: str | None) -> float | None:
    """`grpc-timeout` in seconds; None where there is none, or none that can be read."""
    if not text:
        return None
    digits, unit = text[:-1], text[-1]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_TIMEOUT_DIGITS
    if not is_number or unit not in _TIMEOUT_UNITS_S:
        return None
    return int(digits) * _TIMEOUT_UNITS_S[unit]


def reset_error(code: int) -> RpcError:
    """What it means that the peer has reset a call (PROTOCOL-HTTP2.md, "Errors")."""
    if code == ErrorCodes.CANCEL:
        return RpcError(StatusCode.CANCELLED, "the peer cancelled the call")
    if code == ErrorCodes.REFUSED_STREAM:
        return RpcError(StatusCode.UNAVAILABLE, "the peer refused the call")
    if code == ErrorCodes.ENHANCE_YOUR_CALM:
        return RpcError(StatusCode.RESOURCE_EXHAUSTED, "the peer asks for calm")
    return RpcError(StatusCode.INTERNAL, f"the peer reset the call: {http2_name(code)}")


def http2_name(code: int) -> str:
    """An error code of HTTP/2 in words."""
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"HTTP/2 error {code}"


def _is_metadata(header: tuple[str, str]) -> bool:
    name, _ = header
    return not name.startswith((":", "grpc-")) and name != "content-type"


def _percent_encoded(text: str) -> str:
    """As it is sent, cut behind the last character that fits."""
    pieces: list[str] = []
    room = MAX_DETAILS_BYTES
    for character in text:
        raw = character.encode("utf-8", "replace")
        is_plain = 0x20 <= raw[0] <= 0x7E and raw != b"%"
        piece = raw.decode() if is_plain else "".join(f"%{byte:02X}" for byte in raw)
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    return "".join(pieces)
