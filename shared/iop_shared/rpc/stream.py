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

from h2.errors import ErrorCodes

from iop_shared import logs
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.frames import DATA, Broken
from iop_shared.rpc.messages import PREFIX_BYTES, MessageReader, prefixed

if TYPE_CHECKING:
    from iop_shared.rpc.connection import Connection

FIRST_WINDOW_BYTES = 65_535
"""Of every connection and every stream, until more is granted (RFC 9113, 6.9.2)."""

WINDOW_BYTES = 1024 * 1024
"""What a peer may send of a call whose messages may be long before credit comes back."""

SMALL_PART_BYTES = 256
"""A message that goes on in frames of less costs more than it carries."""

_MESSAGE_HEAD = Struct(">HBBBLBL")
"""The head of a DATA frame that holds one whole message, and the message's own."""

_log = logs.get("grpc")


class Stream:
    """One call's end. Made by its connection.

    `headers` are those the peer began the call with: a server has them from the beginning, a
    client once the first message or the end has come.
    """

    def __init__(self, connection: Connection, stream_id: int, max_message_bytes: int) -> None:
        self.stream_id = stream_id
        self.connection = connection
        self.headers: Mapping[str, str] = {}
        self.window_bytes = (
            WINDOW_BYTES if max_message_bytes > FIRST_WINDOW_BYTES else FIRST_WINDOW_BYTES
        )
        """What the peer may send before credit comes back. Where only short messages are taken,
        a crowd of calls that nobody reads must not hold much."""
        self.send_window = connection.first_send_window
        self.window_at_grant = -1  # had nothing been sent since
        self.is_heard = False
        """The peer may speak: its headers have come, and its end has not."""
        self.is_ended = False
        """The peer says no more."""
        self.is_over = False
        """Nothing more is heard or said."""
        self.has_moved = False
        """The peer has taken something since it was last looked at; for the connection."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when the peer says no more or the call is over."""
        self.on_over: Callable[[], object] | None = None
        """Called once, when the call is over."""
        self.on_writable: Callable[[], None] | None = None
        """Called whenever what waited has been sent and more can be, and when the call is over."""

        self._reader = MessageReader(max_message_bytes)
        self._arrived: deque[bytes] = deque()
        self._sink: Callable[[bytes], None] | None = None
        self._received = 0  # and not paid back yet
        self._unread = 0  # of that, what waits in `_arrived`
        self._half_window = self.window_bytes // 2
        self._failure: RpcError | None = None
        self._waiting: asyncio.Future[None] | None = None

        self._may_send = True  # nothing waits, and nobody has said that it was all
        self._has_said_all = False
        self._unsent: deque[memoryview] = deque()
        self._when_sent: Callable[[], None] | None = None
        self._draining: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return (
            f"Stream({self.stream_id}, {state}, held={self.held_bytes}, unsent={self.unsent_bytes})"
        )

    # -- what the peer says --------------------------------------------------------------------

    @property
    def failure(self) -> RpcError | None:
        """How the call failed; None while it has not, or where it ended well."""
        return self._failure

    @property
    def held_bytes(self) -> int:
        """Of what the peer has said and nobody has taken."""
        return self._reader.held_bytes + sum(map(len, self._arrived))

    async def read(self) -> bytes | None:
        """The next message; None once the peer says no more. Raises RpcError where it fails."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            if self.is_ended:
                return None
            self._waiting = self.connection.loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        message = self._arrived.popleft()
        self._unread -= len(message) + PREFIX_BYTES
        self._settle()
        return message

    def deliver_to(self, sink: Callable[[bytes], None]) -> None:
        """From now on every message goes to `sink` as it arrives; `read` is not used any more.

        The sink must take it at once: it is paid for when it returns. RpcError raised by it fails
        the call with that, and anything else with INTERNAL.
        """
        self._sink = sink
        self._unread = 0
        try:
            while self._arrived and not self.is_over:
                sink(self._arrived.popleft())
        except Exception as error:
            self._fail_of(error)
            return
        self._settle()

    def receive(self, content: bytes, padding_bytes: int = 0) -> None:
        """The content of a DATA frame, from the connection."""
        if not self.is_heard:
            self._unheard()
            return
        self._received += len(content) + padding_bytes
        try:
            message = self._reader.whole(content)
            if message is None:
                is_dribble = 0 < len(content) < SMALL_PART_BYTES and self._reader.held_bytes
                for message in self._reader.feed(content):
                    is_dribble = False
                    self._take(message)
                    if self.is_over:
                        return
                if is_dribble:
                    self.connection.bear()
            elif self._sink is not None:
                self._sink(message)
            else:
                self._take(message)
        except Broken:
            raise
        except Exception as error:
            self._fail_of(error)
            return
        if self._received >= self._half_window:
            self._settle()

    def end_received(self) -> None:
        """The peer says no more."""
        if self._reader.held_bytes:
            self.fail(RpcError(StatusCode.INTERNAL, "the peer ended amid a message"))
        else:
            self._end()

    def fail(self, error: RpcError) -> None:
        """The call is over, with this: here, and by a reset for the peer."""
        self.break_off(error, ErrorCodes.CANCEL)

    def break_off(self, error: RpcError, code: ErrorCodes) -> None:
        """The call is over, with this here, and with HTTP/2's `code` for the peer."""
        if not self.is_over:
            self.connection.reset(self, code)
            self.closed(error)

    def closed(self, error: RpcError | None) -> None:
        """The call is over for both ends, from the connection."""
        if self.is_over:
            return
        self.is_over = self._has_said_all = True
        self._may_send = False
        self._when_sent = None
        self._unsent.clear()
        if self._failure is None:
            self._failure = error
        self._end()
        self._tell_writable()
        act, self.on_over = self.on_over, None
        self._sink = self.on_writable = None
        if act is not None:
            act()

    def _take(self, message: bytes) -> None:
        if self._sink is not None:
            self._sink(message)
            return
        self._arrived.append(message)
        self._unread += len(message) + PREFIX_BYTES
        self._wake()

    def _fail_of(self, error: Exception) -> None:
        if not isinstance(error, RpcError):
            _log.error("message_failed", error=type(error).__name__)
            error = RpcError(StatusCode.INTERNAL, "this end failed on a message")
        self.fail(error)

    def _unheard(self) -> None:
        """RFC 9113, sections 5.1 and 8.1."""
        if self.is_ended:
            code, reason = ErrorCodes.STREAM_CLOSED, "the peer spoke after its end"
        else:
            code, reason = ErrorCodes.PROTOCOL_ERROR, "the peer spoke before its headers"
        self.break_off(RpcError(StatusCode.INTERNAL, reason), code)

    def _end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.is_heard = False
            self._wake()
            act, self.on_end = self.on_end, None
            if act is not None:
                act()

    def _settle(self) -> None:
        """Pay back what has been taken, once it is worth a frame."""
        if self._received > self.window_bytes:
            error = RpcError(StatusCode.INTERNAL, "the peer sent more than it had credit for")
            self.break_off(error, ErrorCodes.FLOW_CONTROL_ERROR)
            return
        due = self._received - self._unread
        if due >= self._half_window and self.is_heard:
            self._received -= due
            self.connection.grant(self, due)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- what is said to the peer --------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Nothing waits to be sent, and the connection takes more."""
        return self._may_send and not self.connection.is_paused

    @property
    def unsent_bytes(self) -> int:
        """What waits until the peer takes it."""
        return sum(map(len, self._unsent))

    def send(self, message: bytes) -> None:
        """Send a message, or keep it until the peer has a window for it. Never blocks.

        After the call's end, and after `when_sent`, it goes nowhere.
        """
        connection = self.connection
        size = len(message) + PREFIX_BYTES
        if (
            self._may_send
            and size <= self.send_window
            and size <= connection.send_window
            and size <= connection.max_frame_bytes
            and not connection.is_paused
        ):
            self.send_window -= size
            connection.send_window -= size
            head = _MESSAGE_HEAD.pack(
                size >> 8, size & 0xFF, DATA, 0, self.stream_id, 0, size - PREFIX_BYTES
            )
            connection.transport.write(head + message)
        elif not self._has_said_all:
            self._unsent.append(memoryview(prefixed(message)))
            self._may_send = False
            self._push()

    async def write(self, message: bytes) -> None:
        """Send a message and wait until the next one can be sent. Raises RpcError where the call
        is over."""
        self.send(message)
        if not self.is_writable:
            await self.drained()

    async def drained(self) -> None:
        """Wait until a message can be sent. Raises RpcError where the call is over."""
        while not self.is_writable:
            if self._has_said_all:
                raise self._failure or RpcError(StatusCode.CANCELLED, "the call is over")
            self._draining = self.connection.loop.create_future()
            try:
                await self._draining
            finally:
                self._draining = None

    def when_sent(self, act: Callable[[], None]) -> None:
        """Say no more, and call `act` once all that was said has been sent; not where the call
        ends first. Of several, the last is called."""
        if not self.is_over:
            self._has_said_all = True
            self._may_send = False
            self._when_sent = act
            self._push()

    def flush(self) -> None:
        """The peer or the transport takes more, from the connection."""
        self._push()
        if self.is_writable:
            self._tell_writable()

    def _push(self) -> None:
        """Send what waits, as far as the windows and the transport go."""
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
            self.has_moved = True
        if unsent:
            connection.block(self)
            return
        connection.blocked.pop(self.stream_id, None)
        if self._when_sent is not None:
            act, self._when_sent = self._when_sent, None
            act()
        else:
            self._may_send = not self._has_said_all

    def _tell_writable(self) -> None:
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
        if self.on_writable is not None:
            self.on_writable()
