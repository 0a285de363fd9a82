"""How the commands reach a running edge: its admin address, and small JSON requests to it.

It speaks plain HTTP over loopback or a Unix socket, and knows nothing of what the answers mean.
Nothing that answers there is trusted to be an edge.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeVar

import click
import msgspec

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 120.0
"""Longer than a refresh waits for its nodes."""

MAX_ANSWER_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 65_536


class Unreachable(Exception):
    """Nobody answers at the admin address. The message says where and why."""

    code = "unreachable"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the edge is not reachable at {address}: {reason}. Is `iop-edge serve` running here?"
            " Another address: --admin or IOP_EDGE_ADMIN."
        )
        self.address = address
        self.reason = reason


class NoAnswer(Exception):
    """Somebody answers at the admin address, but not as an edge does."""

    code = "no_answer"

    def __init__(self) -> None:
        super().__init__("what answers at the admin address is no edge")


def read(document: Any, kind: type[T]) -> T:
    """The document as this shape. Raises NoAnswer."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError:
        raise NoAnswer from None


def tell(failure: Unreachable | NoAnswer, *, as_json: bool) -> None:
    """Say it on stderr, and where JSON is wanted also as JSON on stdout."""
    if as_json:
        click.echo(json.dumps({"error": {"code": failure.code, "message": str(failure)}}))
    click.echo(f"iop-edge: {failure}", err=True)


class AdminClient:
    """`address` is `host:port`, `http://host:port` or `unix:/path`. Raises ValueError else."""

    def __init__(self, address: str) -> None:
        self.address = address
        text = address.removeprefix("http://").rstrip("/")
        self._unix_path = text.removeprefix("unix:") if text.startswith("unix:") else None
        if self._unix_path is None:
            host, _, port = text.rpartition(":")
            is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
            if not (host and is_port) or "/" in text:
                raise self._is_none()
            self._host, self._port = host.strip("[]"), int(port)

    def get(self, path: str) -> Any:
        """GET one document, whatever its HTTP status. Raises Unreachable or NoAnswer."""
        documents = [*self._request("GET", path, None)]
        if len(documents) != 1:
            raise NoAnswer
        return documents[0]

    def post(self, path: str, body: Any) -> Iterator[Any]:
        """POST a document; gives each line of a streamed answer as it comes, the result last.

        Raises Unreachable or NoAnswer, also midway.
        """
        return self._request("POST", path, json.dumps(body).encode())

    def _is_none(self) -> ValueError:
        return ValueError(f"{self.address!r} is no admin address: write host:port or unix:/path")

    def _request(self, method: str, path: str, body: bytes | None) -> Iterator[Any]:
        headers = {"Accept": "application/x-ndjson, application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        with closing(self._connect()) as connection:
            try:
                connection.request(method, path, body, headers)
                with connection.getresponse() as response:
                    if response.headers.get_content_type() == "application/x-ndjson":
                        documents = _lines(response)
                    else:
                        documents = iter([response.read(MAX_ANSWER_BYTES)])
                    for document in documents:
                        yield json.loads(document)
            except (ValueError, RecursionError):
                raise NoAnswer from None
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(self.address, _why(error)) from error

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._unix_path is not None:
            connection = _UnixConnection(self._unix_path)
        else:
            connection = http.client.HTTPConnection(
                self._host, self._port, timeout=CONNECT_TIMEOUT_S
            )
        try:
            connection.connect()
        except UnicodeError:  # a name that cannot be looked up
            raise self._is_none() from None
        except OSError as error:
            connection.close()
            raise Unreachable(self.address, _why(error)) from error
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        return connection


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        self.sock.connect(self._path)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Each line as it comes. Raises IncompleteRead where the connection broke before the end;
    `readline` would take that for the end."""
    waiting = b""
    while piece := response.read1(_PIECE_BYTES):
        *lines, waiting = (waiting + piece).split(b"\n")
        yield from lines
    if waiting:
        yield waiting


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "it went away before it had answered"
    if isinstance(error, OSError):
        return error.strerror.lower() if error.strerror else str(error)
    return type(error).__name__
