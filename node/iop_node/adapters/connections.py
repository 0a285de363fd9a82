"""The connections to one upstream: which one a request may be written to, and which address may
be dialled at all.

A request that was written may have been received, and is never silently sent again (POOL-13). So
everything depends on not writing to a connection that has ended. Three things are looked at right
before the first byte: the transport's own state; whether something can be read, which on an idle
connection can only be its end; and whether it has just carried a streamed answer, because common
servers announce keep-alive and close after a stream all the same, a moment later. What is found
unfit is closed, and the request goes out on a connection of its own.

What aiohttp is told, and why: no limit on connections (the pool's slots are the limit), no
decompression (bytes are relayed), no timeouts of its own (it cannot tell whom it waits for), no
redirects and no environment (a request goes where the config says, or nowhere), a small read
buffer (a caller who does not read stops the upstream), and connections kept for less time than
common servers keep theirs.
"""

from __future__ import annotations

import asyncio
import errno
import math
import select
import socket
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from aiohttp.connector import AddrInfoType
from aiohttp.http import StreamWriter
from multidict import CIMultiDict
from yarl import URL

from iop_node.adapters.upload import Upload
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_node.adapters.upstream_url import is_link_local

READ_BUFFER_BYTES = 16_384
KEEPALIVE_S = 4.0
SETTLE_S = 0.25
"""How long a connection rests after a streamed answer before it is trusted again."""


class Connections:
    """The pooled connections of one adapter. `start` and `stop` are called once each, in the loop.

    Beside the pool there is a session that uses every connection once.
    """

    def __init__(self, spec: UpstreamSpec) -> None:
        self._spec = spec
        self._pooled: aiohttp.ClientSession | None = None
        self._single_use: aiohttp.ClientSession | None = None
        self._trusted_from: WeakKeyDictionary[BaseProtocol, float] = WeakKeyDictionary()

    async def start(self) -> None:
        """Open the pool. Dials nothing."""
        self._pooled = self._session(
            aiohttp.TCPConnector(
                limit=0,
                ssl=self._spec.tls or True,
                keepalive_timeout=KEEPALIVE_S,
                socket_factory=self._socket,
            )
        )
        self._single_use = self._session(
            aiohttp.TCPConnector(
                limit=0,
                ssl=self._spec.tls or True,
                force_close=True,
                socket_factory=self._socket,
            )
        )

    async def stop(self) -> None:
        """Close every connection, used or idle."""
        for session in (self._pooled, self._single_use):
            if session is not None:
                await session.close()

    async def send(
        self, method: str, url: URL, headers: CIMultiDict[str], upload: Upload
    ) -> aiohttp.ClientResponse:
        """Send one request and return when the head of its answer is there.

        Tries a second time only where nothing was written. Raises aiohttp.ClientError.
        """
        upload.is_fit = self._is_fit
        try:
            return await self._request(self._pooled, method, url, headers, upload)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            is_unreachable = isinstance(error, aiohttp.ClientConnectorError)
            if is_unreachable or upload.is_started or upload.failure is not None:
                raise
        upload.is_fit = _is_open
        return await self._request(self._single_use, method, url, headers, upload)

    def has_ended(self, upload: Upload) -> None:
        """The answer to this request is complete."""
        protocol = upload.protocol
        if protocol is not None and protocol in self._trusted_from:
            self._trusted_from[protocol] = asyncio.get_running_loop().time() + SETTLE_S

    async def _request(
        self,
        session: aiohttp.ClientSession | None,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        upload: Upload,
    ) -> aiohttp.ClientResponse:
        assert session is not None, "the adapter was not started"
        upload.clocks.connecting()
        response = await session.request(
            method, url, headers=headers, data=upload, allow_redirects=False
        )
        if "Transfer-Encoding" in response.headers and upload.protocol is not None:
            # The pool has it back before we are told of the end of the answer.
            self._trusted_from[upload.protocol] = math.inf
        return response

    def _is_fit(self, writer: StreamWriter) -> bool:
        if not _is_open(writer) or is_readable(writer.transport):
            return False
        trusted_from = self._trusted_from.get(writer.protocol)
        return trusted_from is None or trusted_from <= asyncio.get_running_loop().time()

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
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

    def _socket(self, address: AddrInfoType) -> socket.socket:
        """Names are judged where they are dialled: one may come to mean another address."""
        family, kind, protocol, _, peer = address
        if not self._spec.allow_link_local and is_link_local(str(peer[0])):
            raise OSError(errno.EACCES, "link-local and metadata addresses are not dialled")
        return socket.socket(family, kind, protocol)


def _is_open(writer: StreamWriter) -> bool:
    return writer.transport is not None and not writer.transport.is_closing()


def is_readable(transport: asyncio.BaseTransport | None) -> bool:
    """Whether an idle connection has ended without the loop having come round to it yet.

    With TLS this can prove nothing, since session tickets can be read on a healthy one.
    """
    if transport is None or transport.get_extra_info("sslcontext") is not None:
        return False
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
