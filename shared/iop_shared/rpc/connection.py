"""One HTTP/2 connection of either end: frames go to their streams or to h2, both ways.

It decides what a peer may make it hold: headers and frames within a length, a bounded number of
bytes that wait for a peer which does not read, and for so long. Which calls there are is the
client's or the server's to say.

It is longer than a room should be: what is heard and what is said share the windows and the calls,
and each frame of a running session is to pass here in one step.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import cast

from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from iop_shared.rpc import frames
from iop_shared.rpc.codes import RpcError, StatusCode, http2_name, reset_error
from iop_shared.rpc.frames import DATA, WINDOW_UPDATE, Broken, FrameReader
from iop_shared.rpc.patience import BURST, Patience
from iop_shared.rpc.rules import MAX_BORNE_HEADERS_BYTES, Rules
from iop_shared.rpc.stalls import StallWatch
from iop_shared.rpc.stream import FIRST_WINDOW_BYTES, Stream

CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 1024 * 1024
"""Of answers to pings, settings and calls that a peer does not read. Messages do not count: they
stop at the transport's own mark, far below."""

LATE_FRAMES = 4
"""Of a call that has ended, which were on their way: so many for each are nothing to be borne."""

PARTING_TIMEOUT_S = 2.0

_HALF_WINDOW = CONNECTION_WINDOW_BYTES // 2


class Connection(asyncio.Protocol, ABC):
    """Used as the protocol of one transport."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_client: bool) -> None:
        self.loop = loop
        self.is_paused = False
        """The transport holds as much as it should."""
        self.send_window = FIRST_WINDOW_BYTES
        self.first_send_window = FIRST_WINDOW_BYTES
        self.max_frame_bytes = 16_384
        self.streams: dict[int, Stream] = {}
        self.blocked: dict[int, Stream] = {}
        """Those with something that waits to be sent, in the order in which they take turns."""
        self.closed_reason: str | None = None
        """Why it is over; None while it is not."""
        self.has_heard = False
        """The peer has spoken HTTP/2."""
        self.has_broken_a_rule = False
        """It is over because of something that the peer did."""
        self.lost: asyncio.Future[None] = loop.create_future()
        """Done once nothing of it is left: PARTING_TIMEOUT_S after its end, or earlier."""
        self.is_leaving = False
        """The peer lets the calls that run end, and takes no others."""
        self._h2 = Rules(is_client=is_client)
        self._frames = FrameReader()
        self._preface_left = b"" if is_client else frames.PREFACE
        self._is_amid_headers = False
        self._header_bytes = 0
        self._received = 0  # of DATA, and not paid back yet
        self._patience = Patience()
        self._window_at_ping = 0  # had nothing been sent since
        self._window_at_grant = 0  # likewise
        self._late_frames = 0
        self._stuck_bytes = 0  # in the transport when it was last looked at, and was paused
        self._stalls = StallWatch(loop, self._give_up_stalled)
        self._parting: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = self.closed_reason or ("leaving" if self.is_leaving else "open")
        return f"{type(self).__name__}({state}, {len(self.streams)} calls, held={self.held_bytes})"

    @property
    def held_bytes(self) -> int:
        """Of what the peer has sent and nobody has taken."""
        headers = self._header_bytes if self._is_amid_headers else 0
        calls = sum(stream.held_bytes for stream in self.streams.values())
        return self._frames.held_bytes + headers + calls

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._write_h2()
        self.write(frames.window_update(0, CONNECTION_WINDOW_BYTES - FIRST_WINDOW_BYTES))

    def data_received(self, data: bytes) -> None:
        if self.closed_reason:
            return
        try:
            if self._preface_left:
                data = self._without_preface(data)
            for kind, flags, stream_id, content in self._frames.feed(data):
                if kind == DATA and not self._is_amid_headers:
                    self._received += len(content)
                    stream = self.streams.get(stream_id)
                    if flags or stream is None or not content:
                        self._receive_rare(stream, flags, stream_id, content)
                    else:
                        stream.receive(content)
                elif kind == WINDOW_UPDATE and not self._is_amid_headers:
                    self._widen(stream_id, frames.increment_of(content))
                else:
                    self._receive_other(kind, flags, stream_id, content)
                if self.closed_reason is not None:
                    return
        except Broken as error:
            self.has_broken_a_rule = True
            self._part(str(error), error.code)
        except H2Error as error:
            self.has_broken_a_rule = True
            # Which it has told the peer already. Its words are not repeated: they quote the peer.
            self._conclude(f"the peer broke a rule: {type(error).__name__}", self._close)
        if self._received >= _HALF_WINDOW:
            self.write(frames.window_update(0, self._received))
            self._received = 0

    def eof_received(self) -> None:
        """The transport is closed by returning nothing: a call needs both directions."""

    def pause_writing(self) -> None:
        self.is_paused = True
        self._stalls.begin()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._stuck_bytes = 0
        others = [
            stream for stream in self.streams.values() if stream.stream_id not in self.blocked
        ]
        self._unblock(self.blocked.values())
        for stream in others:
            if self.is_paused:
                return
            stream.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stalls.end()
        if self._parting is not None:
            self._parting.cancel()
        reason = "the connection was closed"
        if exc is not None:
            # Only the system's own words are repeated.
            told = f": {exc}" if isinstance(exc, OSError) else ""
            reason = f"{type(exc).__name__}{told}"
        self._conclude(reason)
        self.lost.set_result(None)

    # -- what streams ask for ------------------------------------------------------------------

    def write(self, raw: bytes) -> None:
        if self.closed_reason is None:
            self.transport.write(raw)

    def write_data(self, stream_id: int, content: memoryview) -> None:
        self.write(frames.head(DATA, 0, stream_id, len(content)) + content)

    def grant(self, stream: Stream, size: int) -> None:
        """Let the peer send so much more in a call."""
        self.write(frames.window_update(stream.stream_id, size))

    def block(self, stream: Stream) -> None:
        """Something of a stream waits to be sent."""
        if stream.stream_id not in self.blocked:
            stream.has_moved = True
            self.blocked[stream.stream_id] = stream
            self._stalls.begin()

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """End a stream at once, for both ends."""
        self._forget(stream)
        self._h2_does(lambda: self._h2.reset_stream(stream.stream_id, code))

    def end(self, stream: Stream) -> None:
        """This end says no more, once all that it said has been sent."""

        def say() -> None:
            self._h2_does(lambda: self._h2.end_stream(stream.stream_id))

        stream.when_sent(say)

    def close(self, reason: str) -> None:
        """End the connection, with a goodbye where the peer still reads."""
        self._part(reason, ErrorCodes.NO_ERROR)

    def abort(self, reason: str) -> None:
        """End the connection without a word."""
        self._conclude(reason, self.transport.abort)

    # -- what each end says for itself ---------------------------------------------------------

    @abstractmethod
    def _happened(self, event: Event) -> None:
        """An event of h2 that is not common to both ends."""

    @abstractmethod
    def _peer_ended(self, stream: Stream) -> None:
        """The peer says no more in this call."""

    def _open_window(self, stream: Stream) -> None:
        """Where messages may be long, let the peer send more than it may by itself."""
        if more := stream.window_bytes - FIRST_WINDOW_BYTES:
            self.grant(stream, more)

    # -- frames that the peer sends ------------------------------------------------------------

    def _without_preface(self, data: bytes) -> bytes:
        expected = self._preface_left
        if not expected.startswith(data[: len(expected)]):
            raise Broken("what came is no HTTP/2")
        self._preface_left = expected[len(data) :]
        if not self._preface_left:
            self._h2.receive_data(frames.PREFACE)
        return data[len(expected) :]

    def _receive_rare(
        self, stream: Stream | None, flags: int, stream_id: int, content: bytes
    ) -> None:
        """DATA that is padded, empty, the last, or of no stream."""
        size = len(content)
        if flags & frames.PADDED:
            content = frames.without_padding(content)
        if stream is None:
            self._receive_late(stream_id)
            return
        if not content and not flags & frames.END_STREAM:
            self.bear()
        stream.receive(content, size - len(content))
        if flags & frames.END_STREAM and not stream.is_over:
            # Told as trailers: h2 holds the end of DATA against a length that it has not counted.
            flags = frames.END_STREAM | frames.END_HEADERS
            self._hand_to_h2(frames.HEADERS, flags, stream_id, b"")

    def _widen(self, stream_id: int, increment: int) -> None:
        """The peer takes so much more."""
        if stream_id == 0:
            if self.send_window == self._window_at_grant:
                self.bear()
            self.send_window += increment
            self._window_at_grant = self.send_window
            self._window_at_ping += increment
            if self.send_window > frames.MAX_WINDOW:
                raise Broken("the connection's window is too wide", ErrorCodes.FLOW_CONTROL_ERROR)
            self._unblock(self.blocked.values())
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._receive_late(stream_id)
            return
        if stream.send_window == stream.window_at_grant:
            self.bear()
        stream.send_window += increment
        stream.window_at_grant = stream.send_window
        if stream.send_window > frames.MAX_WINDOW:
            error = RpcError(StatusCode.INTERNAL, "the call's window is too wide")
            stream.break_off(error, ErrorCodes.FLOW_CONTROL_ERROR)
        elif stream_id in self.blocked:
            self._unblock((stream,))

    def _receive_other(self, kind: int, flags: int, stream_id: int, content: bytes) -> None:
        if not self.has_heard and (kind != frames.SETTINGS or flags & frames.ACK):
            raise Broken("the first frame was no SETTINGS")
        if kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
            is_first = kind != frames.CONTINUATION
            self._header_bytes = len(content) + (0 if is_first else self._header_bytes)
            if self._header_bytes > MAX_BORNE_HEADERS_BYTES:
                raise Broken("too long headers", ErrorCodes.ENHANCE_YOUR_CALM)
            self._is_amid_headers = not flags & frames.END_HEADERS
        elif kind != frames.PING or self.send_window == self._window_at_ping:
            self.bear()
        else:
            # Whoever is spoken to may ask how far away we are.
            self._window_at_ping = self.send_window
        if kind == frames.SETTINGS and not flags & frames.ACK:
            content = frames.known_settings(content)
        if not self._is_amid_headers:
            if kind == frames.GOAWAY:
                self._hear_goodbye(stream_id, content)
                return
            if kind > frames.CONTINUATION:
                return  # of no kind that is known, and to be ignored (RFC 9113, 5.5)
        self._hand_to_h2(kind, flags, stream_id, content)

    def _hear_goodbye(self, stream_id: int, content: bytes) -> None:
        last_stream_id, code = frames.goodbye(content)
        if stream_id:
            raise Broken("a goodbye in a call")
        if code:
            self.close(f"the peer went away: {http2_name(code)}")
            return
        self.is_leaving = True
        if self._h2.is_client:
            for stream in list(self.streams.values()):
                if stream.stream_id > last_stream_id:
                    self._forget(stream)
                    stream.closed(RpcError(StatusCode.UNAVAILABLE, "refused: the peer goes away"))
        self._leave_with_the_last()

    def _hand_to_h2(self, kind: int, flags: int, stream_id: int, content: bytes) -> None:
        try:
            happened = self._h2.receive_data(
                frames.head(kind, flags, stream_id, len(content)) + content
            )
        finally:
            self._write_h2()
        self.has_heard = True
        if not happened and kind in (frames.HEADERS, frames.CONTINUATION):
            self.bear()
        for event in happened:
            self._take(event)
        self._write_h2()

    def _take(self, event: Event) -> None:
        match event:
            case StreamEnded():
                if (stream := self.streams.get(event.stream_id)) is not None:
                    self._peer_ended(stream)
            case StreamReset():
                if (stream := self.streams.get(event.stream_id)) is not None:
                    self._forget(stream)
                    error = RpcError(StatusCode.INTERNAL, "the peer spoke after its end")
                    stream.closed(reset_error(event.error_code) if event.remote_reset else error)
            case RemoteSettingsChanged():
                self._settings_changed(event)
            case _:
                self._happened(event)

    def _settings_changed(self, event: RemoteSettingsChanged) -> None:
        changed = event.changed_settings
        if (window := changed.get(SettingCodes.INITIAL_WINDOW_SIZE)) is not None:
            more = window.new_value - self.first_send_window
            self.first_send_window = window.new_value
            for stream in self.streams.values():
                stream.send_window += more
                if stream.send_window > frames.MAX_WINDOW:
                    raise Broken("a call's window is too wide", ErrorCodes.FLOW_CONTROL_ERROR)
            if more > 0:
                self._unblock(self.blocked.values())
        if (size := changed.get(SettingCodes.MAX_FRAME_SIZE)) is not None:
            self.max_frame_bytes = min(size.new_value, frames.MAX_FRAME_BYTES)
        self._h2.settle_table()

    # ------------------------------------------------------------------------------------------

    def bear(self) -> None:
        """Something has come that costs work and carries next to nothing. Raises Broken where it
        is too much of that."""
        if not self._patience.bears(self.loop.time()):
            raise Broken("too many frames without content", ErrorCodes.ENHANCE_YOUR_CALM)

    def _receive_late(self, stream_id: int) -> None:
        """What was on its way when its call ended is nobody's any more."""
        if self._late_frames:
            self._late_frames -= 1
        else:
            self.bear()
        if not self._h2.has_begun(stream_id):
            raise Broken("a frame of a call that nobody began")

    def _unblock(self, streams: Iterable[Stream]) -> None:
        """Let streams send, each as much as it can, until the connection takes no more."""
        for stream in list(streams):
            if self.is_paused or self.send_window <= 0:
                return
            if stream.send_window > 0 and not stream.is_over:
                stream.flush()
                if (waiting := self.blocked.pop(stream.stream_id, None)) is not None:
                    self.blocked[stream.stream_id] = waiting

    def _give_up_stalled(self) -> bool:
        """Whether something waits still."""
        if not self.is_paused:
            for stream in list(self.blocked.values()):
                if not stream.has_moved:
                    stream.fail(RpcError(StatusCode.UNAVAILABLE, "the peer takes nothing"))
                stream.has_moved = False
            return bool(self.blocked)
        waiting = self.transport.get_write_buffer_size()
        if waiting >= self._stuck_bytes > 0:
            self.abort("the peer takes nothing")
            return False
        self._stuck_bytes = waiting
        return True

    def _forget(self, stream: Stream) -> None:
        self.streams.pop(stream.stream_id, None)
        self.blocked.pop(stream.stream_id, None)
        self._late_frames = min(self._late_frames + LATE_FRAMES, BURST)
        self._leave_with_the_last()

    def _leave_with_the_last(self) -> None:
        if self.is_leaving and not self.streams:
            # Later: the last call may have its last words still before it.
            self.loop.call_soon(self.close, "the peer went away")

    def _h2_does(self, act: Callable[[], None]) -> bool:
        """Let h2 say something; False where the state of the stream or connection forbids it."""
        if self.closed_reason is not None:
            return False
        try:
            act()
        except H2Error:
            return False
        self._write_h2()
        return True

    def _write_h2(self) -> None:
        if raw := self._h2.data_to_send():
            self.write(raw)
            if self.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
                self.abort("the peer takes nothing of what it asks for")

    def _part(self, reason: str, code: ErrorCodes) -> None:
        self._h2_does(lambda: self._h2.close_connection(code))
        self._conclude(reason, self._close)

    def _close(self) -> None:
        """What was said last is still sent, to a peer that takes it."""
        self.transport.close()
        self._parting = self.loop.call_later(PARTING_TIMEOUT_S, self.transport.abort)

    def _conclude(self, reason: str, end_transport: Callable[[], None] | None = None) -> None:
        if self.closed_reason is not None:
            return
        self.closed_reason = reason
        self.is_paused = True  # nothing is sent any more
        if end_transport is not None:
            end_transport()
        streams, self.streams = list(self.streams.values()), {}
        self.blocked.clear()
        for stream in streams:
            stream.closed(RpcError(StatusCode.UNAVAILABLE, reason))
