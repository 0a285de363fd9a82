"""One HTTP/2 connection of either end: frames go to their streams or to h2, both ways.

It decides what a peer may make it hold: headers and frames within a length, a bounded number of
bytes that wait for a peer which does not read, no endless run of empty frames. Which calls there
are is the client's or the server's to say.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    Event,
    RemoteSettingsChanged,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings

from iop_shared.rpc import frames
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.frames import DATA, WINDOW_UPDATE, Frame, FrameReader, FrameTooLarge
from iop_shared.rpc.stream import WINDOW_BYTES, Stream

CONNECTION_WINDOW_BYTES = 16 * WINDOW_BYTES
MAX_HEADERS_BYTES = 16 * 1024
MAX_STREAMS = 128
"""Calls that run at once on a connection."""

MAX_WAITING_BYTES = 1024 * 1024
"""Of answers to pings, settings and calls that a peer does not read. Messages do not count: they
stop at the transport's own mark, far below."""

MAX_EMPTY_FRAMES = 1000
"""Of DATA in a row, which cost work and carry nothing."""

PARTING_TIMEOUT_S = 2.0

_FIRST_WINDOW_BYTES = 65_535
"""Of every connection and every stream, until the peer's settings say otherwise (RFC 9113, 6.9)."""


class Connection(asyncio.Protocol, ABC):
    """Used as the protocol of one transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_client: bool) -> None:
        self.loop = loop
        self.is_paused = False
        """The transport holds as much as it should."""
        self.send_window = _FIRST_WINDOW_BYTES
        self.first_send_window = _FIRST_WINDOW_BYTES
        self.max_frame_bytes = 16_384
        self.streams: dict[int, Stream] = {}
        self.blocked: dict[int, Stream] = {}
        """Those with something that waits to be sent."""
        self.closed_reason: str | None = None
        """Why it is over; None while it is not."""
        self.has_heard = False
        """The peer has spoken HTTP/2."""
        self._h2 = H2Connection(H2Configuration(client_side=is_client, header_encoding=None))
        self._h2.local_settings = Settings(
            client=is_client,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_FRAME_SIZE: frames.MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
            },
        )
        self._h2.decoder.max_header_list_size = MAX_HEADERS_BYTES
        self._h2.max_inbound_frame_size = frames.MAX_FRAME_BYTES
        self._frames = FrameReader()
        self._preface_left = b"" if is_client else frames.PREFACE
        self._is_amid_headers = False
        self._empty_frames = 0
        self._owed = 0
        self.transport: asyncio.Transport

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._write_h2()
        self.write(
            frames.window_update(0, CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES),
        )

    def data_received(self, data: bytes) -> None:
        try:
            if self._preface_left:
                data = self._without_preface(data)
            for frame in self._frames.feed(data):
                if self.closed_reason is not None:
                    return
                kind = frame.kind
                if kind == DATA and not self._is_amid_headers:
                    self._data(frame)
                elif kind == WINDOW_UPDATE and not self._is_amid_headers:
                    self._window_update(frame)
                else:
                    self._to_h2(frame)
        except FrameTooLarge as error:
            self._broken(str(error), ErrorCodes.FRAME_SIZE_ERROR)
        except H2Error as error:
            self._broken(str(error) or type(error).__name__, ErrorCodes.PROTOCOL_ERROR)

    def eof_received(self) -> None:
        """The transport is closed by returning nothing: a call needs both directions."""

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._unblock(list(self.streams.values()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._over("the connection was closed" if exc is None else f"{type(exc).__name__}: {exc}")

    # -- what streams ask for ------------------------------------------------------------------

    def write(self, raw: bytes) -> None:
        if self.closed_reason is None:
            self.transport.write(raw)

    def write_data(self, stream_id: int, content: memoryview) -> None:
        if self.closed_reason is None:
            self.transport.write(frames.head(DATA, 0, stream_id, len(content)) + content)

    def grant(self, stream: Stream, size: int) -> None:
        """Pay back what a stream has taken."""
        self.write(frames.window_update(stream.stream_id, size))

    def reset(self, stream: Stream, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """End a stream at once, for both ends."""
        self._forget(stream)
        self._h2_does(lambda: self._h2.reset_stream(stream.stream_id, code))

    def end(self, stream: Stream) -> None:
        """This end says no more, once all that it said has been sent."""
        stream.when_sent(lambda: self._h2_does(lambda: self._h2.end_stream(stream.stream_id)))

    def close(self, reason: str) -> None:
        """End the connection, with a goodbye where the peer still reads."""
        if self.closed_reason is None:
            self._h2_does(self._h2.close_connection)
            self._over(reason)

    # -- what each end says for itself ---------------------------------------------------------

    @abstractmethod
    def _happened(self, event: Event) -> None:
        """An event of h2 that is not common to both ends."""

    @abstractmethod
    def _peer_ended(self, stream: Stream) -> None:
        """The peer says no more in this call."""

    def _peer_reset(self) -> None:
        """The peer has broken off a call, which has been told."""

    def _lost(self) -> None:
        """The connection is over, once; every stream has been told."""

    # ------------------------------------------------------------------------------------------

    def _without_preface(self, data: bytes) -> bytes:
        expected, self._preface_left = self._preface_left, self._preface_left[len(data) :]
        if data[: len(expected)] != expected[: len(data)]:
            self._preface_left = expected
            raise ProtocolError("what came is no HTTP/2")
        if self._preface_left:
            return b""
        self._h2.receive_data(frames.PREFACE)
        return data[len(expected) :]

    def _data(self, frame: Frame) -> None:
        content = frame.content
        size = len(content)
        self._owed += size
        if self._owed >= CONNECTION_WINDOW_BYTES // 2:
            self.write(frames.window_update(0, self._owed))
            self._owed = 0
        stream = self.streams.get(frame.stream_id)
        flags = frame.flags
        if stream is None or flags:
            if flags & frames.PADDED:
                content = _without_padding(content)
                if stream is not None:
                    stream._pay(size - len(content))
            if stream is None:
                # Whether a stream that is not open may be spoken to is h2's to judge.
                self._to_h2(Frame(DATA, flags & frames.END_STREAM, frame.stream_id, b""))
                return
        if content:
            self._empty_frames = 0
            stream.receive(content)
        elif not flags & frames.END_STREAM:
            self._empty_frames += 1
            if self._empty_frames > MAX_EMPTY_FRAMES:
                raise ProtocolError("too many frames without content")
        if flags & frames.END_STREAM:
            self._to_h2(Frame(DATA, frames.END_STREAM, frame.stream_id, b""))

    def _window_update(self, frame: Frame) -> None:
        increment = int.from_bytes(frame.content, "big") & frames.MAX_WINDOW
        if len(frame.content) != 4 or not increment:
            raise ProtocolError("a window update without an increment")
        if frame.stream_id == 0:
            self.send_window += increment
            if self.send_window > frames.MAX_WINDOW:
                raise ProtocolError("the connection's window is too large")
            self._unblock(list(self.blocked.values()))
            return
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            return
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            stream.fail(RpcError(StatusCode.INTERNAL, "the stream's window is too large"))
            return
        if frame.stream_id in self.blocked:
            self._unblock([stream])

    def _unblock(self, streams: list[Stream]) -> None:
        for stream in streams:
            if self.is_paused:
                return
            self.blocked.pop(stream.stream_id, None)
            if not stream.is_over:
                stream.flush()

    def _to_h2(self, frame: Frame) -> None:
        if frame.kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
            self._is_amid_headers = not frame.flags & frames.END_HEADERS
        kind, flags, stream_id, content = frame
        try:
            happened = self._h2.receive_data(
                frames.head(kind, flags, stream_id, len(content)) + content
            )
        finally:
            self._write_h2()
        self.has_heard = True
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
                    stream.closed(_reset_error(event.error_code))
                    self._peer_reset()
            case RemoteSettingsChanged():
                self._settings_changed(event)
            case ConnectionTerminated():
                if event.error_code:
                    self._broken(f"the peer went away: {_named(event.error_code)}")
            case _:
                self._happened(event)

    def _settings_changed(self, event: RemoteSettingsChanged) -> None:
        changed = event.changed_settings
        if (window := changed.get(SettingCodes.INITIAL_WINDOW_SIZE)) is not None:
            more = window.new_value - self.first_send_window
            self.first_send_window = window.new_value
            for stream in self.streams.values():
                stream.send_window += more
            if more > 0:
                self._unblock(list(self.blocked.values()))
        if (size := changed.get(SettingCodes.MAX_FRAME_SIZE)) is not None:
            self.max_frame_bytes = min(size.new_value, frames.MAX_FRAME_BYTES)

    def _forget(self, stream: Stream) -> None:
        self.streams.pop(stream.stream_id, None)
        self.blocked.pop(stream.stream_id, None)

    def _h2_does(self, act: Callable[[], None]) -> None:
        """Let h2 say something; nothing where the state of the stream or connection forbids it."""
        if self.closed_reason is not None:
            return
        try:
            act()
        except H2Error:
            return
        self._write_h2()

    def _write_h2(self) -> None:
        if raw := self._h2.data_to_send():
            self.write(raw)
            if self.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
                self._over("the peer takes nothing of what it asks for")

    def _broken(self, reason: str, code: ErrorCodes | None = None) -> None:
        """The peer has broken a rule, or left. h2 may have said so to it already."""
        if self.closed_reason is None:
            if code is not None:
                self._h2_does(lambda: self._h2.close_connection(code))
            self._over(reason)

    def _over(self, reason: str) -> None:
        if self.closed_reason is not None:
            return
        self.closed_reason = reason
        self.transport.close()
        # What was said last is still sent, to a peer that takes it.
        self.loop.call_later(PARTING_TIMEOUT_S, self.transport.abort)
        streams, self.streams = list(self.streams.values()), {}
        self.blocked.clear()
        for stream in streams:
            stream.closed(RpcError(StatusCode.UNAVAILABLE, reason))
        self._lost()


def _without_padding(content: bytes) -> bytes:
    """RFC 9113, section 6.1."""
    if not content or content[0] >= len(content):
        raise ProtocolError("a frame of padding alone")
    return content[1 : len(content) - content[0]]


def _reset_error(code: int) -> RpcError:
    """What a reset means (PROTOCOL-HTTP2.md, "Errors")."""
    if code == ErrorCodes.CANCEL:
        return RpcError(StatusCode.CANCELLED, "the peer cancelled the call")
    if code == ErrorCodes.REFUSED_STREAM:
        return RpcError(StatusCode.UNAVAILABLE, "the peer refused the call")
    if code == ErrorCodes.ENHANCE_YOUR_CALM:
        return RpcError(StatusCode.RESOURCE_EXHAUSTED, "the peer asks for calm")
    return RpcError(StatusCode.INTERNAL, f"the peer reset the call: {_named(code)}")


def _named(code: int) -> str:
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"HTTP/2 error {code}"
