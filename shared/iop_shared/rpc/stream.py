"""One call: messages in, messages out, within the windows of both ends.

It decides what is held (messages that nobody has read yet, and what the peer has no window for)
and when credit goes back: bytes of a message that waits unread are not paid back, so a peer can
never fill more than a window and one message. What a message means is the caller's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING

from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.frames import DATA
from iop_shared.rpc.messages import PREFIX_BYTES, MessageReader, prefixed

if TYPE_CHECKING:
    from iop_shared.rpc.connection import Connection

WINDOW_BYTES = 1024 * 1024
"""What a peer may send of one call before credit comes back."""

_HALF_WINDOW = WINDOW_BYTES // 2

_MESSAGE_HEAD = Struct(">HBBBLBL")
"""The head of a DATA frame that holds one whole message, and the message's own."""


class Stream:
    """One call's end. Made by its connection.

    `headers` are those the peer began the call with: a server has them from the beginning, a
    client once the first message or the end has come.
    """

    def __init__(self, connection: Connection, stream_id: int, max_message_bytes: int) -> None:
        self.stream_id = stream_id
        self.connection = connection
        self.headers: Mapping[str, str] = {}
        self.send_window = connection.first_send_window
        self.is_over = False
        """Nothing more is heard or said."""
        self._reader = MessageReader(max_message_bytes)
        self._arrived: deque[bytes] = deque()
        self._owed = 0
        self._sink: Callable[[bytes], None] | None = None
        self._is_ended = False
        self._failure: RpcError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._unsent: deque[memoryview] = deque()
        self._draining: asyncio.Future[None] | None = None
        self._when_sent: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called once, when the peer says no more or the call is over."""
        self.on_over: Callable[[], object] | None = None
        """Called once, when the call is over."""
        self.on_writable: Callable[[], None] | None = None
        """Called whenever what waited has been sent and more can be."""

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return f"Stream({self.stream_id}, {state}, unsent={len(self._unsent)})"

    # -- what the peer says --------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """The peer says no more."""
        return self._is_ended

    @property
    def failure(self) -> RpcError | None:
        """How the call failed; None while it has not, or where it ended well."""
        return self._failure

    async def read(self) -> bytes | None:
        """The next message; None once the peer says no more. Raises RpcError where it fails."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            if self._is_ended:
                return None
            self._waiting = self.connection.loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        message = self._arrived.popleft()
        self._pay(len(message) + PREFIX_BYTES)
        return message

    def deliver_to(self, sink: Callable[[bytes], None]) -> None:
        """From now on every message goes to `sink` as it arrives; `read` is not used any more.

        The sink must take it at once: it is paid for when it returns. RpcError raised by it fails
        the call.
        """
        self._sink = sink
        while self._arrived and not self.is_over:
            message = self._arrived.popleft()
            self._pay(len(message) + PREFIX_BYTES)
            self._deliver(message)

    def receive(self, content: bytes) -> None:
        """The content of a DATA frame, from the connection."""
        if self._is_ended:
            return
        paid = len(content)
        try:
            for message in self._reader.feed(content):
                if self._sink is None:
                    self._arrived.append(message)
                    paid -= len(message) + PREFIX_BYTES
                else:
                    self._sink(message)
        except RpcError as error:
            self.fail(error)
            return
        self._pay(paid)
        self._wake()

    def end_received(self) -> None:
        """The peer says no more."""
        if self._reader.is_amid_a_message:
            self.fail(RpcError(StatusCode.INTERNAL, "the peer ended amid a message"))
            return
        self._end()

    def fail(self, error: RpcError) -> None:
        """The call is over, with this: here, and by a reset for the peer."""
        if not self.is_over:
            self.connection.reset(self)
            self.closed(error)

    def closed(self, error: RpcError | None) -> None:
        """The call is over for both ends, from the connection."""
        if self.is_over:
            return
        self.is_over = True
        if self._failure is None:
            self._failure = error
        self._unsent.clear()
        self._end()
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
        if self.on_over is not None:
            act, self.on_over = self.on_over, None
            act()

    def _deliver(self, message: bytes) -> None:
        assert self._sink is not None
        try:
            self._sink(message)
        except RpcError as error:
            self.fail(error)

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._wake()
            if self.on_end is not None:
                self.on_end()

    def _pay(self, size: int) -> None:
        self._owed += size
        if self._owed >= _HALF_WINDOW and not self.is_over:
            self.connection.grant(self, self._owed)
            self._owed = 0

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- what is said to the peer --------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Nothing waits to be sent, and the connection takes more."""
        return not self._unsent and not self.connection.is_paused and not self.is_over

    def send(self, message: bytes) -> None:
        """Send a message, or keep it until the peer has a window for it. Never blocks.

        After the call's end it goes nowhere.
        """
        if self.is_over:
            return
        connection = self.connection
        size = len(message) + PREFIX_BYTES
        if (
            size <= self.send_window
            and size <= connection.send_window
            and size <= connection.max_frame_bytes
            and not self._unsent
            and not connection.is_paused
        ):
            self.send_window -= size
            connection.send_window -= size
            head = _MESSAGE_HEAD.pack(
                size >> 8, size & 0xFF, DATA, 0, self.stream_id, 0, size - PREFIX_BYTES
            )
            connection.write(head + message)
            return
        self._unsent.append(memoryview(prefixed(message)))
        self.flush()

    async def write(self, message: bytes) -> None:
        """Send a message and wait until the next one can be sent. Raises RpcError where the call
        is over."""
        self.send(message)
        while not self.is_writable:
            if self.is_over:
                raise self._failure or RpcError(StatusCode.CANCELLED, "the call is over")
            self._draining = self.connection.loop.create_future()
            try:
                await self._draining
            finally:
                self._draining = None

    def when_sent(self, act: Callable[[], None]) -> None:
        """Call `act` once all that was said so far has been sent; not where the call ends first."""
        self._when_sent = act
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the windows and the transport go; from the connection too."""
        connection = self.connection
        unsent = self._unsent
        while unsent and not connection.is_paused:
            room = min(self.send_window, connection.send_window, connection.max_frame_bytes)
            if room <= 0:
                break
            piece = unsent[0]
            if len(piece) <= room:
                unsent.popleft()
            else:
                unsent[0] = piece[room:]
                piece = piece[:room]
            self.send_window -= len(piece)
            connection.send_window -= len(piece)
            connection.write_data(self.stream_id, piece)
        if unsent:
            connection.blocked[self.stream_id] = self
            return
        if self._when_sent is not None:
            act, self._when_sent = self._when_sent, None
            act()
        if self.is_writable:
            if self._draining is not None and not self._draining.done():
                self._draining.set_result(None)
            if self.on_writable is not None:
                self.on_writable()
