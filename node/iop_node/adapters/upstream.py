"""One upstream over HTTP: requests under our own clocks, and one table of what can go wrong.

It decides how long each phase of a call may take, when an answer is complete, and which fault each
way of failing is. It never knows a protocol: bodies are bytes. Which connection a request is
written to is `connections`, and when it counts as sent is `upload`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from iop_node.adapters.base import Body, HeaderPairs, Probe
from iop_node.adapters.clocks import CallClocks
from iop_node.adapters.connections import Connections
from iop_node.adapters.http_headers import OutgoingHeaders, caller_headers
from iop_node.adapters.upload import Upload
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_shared.errors import Code, Fault
from iop_shared.profiles import join_url


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
    def holds_connection(self) -> bool:
        """False once the body has arrived whole, even before it is read."""
        return self._response.connection is not None

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
            if self._was_reset():
                raise _closed()
            self._complete()
        return content

    async def linger(self, limit_s: float) -> None:
        """Wait a little for the end of a body whose content is known to be complete, so that its
        connection can be used again. Never raises for what the upstream does."""
        self._clocks.stop()
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(limit_s):
                while await self._response.content.readany():
                    pass
                self._complete()

    def close(self) -> None:
        """Close the connection, where it is still held."""
        self._forget_connection()
        self._response.close()

    def _was_reset(self) -> bool:
        """A body that ends with its connection looks complete even where that was reset. One that
        says where it ends is complete, and its connection may be another's by now."""
        headers = self._response.headers
        if self._protocol is None or "Content-Length" in headers or "Transfer-Encoding" in headers:
            return False
        return isinstance(self._protocol.exception(), aiohttp.ClientOSError)

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

    def _complete(self) -> None:
        self.is_complete = True
        self._forget_connection()

    def _forget_connection(self) -> None:
        # The connection goes back to the pool and outlives this answer.
        if self._closed is not None:
            self._closed.remove_done_callback(self._connection_closed)


class UpstreamClient:
    """The pooled client of one adapter. `start` and `stop` are called once each, in the loop."""

    def __init__(self, spec: UpstreamSpec) -> None:
        self.spec = spec
        self._headers = OutgoingHeaders(spec.headers)
        self._connections = Connections(spec)

    async def start(self) -> None:
        """Open the pool. Dials nothing."""
        await self._connections.start()

    async def stop(self) -> None:
        """Close every connection."""
        await self._connections.stop()

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
        async with CallClocks(self.spec, deadline_s) as clocks:
            upload = Upload(body, content_length, clocks, started)
            answer: UpstreamAnswer | None = None
            try:
                response = await self._send(method, url, request_headers, upload)
                answer = UpstreamAnswer(response, clocks)
                _check_head(response)
                yield answer
            finally:
                self._release(answer, upload)

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
        self, method: str, url: URL, headers: CIMultiDict[str], upload: Upload
    ) -> aiohttp.ClientResponse:
        try:
            return await self._connections.send(method, url, headers, upload)
        except aiohttp.ClientError as error:
            if upload.failure is not None:
                raise upload.failure from None
            raise _fault(error) from None

    def _release(self, answer: UpstreamAnswer | None, upload: Upload) -> None:
        """Let go of a connection that has nothing left to say, and abort any other."""
        if answer is not None and not answer.holds_connection:
            # It is in the pool, and may carry another request by now.
            self._connections.has_ended(upload)
        elif upload.transport is not None:
            # Closing would wait until an upstream that reads nothing has read everything.
            upload.transport.abort()
        if answer is not None:
            answer.close()


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
