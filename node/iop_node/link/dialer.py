"""The node's way to its edge: dial, say hello, hold the session, come back by itself (NODE-6).

It knows one address and one token. Only a token that the edge does not know ends it; everything
else (an edge that is away, another process that holds the place, a protocol that does not match)
is retried with backoff, since any of them may pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from iop.runtime_pb2 import EdgeBatch, Hello, NodeBatch, NodeFrame, ProtocolRange, Welcome
from iop.runtime_pb2_grpc import NodeLinkStub
from iop_node.core.backoff import Backoff
from iop_node.link.refusal import meaning_of
from iop_node.link.session import NodePorts, NodeSessionEnd
from iop_shared import logs
from iop_shared.session.flow import WindowBudget
from iop_shared.session.handshake import SPOKEN, ProtocolError
from iop_shared.session_end import PARTING_TIMEOUT_S
from iop_shared.wire import AUTHORIZATION, CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, node_batch

WELCOME_TIMEOUT_S = 15.0

SETTLED_AFTER_S = 10.0
"""A session that lasted so long was a success: the next delay is the first one again. One that is
lost as soon as it is made must not be dialled again and again without a pause."""

_log = logs.get("link")

_Call = grpc.aio.StreamStreamCall[NodeBatch, EdgeBatch]


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
        credentials: grpc.ChannelCredentials | None,
        instance_id: str,
        version: str,
        ports: NodePorts,
        backoff: Backoff,
        budget: WindowBudget,
        effective_generation: Callable[[], int],  # of the registry that serves
    ) -> None:
        self._address = address
        self._metadata = ((AUTHORIZATION, f"Bearer {token}"),)
        self._credentials = credentials
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
        channel = (
            grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
            if self._credentials is None
            else grpc.aio.secure_channel(self._address, self._credentials, options=CHANNEL_OPTIONS)
        )
        async with channel:
            call: _Call = NodeLinkStub(channel).Session(metadata=self._metadata)
            try:
                welcome = await self._greet(call)
            except grpc.aio.AioRpcError as error:
                raise _loss(error) from error
            except BaseException:
                call.cancel()
                raise
            try:
                session = NodeSessionEnd(welcome, self._ports, self._budget)
            except ProtocolError as error:
                call.cancel()
                raise SessionLost(f"protocol_error: {error}") from None
            joined_at = asyncio.get_running_loop().time()
            self._last_boot_id, self._last_epoch = session.boot_id, session.epoch
            self.session = session
            _log.info("edge_joined", node_id=session.node_id, session=session.epoch)
            try:
                await self._exchange(call, session)
            finally:
                self.session = None
                session.close("the stream ended")
                if asyncio.get_running_loop().time() - joined_at >= SETTLED_AFTER_S:
                    self._backoff.reset()
                self._dropped += session.dropped
                call.cancel()

    async def _greet(self, call: _Call) -> Welcome:
        hello = Hello(
            protocol=ProtocolRange(min=SPOKEN.min, max=SPOKEN.max),
            instance_id=self._instance_id,
            version=self._version,
            last_boot_id=self._last_boot_id,
            last_session_epoch=self._last_epoch,
            effective_generation=self._effective_generation(),
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S) as self._greeting:
                # A refusal is told by the status of the call, which a failed write only hints at.
                with suppress(asyncio.InvalidStateError):
                    await call.write(node_batch(0, [NodeFrame(hello=hello)]))
                first: Any = await call.read()
        except TimeoutError:
            raise SessionLost(f"no welcome from {self._address} in time") from None
        finally:
            self._greeting = None
        if not isinstance(first, EdgeBatch):
            raise SessionLost(f"{await call.code()}: {await call.details()}")
        if not first.frames or not first.frames[0].HasField("welcome"):
            raise SessionLost("the edge's first frame was no welcome")
        return first.frames[0].welcome

    async def _exchange(self, call: _Call, session: NodeSessionEnd) -> None:
        """Both directions, until either or the session itself ends."""
        reader = asyncio.create_task(_read(call, session))
        writer = asyncio.create_task(_write(call, session))
        try:
            # A session that ends by silence finds a writer that waits for the transport.
            await asyncio.wait(
                (reader, writer, session.closed), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            session.close("the stream ended")
            # What was said last (a goodbye, the end of the last attempt) is still written.
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(writer), PARTING_TIMEOUT_S)
            if writer.done():
                # Cancelling the call resets the stream, and the edge drops what it has not read
                # yet. It ends the call itself once it has read all.
                await asyncio.wait((reader,), timeout=PARTING_TIMEOUT_S)
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait((reader, writer))
        raise SessionLost(session.close_reason or "the stream ended")


async def _read(call: _Call, session: NodeSessionEnd) -> None:
    try:
        while True:
            batch: Any = await call.read()
            if not isinstance(batch, EdgeBatch):
                session.close("closed by the edge")
                return
            session.receive(batch)
    except grpc.aio.AioRpcError as error:
        session.close(f"{error.code().name}: {error.details()}")


async def _write(call: _Call, session: NodeSessionEnd) -> None:
    try:
        while (batch := await session.next_batch()) is not None:
            await call.write(batch)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        session.close(f"the connection broke: {type(error).__name__}")


def _loss(error: grpc.aio.AioRpcError) -> Exception:
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return TokenRefused(error.details())
    return SessionLost(meaning_of(error.code(), error.details()))
