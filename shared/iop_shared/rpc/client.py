"""Dialling, and the one call that is made on a connection.

A failure to connect says what layer failed and how, so that its words can say what to change.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Literal

from h2.errors import ErrorCodes
from h2.events import Event, ResponseReceived, TrailersReceived
from h2.exceptions import H2Error

from iop_shared.rpc.codes import (
    CONTENT_TYPE,
    Metadata,
    RpcError,
    StatusCode,
    error_of,
    is_grpc,
    plain,
)
from iop_shared.rpc.connection import Connection
from iop_shared.rpc.stream import Stream

HANDSHAKE_TIMEOUT_S = 10.0

DialFailure = Literal["unreachable", "untrusted", "wrong_name", "not_tls", "closed_early"]


class DialError(Exception):
    """No connection was made. `kind` says how far it came."""

    def __init__(self, kind: DialFailure, details: str) -> None:
        super().__init__(details)
        self.kind = kind


class ClientConnection(Connection):
    """A connection that was dialled. Raises nothing by itself: its call tells."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, is_client=True)

    def call(
        self, authority: str, path: str, metadata: Metadata, *, max_message_bytes: int
    ) -> Stream:
        """Begin a call. Raises RpcError(UNAVAILABLE) where the connection is over already, or its
        peer takes no more calls."""
        if self.closed_reason is not None or self.is_leaving:
            raise RpcError(StatusCode.UNAVAILABLE, self.closed_reason or "the peer goes away")
        headers = [
            (":method", "POST"),
            (":scheme", "https" if self.transport.get_extra_info("sslcontext") else "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", CONTENT_TYPE),
            *metadata,
        ]
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers)
        except H2Error as error:
            # By its name alone: what it says may quote the metadata.
            reason = f"the call could not begin: {type(error).__name__}"
            raise RpcError(StatusCode.UNAVAILABLE, reason) from None
        stream = self.streams[stream_id] = Stream(self, stream_id, max_message_bytes)
        self._write_h2()
        self._open_window(stream)
        return stream

    def _happened(self, event: Event) -> None:
        if not isinstance(event, ResponseReceived | TrailersReceived):
            return
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        headers = plain(event.headers)
        if isinstance(event, TrailersReceived):
            self._ended(stream, headers)
            return
        stream.headers = headers
        if headers[":status"] != "200":
            code = StatusCode.UNAVAILABLE
            stream.fail(RpcError(code, f"HTTP status {headers[':status']}"))
        elif "grpc-status" in headers:
            self._ended(stream, headers)
        elif not is_grpc(headers.get("content-type", "")):
            stream.fail(RpcError(StatusCode.UNKNOWN, "what answers does not speak gRPC"))
        else:
            stream.is_heard = True

    def _ended(self, stream: Stream, trailers: dict[str, str]) -> None:
        # Whatever this end still had to say, nobody listens.
        self.reset(stream, ErrorCodes.NO_ERROR)
        stream.closed(error_of(trailers))

    def _peer_ended(self, stream: Stream) -> None:
        stream.fail(RpcError(StatusCode.UNKNOWN, "the call ended without a status"))


async def dial(host: str, port: int, *, tls: ssl.SSLContext | None) -> ClientConnection:
    """Connect. Raises DialError."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: ClientConnection(loop),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
        )
    except ssl.SSLCertVerificationError as error:
        raise DialError(_verification(error), error.verify_message) from None
    except ssl.SSLError as error:
        is_plain = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
        kind: DialFailure = "not_tls" if is_plain else "closed_early"
        raise DialError(kind, error.reason or type(error).__name__) from None
    except OSError as error:
        is_cut = isinstance(error, ConnectionError) and not isinstance(
            error, ConnectionRefusedError
        )
        kind = "closed_early" if is_cut else "unreachable"
        raise DialError(kind, (error.strerror or str(error)).lower()) from None
    except UnicodeError:
        raise DialError("unreachable", "the host is no name") from None
    return connection


def _verification(error: ssl.SSLCertVerificationError) -> DialFailure:
    # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL.
    return "wrong_name" if error.verify_code in (62, 64) else "untrusted"
