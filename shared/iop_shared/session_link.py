"""A session's end on the stream of its call: messages in, batches out.

It decides when a batch is taken: whenever the stream can send one, at the end of the loop's turn
in which something began to wait. So all that one turn brings leaves together, and nothing waits
for a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.stream import Stream
from iop_shared.session_end import HeardBatch, SessionEnd


class Message(Protocol):
    def SerializeToString(self) -> bytes: ...


Sent = TypeVar("Sent")
Heard = TypeVar("Heard")
Said = TypeVar("Said", bound=Message)


class SessionLink(Generic[Sent, Heard, Said]):
    """Holds a session on a stream from now on. Each ends the other.

    `parse` makes a batch of a message, and raises DecodeError.
    """

    def __init__(
        self,
        session: SessionEnd[Sent, Heard, Said],
        stream: Stream,
        parse: Callable[[bytes], HeardBatch[Heard]],
        *,
        peer: str,
    ) -> None:
        self._session = session
        self._stream = stream
        self._parse = parse
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._said_all: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done once the peer says no more."""
        stream.on_end = self._stream_ended
        stream.on_writable = self._flush
        session.attach(self._wake)
        stream.deliver_to(self._receive)
        if stream.is_ended:
            self._stream_ended()

    async def said_all(self, timeout_s: float) -> bool:
        """Wait until what the session said last has been sent. False where the peer does not take
        it in time, or the stream is over."""
        await asyncio.wait((self._said_all,), timeout=timeout_s)
        return self._said_all.done() and not self._stream.is_over

    def _receive(self, message: bytes) -> None:
        try:
            batch = self._parse(message)
        except DecodeError:
            raise RpcError(StatusCode.INTERNAL, "a message that is no batch") from None
        self._session.receive(batch)

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        session, stream = self._session, self._stream
        while stream.is_writable:
            batch = session.take_batch()
            if batch is None:
                if not session.is_open:
                    self._is_done()
                return
            stream.send(batch.SerializeToString())
        if stream.is_over:
            self._is_done()

    def _stream_ended(self) -> None:
        if self.over.done():
            return
        failure = self._stream.failure
        if failure is None:
            self._session.close(f"closed by the {self._peer}")
        else:
            self._session.close(f"{failure.code.name}: {failure.details}")
        self.over.set_result(None)
        if self._stream.is_over:
            self._is_done()

    def _is_done(self) -> None:
        if not self._said_all.done():
            self._said_all.set_result(None)
