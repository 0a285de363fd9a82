"""The node's way to its edge: dial, say hello, hold the session, come back by itself (NODE-6).

It knows one address and one token. Only a token that the edge does not know ends it; everything
else (an edge that is away, another process that holds the place, a protocol that does not match)
is retried with backoff, since any of them may pass.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from iop.runtime_pb2 import DESCRIPTOR, EdgeBatch, Hello, NodeFrame, ProtocolRange, Welcome
from iop_node.core.backoff import Backoff
from iop_node.link.refusal import meaning_of
from iop_node.link.session import NodePorts, NodeSessionEnd
from iop_shared import logs
from iop_shared.rpc.client import ClientConnection, DialError, dial
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.stream import Stream
from iop_shared.session.flow import WindowBudget
from iop_shared.session.handshake import SPOKEN, ProtocolError
from iop_shared.session_end import PARTING_TIMEOUT_S
from iop_shared.session_link import SessionLink
from iop_shared.wire import AUTHORIZATION, MAX_MESSAGE_BYTES, node_batch

METHOD = f"/{DESCRIPTOR.services_by_name['NodeLink'].full_name}/Session"

WELCOME_TIMEOUT_S = 15.0

SETTLED_AFTER_S = 10.0
"""A session that lasted so long was a success: the next delay is the first one again. One that is
lost as soon as it is made must not be dialled again and again without a pause."""

_log = logs.get("link")


class TokenRefused(Exception):
    """The edge knows no node with this token."""


class SessionLost(Exception):
    """The edge could not be reached, or the session with it is over; the text says why."""


class Dialer:
    """`run` holds a session with the edge for as long as it is not cancelled or drained."""

    def __init__(
        self,
        *,
        address: str,
        token: str,
        tls: ssl.SSLContext | None,
        instance_id: str,
        version: str,
        ports: NodePorts,
        backoff: Backoff,
        budget: WindowBudget,
        effective_generation: Callable[[], int],  # of the registry that serves
    ) -> None:
        self._address = address
        self._metadata = ((AUTHORIZATION, f"Bearer {token}"),)
        self._tls = tls
        self._instance_id = instance_id
        self._version = version
        self._ports = ports
        self._backoff = backoff
        self._budget = budget
        self._effective_generation = effective_generation
        self._last_boot_id = ""
        self._last_epoch = 0
        self._is_draining = asyncio.Event()
        self._dropped: Counter[str] = Counter()
        self._greeting: asyncio.Timeout | None = None
        self.session: NodeSessionEnd | None = None

    def __repr__(self) -> str:
        return f"Dialer({self._address}, session={self.session})"

    async def run(self) -> None:
        """Until `drain`. Raises TokenRefused; every other loss is retried."""
        while not self._is_draining.is_set():
            try:
                await self._hold_session()
            except SessionLost as loss:
                reason = str(loss)
            else:
                reason = "the session ended"
            if self._is_draining.is_set():
                return
            delay_s = self._backoff.next_delay_s()
            _log.warning("edge_lost", reason=reason, retry_in_s=round(delay_s, 2))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_draining.wait(), delay_s)

    async def drain(self, deadline_s: float) -> bool:
        """Take no new attempts, let the running ones end, close. False when some were cut."""
        self._is_draining.set()
        session = self.session
        if session is None:
            if self._greeting is not None:
                # Nobody is waited for who is not there yet.
                self._greeting.reschedule(asyncio.get_running_loop().time())
            return True
        ended = await session.drain("draining", deadline_s)
        session.close("drained" if ended else "drain deadline")
        return ended

    @property
    def dropped_frames(self) -> Counter[str]:
        """Frames of every session so far that meant nothing, by reason."""
        return self._dropped if self.session is None else self._dropped + self.session.dropped

    def report(self) -> None:
        """Something that the edge's status shows about this node has changed."""
        if self.session is not None:
            self.session.report()

    # ------------------------------------------------------------------------------------------

    async def _hold_session(self) -> None:
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S) as self._greeting:
                connection = await self._connected()
                call = self._called(connection)
                welcome = await self._greet(call)
            self._greeting = None
            await self._held(call, welcome)
        except TimeoutError:
            raise SessionLost(f"no welcome from {self._address} in time") from None
        except (DialError, RpcError) as error:
            if isinstance(error, RpcError) and error.code is StatusCode.UNAUTHENTICATED:
                raise TokenRefused(error.details) from error
            has_heard = connection is not None and connection.has_heard
            raise SessionLost(meaning_of(error, has_heard=has_heard)) from error
        finally:
            self._greeting = None
            if connection is not None:
                connection.close("the session ended")

    async def _connected(self) -> ClientConnection:
        host, _, port = self._address.rpartition(":")
        return await dial(host.strip("[]"), int(port), tls=self._tls)

    def _called(self, connection: ClientConnection) -> Stream:
        return connection.call(
            self._address, METHOD, self._metadata, max_message_bytes=MAX_MESSAGE_BYTES
        )

    async def _greet(self, call: Stream) -> Welcome:
        hello = Hello(
            protocol=ProtocolRange(min=SPOKEN.min, max=SPOKEN.max),
            instance_id=self._instance_id,
            version=self._version,
            last_boot_id=self._last_boot_id,
            last_session_epoch=self._last_epoch,
            effective_generation=self._effective_generation(),
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        call.send(node_batch(0, [NodeFrame(hello=hello)]).SerializeToString())
        message = await call.read()
        if message is None:
            raise SessionLost("closed by the edge before its welcome")
        try:
            first = EdgeBatch.FromString(message)
        except DecodeError:
            raise SessionLost("the edge's first message was no batch") from None
        if not first.frames or not first.frames[0].HasField("welcome"):
            raise SessionLost("the edge's first frame was no welcome")
        return first.frames[0].welcome

    async def _held(self, call: Stream, welcome: Welcome) -> None:
        """The session, until either direction or itself ends. Raises SessionLost."""
        try:
            session = NodeSessionEnd(welcome, self._ports, self._budget)
        except ProtocolError as error:
            raise SessionLost(f"protocol_error: {error}") from None
        joined_at = asyncio.get_running_loop().time()
        self._last_boot_id, self._last_epoch = session.boot_id, session.epoch
        self.session = session
        _log.info("edge_joined", node_id=session.node_id, session=session.epoch)
        try:
            link = SessionLink(session, call, EdgeBatch.FromString, peer="edge")
            await asyncio.wait((session.closed,))
            # What was said last (a goodbye, the end of the last attempt) is still sent.
            if await link.said_all(PARTING_TIMEOUT_S):
                # Breaking the call off would make an edge drop what it has not read yet. It ends
                # the call itself once it has read all.
                call.connection.end(call)
                await asyncio.wait((link.over,), timeout=PARTING_TIMEOUT_S)
        finally:
            self.session = None
            session.close("the stream ended")
            if asyncio.get_running_loop().time() - joined_at >= SETTLED_AFTER_S:
                self._backoff.reset()
            self._dropped += session.dropped
        raise SessionLost(session.close_reason or "the stream ended")
