"""One upstream over HTTP: requests under our own clocks.

It decides how long each phase of a call may take, when a request counts as started, and which
answers are refused. It never knows a protocol: bodies are bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from iop_node.adapters.base import Body, HeaderPairs, Probe
from iop_node.adapters.clocks import Alarm, CallClocks
from iop_node.adapters.http1.answer import UpstreamAnswer
from iop_node.adapters.http1.connection import Connection
from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.http1.pool import ConnectionPool
from iop_node.adapters.http_headers import OutgoingHeaders
from iop_node.adapters.upload import WHOLE_BYTES, Slices, Upload
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_shared.errors import Code, Fault
from iop_shared.profiles import join_url


class UpstreamClient:
    """The pooled client of one adapter. `start` and `stop` are called once each, in the loop."""

    def __init__(self, spec: UpstreamSpec) -> None:
        self.spec = spec
        self._headers = OutgoingHeaders(spec.headers)
        self._alarm = Alarm()
        self._pool = ConnectionPool(tls=spec.tls, allow_link_local=spec.allow_link_local)

    async def start(self) -> None:
        """Dials nothing."""

    async def stop(self) -> None:
        """Close every connection."""
        await self._pool.stop()
        self._alarm.stop()

    def exchange(
        self,
        method: bytes,
        endpoint: Endpoint,
        *,
        headers: HeaderPairs = (),
        auth_override: tuple[str, str] | None = None,
        body: Body = b"",
        content_length: int | None = None,
        deadline_s: float | None = None,
        started: Callable[[], None] = lambda: None,
    ) -> Exchange:
        """One request, sent on entering the `async with`; its block reads the answer.

        Leaving before the answer has come whole, by error, cancellation or choice, aborts the
        connection at once, and with it what was not yet sent. Raises Fault(upstream_*).

        `started` is called once, on an open connection on which nothing has come, right before
        the first byte is written: before it, nothing was sent, and the request may be tried
        elsewhere; after it, the upstream may have received it (POOL-13).
        """
        fields = self._headers.of(headers, auth_override, has_body=body != b"")
        clocks = CallClocks(self.spec, self._alarm, deadline_s)
        return Exchange(self._pool, clocks, method, endpoint, fields, body, content_length, started)

    async def probe(self) -> Probe:
        """One GET of the probe's path. A probe can only lower a health (NODE-10)."""
        spec = self.spec.probe
        assert spec is not None, "an adapter without a probe path is not probed"
        endpoint = Endpoint.of(join_url(self.spec.base_url, spec.path))
        try:
            async with (
                asyncio.timeout(spec.timeout_s),
                self.exchange(b"GET", endpoint) as answer,
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


class Exchange:
    """One request and its answer, as `async with`. Made by `UpstreamClient.exchange`."""

    __slots__ = (
        "_answer",
        "_body",
        "_clocks",
        "_content_length",
        "_endpoint",
        "_fields",
        "_method",
        "_pool",
        "_started",
        "_upload",
    )

    def __init__(
        self,
        pool: ConnectionPool,
        clocks: CallClocks,
        method: bytes,
        endpoint: Endpoint,
        fields: bytes,
        body: Body,
        content_length: int | None,
        started: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._clocks = clocks
        self._method = method
        self._endpoint = endpoint
        self._fields = fields
        self._body = body
        self._content_length = content_length
        self._started = started
        self._upload: Upload | None = None
        self._answer: UpstreamAnswer | None = None

    async def __aenter__(self) -> UpstreamAnswer:
        self._clocks.start()
        try:
            answer = self._answer = await self._send()
            if not answer.status:
                await answer.head()
            _check_head(answer)
        except BaseException as error:
            self._end(error)
            raise
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    async def _send(self) -> UpstreamAnswer:
        """Nothing is awaited between finding a connection fit and writing to it."""
        body, length = self._body, self._content_length
        if isinstance(body, bytes):
            length = len(body)
            if length > WHOLE_BYTES:
                body = Slices(body)
        if isinstance(body, bytes):
            upload = None
            content = body
        else:
            upload = self._upload = Upload(body, length, self._clocks)
            content = await upload.first()
        head = self._endpoint.request_head(self._method, self._fields, length)
        connection = self._pool.take(self._endpoint.origin) or await self._connect()
        self._started()
        self._clocks.awaiting_first_byte()
        answer = connection.send(
            head + content,
            self._clocks,
            is_to_head=self._method == b"HEAD",
            is_all=upload is None or upload.is_complete,
        )
        if upload is not None and not upload.is_complete:
            upload.start(connection, answer)
        return answer

    async def _connect(self) -> Connection:
        self._clocks.connecting()
        return await self._pool.connect(self._endpoint.origin)

    def _end(self, error: BaseException | None) -> None:
        """Let go of everything. Raises the clock's fault in the place of its cancellation."""
        if self._answer is not None and self._answer.source is not None:
            self._answer.source.abort()
        if self._upload is not None:
            self._upload.stop()
        self._clocks.end(error)


def _check_head(answer: UpstreamAnswer) -> None:
    if answer.status == 101 or 300 <= answer.status < 400:
        raise Fault(
            Code.UPSTREAM_INVALID,
            f"the upstream answered {answer.status}; redirects and upgrades are not followed",
        )
    for name, value in answer.fields:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise Fault(
                Code.UPSTREAM_INVALID,
                "the upstream sent an encoded body although it was asked for none",
            )
