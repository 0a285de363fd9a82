"""What both ends of a session do alike, on an event loop.

It joins the pure parts of `iop_shared.session` (handshake, outbox, liveness) to a transport:
batches go in by `receive` and out by `take_batch`, heartbeats are sent and silence is noticed,
frames of another epoch are counted and dropped, and a peer that breaks a rule ends the session.
What a frame means is the end's own to know; it says so by the methods marked below.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from iop.runtime_pb2 import Heartbeat
from iop_shared.session.flow import FlowViolation
from iop_shared.session.handshake import Handshake, Kind, ProtocolError
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import FRAME_WEIGHT_BYTES, Chunk, Outbox

PARTING_TIMEOUT_S = 2.0
"""How long the last words of a session may take in each direction."""

Sent = TypeVar("Sent")
"""Frames of this end."""
Heard = TypeVar("Heard")
"""Frames of the peer."""
Batch = TypeVar("Batch")
"""Messages of this end."""

HeardFrame = TypeVar("HeardFrame", covariant=True)


class HeardBatch(Protocol[HeardFrame]):
    """A message of the peer."""

    @property
    def session_epoch(self) -> int: ...
    @property
    def frames(self) -> Sequence[HeardFrame]: ...


class SessionEnd(ABC, Generic[Sent, Heard, Batch]):
    """Created once the peer's greeting has been accepted; open until `close`."""

    def __init__(self, epoch: int, liveness: Liveness) -> None:
        self.epoch = epoch
        self.dropped: Counter[str] = Counter()
        """Frames that were counted and ignored, by reason."""
        self._loop = asyncio.get_running_loop()
        self._handshake = Handshake()
        self._handshake.receive(Kind.GREETING)
        self._liveness = liveness
        self._outbox: Outbox[Sent] = Outbox()
        self._heartbeats = 0
        self._wake: Callable[[], None] = _nobody
        self._closed_because: str | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done once the session is over."""
        self._due = liveness.next_due()
        self._timer = self._loop.call_at(self._due, self._tick)

    @property
    def is_open(self) -> bool:
        return self._closed_because is None

    @property
    def close_reason(self) -> str | None:
        return self._closed_because

    # -- the transport's side ------------------------------------------------------------------

    def attach(self, wake: Callable[[], None]) -> None:
        """`wake` is called whenever something more waits to be taken, and at the end. It must take
        nothing by itself: more may be queued before its caller returns."""
        self._wake = wake
        wake()

    def take_batch(self) -> Batch | None:
        """What waits; None where nothing does. Also what is left once the session is over."""
        if not self._outbox:
            return None
        self._liveness.said(self._loop.time())
        return self._batch(self._outbox.take())

    def receive(self, batch: HeardBatch[Heard]) -> None:
        """Take a batch in. A peer that breaks the protocol closes the session."""
        if not self.is_open:
            self.dropped["after_close"] += len(batch.frames)
            return
        if batch.session_epoch != self.epoch:
            self.dropped["old_epoch"] += len(batch.frames)
            return
        self._liveness.heard(self._loop.time())
        self._heard()
        try:
            for frame in batch.frames:
                self._receive(frame)
        except (ProtocolError, FlowViolation) as error:
            self._break_off(f"protocol_error: {error}")

    def close(self, reason: str) -> None:
        """The session is over. Idempotent."""
        if not self.is_open:
            return
        self._closed_because = reason
        self._handshake.end()
        self._timer.cancel()
        self._wake()
        self.closed.set_result(None)
        self._closed(reason)

    # -- what is sent --------------------------------------------------------------------------

    def send_frame(self, attempt_id: int, frame: Sent, weight: int = FRAME_WEIGHT_BYTES) -> None:
        """Queue a frame of an attempt behind what waits of it. `weight` is in bytes."""
        self._outbox.frame(attempt_id, frame, weight)
        self._wake()

    def send_body(self, attempt_id: int, content: bytes) -> None:
        """Queue body bytes for which credit has been spent."""
        self._outbox.body(attempt_id, content)
        self._wake()

    def end_body(self, attempt_id: int) -> None:
        """Queue the mark that the body is complete."""
        self._outbox.end_body(attempt_id)
        self._wake()

    def _control(self, frame: Sent) -> None:
        """Queue a frame that overtakes all data."""
        if self._outbox.is_flooded:
            self.close("the peer takes nothing of what it asks for")
            return
        self._outbox.control(frame)
        self._wake()

    def _beat(self) -> None:
        self._heartbeats += 1
        self._control(self._heartbeat(Heartbeat(sequence=self._heartbeats)))

    def _answer_beat(self, heartbeat: Heartbeat) -> None:
        if not heartbeat.is_answer:
            answer = Heartbeat(sequence=heartbeat.sequence, is_answer=True)
            self._control(self._heartbeat(answer))

    # -- what each end says for itself ---------------------------------------------------------

    @abstractmethod
    def _batch(self, items: Iterable[Sent | Chunk]) -> Batch:
        """A message of these frames and chunks, in their order."""

    @abstractmethod
    def _heartbeat(self, heartbeat: Heartbeat) -> Sent:
        """A frame that carries this heartbeat."""

    @abstractmethod
    def _receive(self, frame: Heard) -> None:
        """Take one frame in. Raises ProtocolError or FlowViolation for one that breaks a rule."""

    @abstractmethod
    def _closed(self, reason: str) -> None:
        """The session has just ended, once."""

    def _heard(self) -> None:
        """The peer has given a sign of life."""

    def _ticked(self) -> None:
        """About a heartbeat's interval has passed, however busy the session is."""

    def _break_off(self, reason: str) -> None:
        """The peer has broken a rule."""
        self.close(reason)

    # ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        # The loop may call a timer early by its clock's resolution. The timer itself cannot be
        # asked: uvloop's call_at returns a plain handle for what is due already.
        now = max(self._loop.time(), self._due)
        if self._liveness.is_lost(now):
            self.close(f"silent for {now - self._liveness.last_heard:.0f} s")
            return
        if self._liveness.is_heartbeat_due(now):
            self._liveness.said(now)
            self._beat()
        if self.is_open:
            self._ticked()
        if self.is_open:
            self._due = self._liveness.next_due()
            self._timer = self._loop.call_at(self._due, self._tick)


def _nobody() -> None:
    """Before there is a transport."""
