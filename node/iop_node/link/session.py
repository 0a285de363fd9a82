"""The node's end of one session: attempts run here, configs are answered here.

The dialer feeds batches in and writes what `next_batch` gives. Which adapter runs an attempt is
the router's decision, what a payload becomes is the applier's: both are reached through ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from iop.runtime_pb2 import (
    AttemptEnd,
    AttemptOpen,
    Credit,
    EdgeFrame,
    Goodbye,
    Heartbeat,
    NodeBatch,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeFrame,
    NodeReport,
    Welcome,
)
from iop_node.adapters.base import Responder
from iop_node.link.attempt import AttemptResponder, RequestBody
from iop_node.link.envelope import attempt_of
from iop_node.runtime.router import Attempt
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.session.flow import (
    CREDIT_LIMIT_BYTES,
    MAX_EVENT_COST_BYTES,
    ReceiveWindow,
    SendWindow,
    WindowBudget,
)
from iop_shared.session.handshake import SPOKEN, Kind, ProtocolError
from iop_shared.session.liveness import Liveness
from iop_shared.session.outbox import Chunk
from iop_shared.session_end import SessionEnd
from iop_shared.wire import node_batch

_log = logs.get("link")


class NodePorts(Protocol):
    """What a session asks of the rest of the node."""

    async def execute(self, attempt: Attempt, out: Responder) -> None:
        """Run one attempt to its end. Raises Fault; cancellation closes the upstream."""
        ...

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        """Turn a payload into the running registry, or refuse it. Never raises."""
        ...

    def report(self) -> NodeReport: ...

    def connected(self, is_connected: bool) -> None:
        """The session is open and a payload of it acknowledged, or no longer so."""
        ...


class _Running:
    __slots__ = ("body", "responder", "task")

    def __init__(self, responder: AttemptResponder, body: RequestBody | None) -> None:
        self.responder = responder
        self.body = body
        self.task: asyncio.Task[None] | None = None


class NodeSessionEnd(SessionEnd[NodeFrame, EdgeFrame, NodeBatch]):
    """Created from the edge's welcome; open until `close`.

    Raises ProtocolError for a welcome that no session can be held by.
    """

    def __init__(self, welcome: Welcome, ports: NodePorts, budget: WindowBudget) -> None:
        _require_sane(welcome)
        liveness = Liveness(
            asyncio.get_running_loop().time(),
            welcome.heartbeat_interval_ms / 1000,
            welcome.silence_limit_ms / 1000,
        )
        super().__init__(welcome.session_epoch, liveness)
        self.boot_id = welcome.boot_id
        self.node_id = welcome.node_id
        self._ports = ports
        self._budget = budget
        self._window_bytes = welcome.initial_window_bytes
        self._running: dict[int, _Running] = {}
        self._applying: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_leaving = False
        self._reported = NodeReport()
        self._apply(welcome.payload, is_welcome=True)

    def __repr__(self) -> str:
        state = self._closed_because or "open"
        return f"NodeSessionEnd(#{self.epoch}, {state}, attempts={len(self._running)})"

    async def drain(self, reason: str, deadline_s: float) -> bool:
        """Say goodbye and let the attempts end. True when all did before the deadline; those that
        did not are ended, and the edge is told why."""
        if self.is_open and not self._is_leaving:
            self._is_leaving = True
            self._control(
                NodeFrame(goodbye=Goodbye(reason=reason, deadline_ms=int(deadline_s * 1000)))
            )
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            self._end_all(Fault(Code.DRAIN_DEADLINE, "the node stopped before this run had ended"))
            return False
        return True

    def report(self) -> None:
        """Something that status shows has changed: tell the edge."""
        report = self._ports.report()
        if self.is_open and report != self._reported:
            self._reported = report
            self._control(NodeFrame(report=report))

    # -- ResponseLink --------------------------------------------------------------------------

    def send_credit(self, attempt_id: int, size: int) -> None:
        self._control(NodeFrame(credit=Credit(attempt_id=attempt_id, window_bytes=size)))

    # -- SessionEnd ----------------------------------------------------------------------------

    def _batch(self, items: Iterable[NodeFrame | Chunk]) -> NodeBatch:
        return node_batch(self.epoch, items)

    def _heartbeat(self, heartbeat: Heartbeat) -> NodeFrame:
        return NodeFrame(heartbeat=heartbeat)

    def _ticked(self) -> None:
        self.report()

    def _break_off(self, reason: str) -> None:
        self._control(NodeFrame(goodbye=Goodbye(reason=reason)))
        self.close(reason)

    def _closed(self, reason: str) -> None:
        """Every attempt is cancelled."""
        for running in self._running.values():
            if running.task is not None:
                running.task.cancel()
        self._ports.connected(False)

    def _receive(self, frame: EdgeFrame) -> None:
        match frame.WhichOneof("frame"):
            case "attempt_open":
                self._open(frame.attempt_open)
            case "credit":
                running = self._running.get(frame.credit.attempt_id)
                if running is not None:
                    running.responder.on_credit(frame.credit.window_bytes)
                else:
                    self.dropped["late"] += 1
            case "request_chunk":
                chunk = frame.request_chunk
                running = self._running.get(chunk.attempt_id)
                if running is None or running.body is None:
                    self.dropped["late"] += 1
                else:
                    running.body.on_chunk(chunk.content, chunk.last)
            case "cancel":
                self._cancel(frame.cancel.attempt_id)
            case "heartbeat":
                self._answer_beat(frame.heartbeat)
            case "config_refresh":
                self._apply(frame.config_refresh.payload, is_welcome=False)
            case "welcome":
                self._handshake.receive(Kind.GREETING)
            case "goodbye":
                self._handshake.receive(Kind.GOODBYE)
                _log.info("edge_leaving", reason=frame.goodbye.reason)
            case _:
                self.dropped["unknown"] += 1

    def _open(self, opening: AttemptOpen) -> None:
        attempt_id = opening.attempt_id
        if attempt_id in self._running:
            raise ProtocolError(f"attempt {attempt_id} was opened twice")
        body: RequestBody | None = None
        if opening.chunked_body_bytes:
            window = ReceiveWindow(self._budget, self._window_bytes)
            body = RequestBody(self, attempt_id, window)
        responder = AttemptResponder(self, attempt_id, SendWindow(self._window_bytes))
        running = self._running[attempt_id] = _Running(responder, body)
        self._idle.clear()
        running.task = self._loop.create_task(self._run(opening, running))
        running.task.add_done_callback(lambda _: self._ended(attempt_id, running))

    def _end_all(self, fault: Fault) -> None:
        running, self._running = self._running, {}
        for attempt_id, attempt in running.items():
            self.send_frame(attempt_id, _end_frame(attempt_id, fault, attempt))
            if attempt.task is not None:
                attempt.task.cancel()

    def _cancel(self, attempt_id: int) -> None:
        running = self._running.pop(attempt_id, None)
        if running is None:
            self.dropped["late"] += 1
        elif running.task is not None:
            running.task.cancel()
        self._outbox.drop(attempt_id)

    async def _run(self, opening: AttemptOpen, running: _Running) -> None:
        fault: Fault | None = None
        body = running.body if running.body is not None else opening.tunnel.body
        try:
            if self._is_leaving:
                raise Fault(Code.DRAINING, "the node is stopping")
            attempt = await attempt_of(opening, body)
            await self._ports.execute(attempt, running.responder)
            if logs.shows_debug():
                _log.debug("attempt_completed", **_ids(opening))
        except asyncio.CancelledError:
            if logs.shows_debug():
                _log.debug("attempt_cancelled", **_ids(opening))
            raise
        except Fault as raised:
            _log.info("attempt_failed", **_ids(opening), code=raised.code.value)
            fault = raised
        except Exception:
            _log.exception("attempt_failed", **_ids(opening), code=Code.INTERNAL.value)
            fault = Fault(Code.INTERNAL, "the node failed to run this attempt")
        if self._running.get(opening.attempt_id) is not running:
            return
        if fault is None and running.responder.has_head:
            self.end_body(opening.attempt_id)
        else:
            self.send_frame(opening.attempt_id, _end_frame(opening.attempt_id, fault, running))

    def _ended(self, attempt_id: int, running: _Running) -> None:
        if running.body is not None:
            running.body.close()
        if self._running.get(attempt_id) is running:
            del self._running[attempt_id]
        if not self._running:
            self._idle.set()

    def _apply(self, payload: NodeConfigPayload, *, is_welcome: bool) -> None:
        task = self._loop.create_task(self._answer(payload, is_welcome))
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)

    async def _answer(self, payload: NodeConfigPayload, is_welcome: bool) -> None:
        answer = await self._ports.apply(payload, boot_id=self.boot_id, is_welcome=is_welcome)
        if self.is_open:
            self._control(NodeFrame(config_answer=answer))
            if answer.is_acknowledged:
                self._ports.connected(True)
            self.report()


def _require_sane(welcome: Welcome) -> None:
    if not SPOKEN.min <= welcome.protocol <= SPOKEN.max:
        raise ProtocolError(
            f"the edge wants to speak protocol {welcome.protocol}, "
            f"this node speaks {SPOKEN.min} to {SPOKEN.max}"
        )
    if not 0 < welcome.heartbeat_interval_ms < welcome.silence_limit_ms:
        raise ProtocolError(
            f"a heartbeat every {welcome.heartbeat_interval_ms} ms needs a longer silence limit, "
            f"not {welcome.silence_limit_ms} ms"
        )
    if not MAX_EVENT_COST_BYTES <= welcome.initial_window_bytes <= CREDIT_LIMIT_BYTES:
        raise ProtocolError(
            f"a window begins with {MAX_EVENT_COST_BYTES} to {CREDIT_LIMIT_BYTES} bytes, "
            f"not {welcome.initial_window_bytes}"
        )


def _ids(opening: AttemptOpen) -> dict[str, Any]:
    """What finds the run of this attempt in the edge's log."""
    return {
        "run_id": opening.run_id,
        "attempt": opening.attempt,
        "generation": opening.generation,
        "provider_id": opening.provider_id,
    }


def _end_frame(attempt_id: int, fault: Fault | None, running: _Running) -> NodeFrame:
    end = AttemptEnd(attempt_id=attempt_id)
    if fault is not None:
        end.fault.code = fault.code.value
        end.fault.message = fault.message
        end.fault.param = fault.param or ""
        end.fault.upstream_may_have_started = running.responder.has_started
    return NodeFrame(attempt_end=end)
