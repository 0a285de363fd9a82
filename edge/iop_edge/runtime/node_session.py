"""One node's session on the edge: its attempts, its config answers, its life.

The transport (serve/node_link) feeds batches in and writes what `next_batch` gives. This class
opens no socket. What a session's events mean for dispatch and config is the hub's to decide: they
are reported through `SessionEvents`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from iop.runtime_pb2 import (
    AttemptEnd,
    Cancel,
    Credit,
    EdgeBatch,
    EdgeFrame,
    Goodbye,
    Heartbeat,
    Hello,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeConfigRefreshRequest,
    NodeFrame,
    NodeReport,
    Welcome,
)
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.node_claims import MAX_CODE_CHARS, MAX_ID_CHARS, cut, fault_of
from iop_shared.errors import Code, Fault
from iop_shared.ids import NodeId
from iop_shared.session.flow import ReceiveWindow, SendWindow, WindowBudget, event_cost
from iop_shared.session.handshake import Kind
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import QUANTUM_BYTES, Chunk
from iop_shared.session_end import SessionEnd
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


class NodeSession(SessionEnd[EdgeFrame, NodeFrame, EdgeBatch]):
    """Created once a hello has been accepted; open until `close`."""

    def __init__(
        self,
        node_id: NodeId,
        epoch: int,
        hello: Hello,
        events: SessionEvents,
        budget: WindowBudget,
    ) -> None:
        super().__init__(epoch, Liveness(asyncio.get_running_loop().time()))
        self.node_id = node_id
        self.instance_id = hello.instance_id
        self.node_version = cut(hello.version, MAX_ID_CHARS)
        self.is_leaving = False
        """The node has said goodbye: it takes no new attempts."""
        self._events = events
        self._budget = budget
        self._attempts: dict[int, Attempt] = {}
        self._last_attempt_id = 0
        self._probes: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = self._closed_because or "open"
        return f"NodeSession({self.node_id}#{self.epoch}, {state}, attempts={len(self._attempts)})"

    @property
    def open_attempts(self) -> int:
        return len(self._attempts)

    # -- what the edge asks of the node --------------------------------------------------------

    def welcome(self, welcome: Welcome) -> None:
        self._control(EdgeFrame(welcome=welcome))

    def refresh(self, payload: NodeConfigPayload) -> None:
        self._outbox.bulk(EdgeFrame(config_refresh=NodeConfigRefreshRequest(payload=payload)))
        self._wake()

    def open(self, frame: EdgeFrame, body: bytes) -> Attempt:
        """Open an attempt, by a frame that opens one. Its number is assigned here.

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
        opening = frame.attempt_open
        opening.attempt_id = attempt_id
        is_inline = len(body) <= QUANTUM_BYTES
        if not is_inline:
            opening.chunked_body_bytes = len(body)
        elif opening.HasField("run"):
            opening.run.MergeFromString(body)
        else:
            opening.tunnel.body = body
        weight = len(body) if is_inline else 256
        self.send_frame(attempt_id, frame, weight)
        if not is_inline:
            attempt.begin_body(body)
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

    # -- SessionEnd ----------------------------------------------------------------------------

    def _batch(self, items: Iterable[EdgeFrame | Chunk]) -> EdgeBatch:
        return edge_batch(self.epoch, items)

    def _heartbeat(self, heartbeat: Heartbeat) -> EdgeFrame:
        return EdgeFrame(heartbeat=heartbeat)

    def _heard(self) -> None:
        for probe in self._probes:
            if not probe.done():
                probe.set_result(None)

    def _closed(self, reason: str) -> None:
        """Every attempt is told, then the hub."""
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            self._outbox.drop(attempt.attempt_id)
            attempt.on_end(Fault(Code.NODE_LOST, f"the connection to node {self.node_id} was lost"))
        self._heard()
        self._events.on_closed(self, reason)

    def _receive(self, frame: NodeFrame) -> None:
        match frame.WhichOneof("frame"):
            case "response_chunk":
                chunk = frame.response_chunk
                if (attempt := self._attempt(chunk.attempt_id)) is not None:
                    attempt.on_chunk(chunk.content)
                    if chunk.last:
                        self._ended(attempt, None)
            case "response_head":
                head = frame.response_head
                if (attempt := self._attempt(head.attempt_id)) is not None:
                    attempt.on_head(head)
                    attempt.on_chunk(head.content)
                    if head.last:
                        self._ended(attempt, None)
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
                self._answer_beat(frame.heartbeat)
            case "config_answer":
                self._events.on_answer(self, frame.config_answer)
            case "report":
                self._events.on_report(self, frame.report)
            case "hello":
                self._handshake.receive(Kind.GREETING)
            case "goodbye":
                self._handshake.receive(Kind.GOODBYE)
                self.is_leaving = True
                self._events.on_leaving(self, cut(frame.goodbye.reason, MAX_CODE_CHARS))
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
        if not end.HasField("fault"):
            self._ended(attempt, None)
            return
        if end.fault.upstream_may_have_started:
            attempt.on_started()
        self._ended(attempt, fault_of(end.fault))

    def _ended(self, attempt: Attempt, fault: Fault | None) -> None:
        del self._attempts[attempt.attempt_id]
        self._outbox.drop(attempt.attempt_id)
        attempt.on_end(fault)
