"""An HTTP listener: sockets, TLS, and connections that are bounded and drained.

It decides where is listened and when connections end. It knows no route: a handler is handed
in. It takes no signal, writes no access log, and works on any event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import PurePath
from traceback import extract_tb
from types import TracebackType
from typing import Self

from iop_edge.config.effective import IngressLimits, Tls
from iop_edge.serve.http import address as addresses
from iop_edge.serve.http.address import ListenError
from iop_edge.serve.http.connection import Connection
from iop_edge.serve.http.errors import FaultRenderer, render_fault
from iop_edge.serve.http.request import Handler
from iop_shared import logs
from iop_shared.cork import Cork

log = logs.get("http")


class HttpListener:
    """Serves a handler of requests on one address, within limits.

    `address` is `host:port` (port 0 picks one), `[ipv6]:port`, `unix:/path` (mode `unix_mode`), or
    sockets that are bound already. Usable as `async with`; leaving it stops at once.

    A handler whose caller is gone is cancelled, unless `cancels_when_caller_leaves` is false.
    """

    def __init__(
        self,
        handler: Handler,
        address: str | Sequence[socket.socket],
        *,
        limits: IngressLimits | None = None,
        tls: Tls | None = None,
        unix_mode: int = 0o600,
        cancels_when_caller_leaves: bool = True,
        render: FaultRenderer = render_fault,
    ) -> None:
        self.limits = limits or IngressLimits()
        self.render = render
        self.cancels_when_caller_leaves = cancels_when_caller_leaves
        self.handler = handler
        self.is_stopping = False
        self.connections: set[Connection] = set()
        """Those that are open, or whose handler has not ended."""
        self.cork = Cork(self.connections)
        self._given = address
        self._tls = tls
        self._unix_mode = unix_mode
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._is_idle = asyncio.Event()
        self.bound: tuple[str, ...] = ()
        """The addresses that are listened on, once started."""

    @property
    def address(self) -> str:
        """The first bound address, as `host:port`, `[ipv6]:port` or `unix:/path`."""
        return self.bound[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raises ListenError, which names the address or the TLS file; nothing is left."""
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else tls_context(self._tls)
        if isinstance(self._given, str):
            self._sockets = addresses.bind(self._given, unix_mode=self._unix_mode)
        else:
            self._sockets = list(self._given)
        self.bound = tuple(addresses.bound_address(each) for each in self._sockets)
        handshake_s = self.limits.receive_timeout_ms / 1000
        for each in self._sockets:
            server = await loop.create_server(
                lambda: Connection(self, loop),
                sock=each,
                # The loop listens once more, with a backlog of its own.
                backlog=addresses.BACKLOG,
                ssl=context,
                ssl_handshake_timeout=handshake_s if context else None,
                # What is still to be taken of an answer is sent before TLS is ended.
                ssl_shutdown_timeout=self.limits.write_timeout_ms / 1000 if context else None,
            )
            self._servers.append(server)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, let requests in progress end for `grace_s` seconds, cut the rest.

        Returns when no connection and no handler is left. A second call changes nothing.
        """
        self.is_stopping = True
        for server in self._servers:
            server.close()
        if isinstance(self._given, str):
            for each in self.bound:
                addresses.remove_socket_file(each)
        for connection in list(self.connections):
            connection.drain()
        if not self.connections:
            return
        timer = asyncio.get_running_loop().call_later(grace_s, self._cut)
        try:
            while self.connections:
                self._is_idle.clear()
                await self._is_idle.wait()
        finally:
            timer.cancel()

    def _cut(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def connection_ended(self) -> None:
        """A connection has been taken out of `connections`, by itself."""
        if self.is_stopping:
            self._is_idle.set()

    def handler_failed(self, error: BaseException) -> None:
        """A handler raised what it should have answered. Its message may hold a caller's text."""
        log.error("handler_failed", error=type(error).__name__, at=origin_of(error))


def origin_of(error: BaseException) -> str:
    """Where an error was raised, as `file:line`; the message is left out on purpose (SEC-1)."""
    frames = extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"


def tls_context(tls: Tls, *, speaks: str = "http/1.1") -> ssl.SSLContext:
    """A server context of TLS 1.2 or later for a protocol, by its ALPN name. Raises ListenError
    that names the file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([speaks])
    try:
        # Without a password, an encrypted key would be asked for on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except (OSError, ssl.SSLError) as error:
        what = f"{tls.cert_file} with key {tls.key_file}"
        raise ListenError(what, f"the certificate cannot be loaded ({_why(error)})") from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ListenError(
                tls.client_ca_file, f"the client CA cannot be loaded ({_why(error)})"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not a usable PEM file"
    return (error.strerror or type(error).__name__).lower()
