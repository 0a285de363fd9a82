"""One node's session on the edge: its attempts, its config answers, its life.

The transport (serve/node_link) feeds batches in and writes what `next_batch` gives. This class
opens no socket. What a session's events mean for dispatch and config is the hub's to decide: they
are reported through `SessionEvents`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from iop.runtime_pb2 import (
    AttemptEnd,
    AttemptOpen,
    Cancel,
    Credit,
    EdgeBatch,
    EdgeFrame,
    Goodbye,
    Heartbeat,
    Hello,
    NodeBatch,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeConfigRefreshRequest,
    NodeFrame,
    NodeReport,
    Welcome,
)
from iop_edge.runtime.attempt import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.ids import NodeId
from iop_shared.session.flow import (
    FlowViolation,
    ReceiveWindow,
    SendWindow,
    WindowBudget,
    event_cost,
)
from iop_shared.session.handshake import Handshake, Kind, ProtocolError
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import QUANTUM_BYTES, Outbox
from iop_shared.wire import edge_batch


class SessionEvents(Protocol):
    """Who hears what a session learns. Calls come from the loop, one at a time."""

    def on_answer(self, session: NodeSession, answer: NodeConfigAnswer) -> None: ...
    def on_report(self, session: NodeSession, report: NodeReport) -> None: ...
    def on_leaving(self, session: NodeSession, reason: str) -> None:
        """The node takes no new attempts; the running ones may end."""
        ...

    def on_closed(self, session: NodeSession, reason: str) -> None:
        """The session is over. Every attempt of it has already been told."""
        ...


class NodeSession:
    """Created once a hello has been accepted; open until `close`."""

    def __init__(
        self,
        node_id: NodeId,
        epoch: int,
        hello: Hello,
        events: SessionEvents,
        budget: WindowBudget,
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.instance_id = hello.instance_id
        self.node_version = hello.version
        self.is_leaving = False
        """The node has said goodbye: it takes no new attempts."""
        self.dropped: Counter[str] = Counter()
        """Frames that were counted and ignored, by reason."""
        self._events = events
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._handshake = Handshake()
        self._handshake.receive(Kind.GREETING)
        self._liveness = Liveness(self._loop.time())
        self._outbox: Outbox[EdgeFrame] = Outbox()
        self._attempts: dict[int, Attempt] = {}
        self._last_attempt_id = 0
        self._heartbeats = 0
        self._writer: asyncio.Future[None] | None = None
        self._probes: list[asyncio.Future[None]] = []
        self._closed_because: str | None = None
        self._timer = self._loop.call_at(self._liveness.next_due(), self._tick)

    def __repr__(self) -> str:
        state = self._closed_because or "open"
        return f"NodeSession({self.node_id}#{self.epoch}, {state}, attempts={len(self._attempts)})"

    @property
    def is_open(self) -> bool:
        return self._closed_because is None

    @property
    def close_reason(self) -> str | None:
        return self._closed_because

    @property
    def open_attempts(self) -> int:
        return len(self._attempts)

    # -- what the edge asks of the node --------------------------------------------------------

    def welcome(self, welcome: Welcome) -> None:
        self._control(EdgeFrame(welcome=welcome))

    def refresh(self, payload: NodeConfigPayload) -> None:
        self._control(EdgeFrame(config_refresh=NodeConfigRefreshRequest(payload=payload)))

    def open(self, opening: AttemptOpen, body: bytes) -> Attempt:
        """Open an attempt. Its number is assigned here.

        `body` is the request of a tunnel, or a whole RunRequest in its serialized form; it goes
        into the opening frame where it is short, else in chunks behind it. Raises Fault(node_lost)
        when the session is over.
        """
        if not self.is_open:
            raise Fault(Code.NODE_LOST, f"node {self.node_id} is not connected")
        self._last_attempt_id += 1
        attempt_id = self._last_attempt_id
        attempt = self._attempts[attempt_id] = Attempt(
            self,
            attempt_id,
            receive_window=ReceiveWindow(self._budget),
            send_window=SendWindow(),
        )
        opening.attempt_id = attempt_id
        is_inline = len(body) <= QUANTUM_BYTES
        if not is_inline:
            opening.chunked_body_bytes = len(body)
        elif opening.HasField("run"):
            opening.run.MergeFromString(body)
        else:
            opening.tunnel.body = body
        self._outbox.frame(
            attempt_id, EdgeFrame(attempt_open=opening), len(body) if is_inline else 256
        )
        if not is_inline:
            attempt.begin_body(body)
        self._wake()
        return attempt

    def say_goodbye(self, reason: str, deadline_ms: int) -> None:
        """No new attempts will come; running ones may finish."""
        self._handshake.close()
        self._control(EdgeFrame(goodbye=Goodbye(reason=reason, deadline_ms=deadline_ms)))

    async def answers_within(self, timeout_s: float) -> bool:
        """Probe the peer: does anything come back in time? (NODE-9)"""
        if not self.is_open:
            return False
        probe = self._loop.create_future()
        self._probes.append(probe)
        self._beat()
        try:
            await asyncio.wait_for(probe, timeout_s)
        except TimeoutError:
            return False
        finally:
            if probe in self._probes:
                self._probes.remove(probe)
        return self.is_open

    # -- AttemptLink ---------------------------------------------------------------------------

    def send_body(self, attempt_id: int, content: bytes) -> None:
        self._outbox.body(attempt_id, content)
        self._wake()

    def end_body(self, attempt_id: int) -> None:
        self._outbox.end_body(attempt_id)
        self._wake()

    def send_credit(self, attempt_id: int, size: int) -> None:
        self._control(EdgeFrame(credit=Credit(attempt_id=attempt_id, window_bytes=size)))

    def cancel_attempt(self, attempt_id: int, reason: str) -> None:
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is None:
            return
        unsent = self._outbox.drop(attempt_id)
        was_opened = not any(frame.HasField("attempt_open") for frame in unsent)
        if was_opened:
            self._control(EdgeFrame(cancel=Cancel(attempt_id=attempt_id, reason=reason)))
        attempt.on_end(Fault(Code.INTERNAL, f"the attempt was cancelled: {reason}"))

    # -- the transport's side ------------------------------------------------------------------

    async def next_batch(self) -> EdgeBatch | None:
        """What waits, as soon as something does; None once the session is over."""
        while not self._outbox:
            if not self.is_open:
                return None
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        self._liveness.said(self._loop.time())
        return edge_batch(self.epoch, self._outbox.take())

    def receive(self, batch: NodeBatch) -> None:
        """Take a batch in. A peer that breaks the protocol closes the session."""
        if not self.is_open:
            self.dropped["after_close"] += len(batch.frames)
            return
        if batch.session_epoch != self.epoch:
            self.dropped["old_epoch"] += len(batch.frames)
            return
        self._liveness.heard(self._loop.time())
        for probe in self._probes:
            if not probe.done():
                probe.set_result(None)
        try:
            for frame in batch.frames:
                self._receive(frame)
        except (ProtocolError, FlowViolation) as error:
            self.close(f"protocol_error: {error}")

    def close(self, reason: str) -> None:
        """The session is over: every attempt is told, then the hub. Idempotent."""
        if not self.is_open:
            return
        self._closed_because = reason
        self._handshake.end()
        self._timer.cancel()
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            self._outbox.drop(attempt.attempt_id)
            attempt.on_end(Fault(Code.NODE_LOST, f"the connection to node {self.node_id} was lost"))
        for probe in self._probes:
            if not probe.done():
                probe.set_result(None)
        self._wake()
        self._events.on_closed(self, reason)

    # ------------------------------------------------------------------------------------------

    def _receive(self, frame: NodeFrame) -> None:
        match frame.WhichOneof("frame"):
            case "response_chunk":
                chunk = frame.response_chunk
                if (attempt := self._attempt(chunk.attempt_id)) is not None:
                    attempt.on_chunk(chunk.content)
            case "response_head":
                head = frame.response_head
                if (attempt := self._attempt(head.attempt_id)) is not None:
                    attempt.on_head(head)
            case "run_event":
                event = frame.run_event
                if (attempt := self._attempt(event.attempt_id)) is not None:
                    attempt.on_event(event, event_cost(frame.ByteSize()))
            case "attempt_end":
                self._end(frame.attempt_end)
            case "upstream_started":
                if (attempt := self._attempt(frame.upstream_started.attempt_id)) is not None:
                    attempt.on_started()
            case "credit":
                credit = frame.credit
                if (attempt := self._attempt(credit.attempt_id)) is not None:
                    attempt.on_credit(credit.window_bytes)
            case "heartbeat":
                if not frame.heartbeat.is_answer:
                    self._control(
                        EdgeFrame(
                            heartbeat=Heartbeat(sequence=frame.heartbeat.sequence, is_answer=True)
                        )
                    )
            case "config_answer":
                self._events.on_answer(self, frame.config_answer)
            case "report":
                self._events.on_report(self, frame.report)
            case "hello":
                self._handshake.receive(Kind.GREETING)
            case "goodbye":
                self._handshake.receive(Kind.GOODBYE)
                self.is_leaving = True
                self._events.on_leaving(self, frame.goodbye.reason)
            case _:
                self.dropped["unknown"] += 1

    def _attempt(self, attempt_id: int) -> Attempt | None:
        """The attempt that a frame names; a frame that names none that is open is counted."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            was_opened = 0 < attempt_id <= self._last_attempt_id
            self.dropped["late" if was_opened else "never_opened"] += 1
        return attempt

    def _end(self, end: AttemptEnd) -> None:
        attempt = self._attempt(end.attempt_id)
        if attempt is None:
            return
        del self._attempts[end.attempt_id]
        self._outbox.drop(end.attempt_id)
        if not end.HasField("fault"):
            attempt.on_end(None)
            return
        if end.fault.upstream_may_have_started:
            attempt.on_started()
        attempt.on_end(_fault(end.fault.code, end.fault.message))

    def _control(self, frame: EdgeFrame) -> None:
        if self._outbox.is_flooded:
            self.close("the peer takes nothing of what it asks for")
            return
        self._outbox.control(frame)
        self._wake()

    def _wake(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _beat(self) -> None:
        self._heartbeats += 1
        self._control(EdgeFrame(heartbeat=Heartbeat(sequence=self._heartbeats)))

    def _tick(self) -> None:
        now = self._loop.time()
        if self._liveness.is_lost(now):
            self.close(f"silent for {now - self._liveness.last_heard:.0f} s")
            return
        if self._liveness.is_heartbeat_due(now):
            self._liveness.said(now)
            self._beat()
        self._timer = self._loop.call_at(self._liveness.next_due(), self._tick)


def _fault(code: str, message: str) -> Fault:
    """A node's fault as the edge's own. A code this edge does not know is `internal`."""
    try:
        return Fault(Code(code), message)
    except ValueError:
        return Fault(Code.INTERNAL, f"the node reported {code!r}")
