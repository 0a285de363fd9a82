"""One upstream over HTTP: a pooled client with our own clocks, and one table of what can go wrong.

It decides when a request counts as sent, how long each phase may take, and which fault each way
of failing is. It never knows a protocol: bodies are bytes.

What aiohttp is told, and why: no limit on connections (the pool's slots are the limit), no
decompression (bytes are relayed), no timeouts of its own (it cannot tell whom it waits for), no
redirects and no environment (a request goes where the config says, or nowhere), a small read
buffer (a caller who does not read stops the upstream), and connections kept for less time than
common servers keep theirs.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
from aiohttp.connector import AddrInfoType
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from iop_node.adapters.base import Body, HeaderPairs, Probe
from iop_node.adapters.clocks import CallClocks
from iop_node.adapters.http_headers import OutgoingHeaders, caller_headers
from iop_node.adapters.upload import Upload
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_node.adapters.upstream_url import is_link_local
from iop_shared.errors import Code, Fault
from iop_shared.profiles import join_url

READ_BUFFER_BYTES = 16_384
KEEPALIVE_S = 4.0
STALE_CONNECTIONS = 4
"""How many ended connections of the pool one request may meet before it gives up."""


class UpstreamAnswer:
    """The answer of an upstream whose head has arrived."""

    def __init__(self, response: aiohttp.ClientResponse, clocks: CallClocks) -> None:
        self._response = response
        self._clocks = clocks
        self._has_begun = False
        self.is_complete = False
        # None where the answer was complete with its head.
        self._protocol = None if response.connection is None else response.connection.protocol
        self._closed = None if self._protocol is None else self._protocol.closed
        if self._closed is not None:
            self._closed.add_done_callback(self._connection_closed)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def content_type(self) -> str:
        return self._response.content_type

    def headers(self) -> list[tuple[str, str]]:
        """Those that a caller may see."""
        return caller_headers(self._response.headers)

    async def read(self) -> bytes:
        """The next bytes of the body as they come; empty once it is complete.

        The first byte has its own clock, which runs from the end of the request: many servers
        send their head at once and think afterwards. Between two calls no phase runs, so that a
        caller who is slow to read costs the upstream nothing. Raises Fault(upstream_closed) for a
        body that is cut, and Fault(upstream_*_timeout) out of the scope of the exchange.
        """
        if self._has_begun:
            self._clocks.awaiting_next_byte()
        try:
            content = await self._response.content.readany()
        except aiohttp.ClientError as error:
            raise self._fault_of_body(error) from None
        self._clocks.pause()
        self._has_begun = True
        if not content:
            # A body that ends with its connection looks complete even where that was reset.
            lost = None if self._protocol is None else self._protocol.exception()
            if isinstance(lost, aiohttp.ClientOSError):
                raise _closed()
            self.is_complete = True
            self._forget_connection()
        return content

    async def linger(self, limit_s: float) -> None:
        """Wait a little for the end of a body whose content is known to be complete, so that its
        connection can be used again. Never raises for what the upstream does."""
        self._clocks.stop()
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(limit_s):
                while await self._response.content.readany():
                    pass
                self.is_complete = True
                self._forget_connection()

    def close(self) -> None:
        """Close the connection, whatever is still under way on it."""
        self._forget_connection()
        self._response.close()

    def _fault_of_body(self, error: aiohttp.ClientError) -> Fault:
        is_garbage = self._protocol is not None and isinstance(
            self._protocol.exception(), HttpProcessingError
        )
        return _invalid() if is_garbage else _fault(error)

    def _connection_closed(self, closed: asyncio.Future[None]) -> None:
        # Broken framing closes the connection and, in aiohttp, tells nobody who reads the body.
        closed.exception()
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    def _forget_connection(self) -> None:
        # The connection goes back to the pool and outlives this answer.
        if self._closed is not None:
            self._closed.remove_done_callback(self._connection_closed)


class UpstreamClient:
    """The pooled client of one adapter. `start` and `stop` are called once each, in the loop."""

    def __init__(self, spec: UpstreamSpec) -> None:
        self.spec = spec
        self._headers = OutgoingHeaders(spec.headers)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool. Dials nothing."""
        connector = aiohttp.TCPConnector(
            limit=0,
            ssl=self.spec.tls or True,
            keepalive_timeout=KEEPALIVE_S,
            socket_factory=self._socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_connect=None, sock_read=None
            ),
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
            skip_auto_headers=("User-Agent", "Content-Type"),
        )

    async def stop(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        url: URL,
        *,
        headers: HeaderPairs = (),
        auth_override: tuple[str, str] | None = None,
        body: Body = b"",
        content_length: int | None = None,
        deadline_s: float | None = None,
        started: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[UpstreamAnswer]:
        """Send one request; the body of the `async with` reads the answer.

        Leaving before the answer is complete, by error, cancellation or choice, aborts the
        connection at once, and with it what was not yet sent. Raises Fault(upstream_*).
        """
        request_headers = self._headers.of(headers, auth_override)
        if body and "Content-Type" not in request_headers:
            request_headers["Content-Type"] = "application/json"
        clocks = CallClocks(self.spec, deadline_s)
        clocks.connecting()
        async with clocks:
            upload = Upload(body, content_length, clocks, started)
            answer: UpstreamAnswer | None = None
            try:
                response = await self._send(method, url, request_headers, upload, clocks)
                answer = UpstreamAnswer(response, clocks)
                _check_head(response)
                yield answer
            finally:
                _release(answer, upload)

    async def probe(self) -> Probe:
        """One GET of the probe's path. A probe can only lower a health (NODE-10)."""
        spec = self.spec.probe
        assert spec is not None, "an adapter without a probe path is not probed"
        url = URL(join_url(self.spec.base_url, spec.path), encoded=True)
        try:
            async with (
                asyncio.timeout(spec.timeout_s),
                self.exchange("GET", url) as answer,
            ):
                status = answer.status
        except TimeoutError:
            return Probe(health="unavailable", reason="probe_timeout")
        except Fault as fault:
            return Probe(health="unavailable", reason=fault.code.value)
        if status >= 500:
            return Probe(health="unavailable", reason=f"http_{status}")
        if status >= 400:
            return Probe(health="degraded", reason=f"http_{status}")
        return Probe(health="healthy")

    async def _send(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        upload: Upload,
        clocks: CallClocks,
    ) -> aiohttp.ClientResponse:
        """Send on a live connection. Tries again only where nothing was written (POOL-13)."""
        assert self._session is not None, "the adapter was not started"
        for attempt in range(1, STALE_CONNECTIONS + 1):
            clocks.connecting()
            # The last try takes any connection: an upstream that speaks first would otherwise
            # never be told what is wrong with it.
            upload.is_probing_connection = attempt < STALE_CONNECTIONS
            try:
                return await self._session.request(
                    method, url, headers=headers, data=upload, allow_redirects=False
                )
            except aiohttp.ClientError as error:
                if upload.failure is not None:
                    raise upload.failure from None
                if upload.is_started or not _is_stale(error):
                    raise _fault(error) from None
        raise _closed()

    def _socket(self, address: AddrInfoType) -> socket.socket:
        """Names are judged where they are dialled: one may come to mean another address."""
        family, kind, protocol, _, peer = address
        if not self.spec.allow_link_local and is_link_local(str(peer[0])):
            raise OSError(errno.EACCES, "link-local and metadata addresses are not dialled")
        return socket.socket(family, kind, protocol)


def _check_head(response: aiohttp.ClientResponse) -> None:
    if response.status == 101 or 300 <= response.status < 400:
        raise Fault(
            Code.UPSTREAM_INVALID,
            f"the upstream answered {response.status}; redirects and upgrades are not followed",
        )
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Fault(
            Code.UPSTREAM_INVALID,
            "the upstream sent an encoded body although it was asked for none",
        )


def _release(answer: UpstreamAnswer | None, upload: Upload) -> None:
    """Give a connection back that has nothing left to say, and abort any other."""
    if answer is not None and answer.is_complete and upload.is_sent:
        return
    # Aborted and not closed: closing waits until an upstream that reads nothing has read it all.
    if upload.transport is not None:
        upload.transport.abort()
    if answer is not None:
        answer.close()


def _is_stale(error: aiohttp.ClientError) -> bool:
    return not isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError
    )


def _closed() -> Fault:
    return Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection before it was done")


def _invalid() -> Fault:
    return Fault(Code.UPSTREAM_INVALID, "the upstream's answer is no HTTP")


def _fault(error: aiohttp.ClientError) -> Fault:
    """The one map from what aiohttp raises to what a caller is told. Holds no address (SEC-1)."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return Fault(Code.UPSTREAM_REFUSED, "the upstream's name could not be resolved")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return Fault(Code.UPSTREAM_REFUSED, "no TLS session with the upstream came about")
        case aiohttp.ClientConnectorError():
            return Fault(Code.UPSTREAM_REFUSED, "the upstream took no connection")
        case aiohttp.ClientPayloadError() | aiohttp.ClientConnectionError():
            return _closed()
        case _:
            return _invalid()
