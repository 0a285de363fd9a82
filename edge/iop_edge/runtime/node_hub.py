"""All nodes of the edge: who is connected, and which configuration each one runs.

The hub decides who may join (NODE-9), keeps the four config facts of each node apart (desired,
sent, acknowledged, effective: REF-9), and tells the dispatcher when a node's providers become
candidates and when they cease to be (POOL-1). It opens no socket and knows no run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol, cast

import msgspec

from iop.runtime_pb2 import (
    AttemptOpen,
    Hello,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeReport,
    Welcome,
)
from iop_edge.config.effective import Health
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.node_session import NodeSession
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.ids import Generation, NodeId, ProviderId, Resource
from iop_shared.session.flow import INITIAL_WINDOW_BYTES, WindowBudget
from iop_shared.session.handshake import SPOKEN, Protocols, negotiate
from iop_shared.session.liveness import HEARTBEAT_INTERVAL_S, SILENCE_LIMIT_S
from iop_shared.wire import MAX_MESSAGE_BYTES

PROBE_TIMEOUT_S = 2.0
"""How long a session that another process wants to replace may take to show life (NODE-9)."""

PUSH_WINDOW = 32
"""Pushes between two turns of the loop: a burst of a thousand would stop it for 60 to 100 ms."""

Outcome = Literal["acknowledged", "refused", "timed_out", "not_connected"]

_LOWERED = frozenset({"degraded", "unavailable"})

_log = logs.get("node_hub")


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one push. `generation` is the one that the node runs now, if known."""

    node_id: NodeId
    outcome: Outcome
    generation: Generation | None
    detail: str | None = None


class JoinRefused(Exception):
    """The hello is not accepted; `code` is stable, the message is for the node's operator."""

    def __init__(self, code: Literal["already_connected", "protocol_mismatch"], message: str):
        super().__init__(message)
        self.code = code


class PoolEvents(Protocol):
    """What the hub tells the dispatcher."""

    def node_connected(self, node_id: NodeId) -> None: ...
    def node_lost(self, node_id: NodeId) -> None: ...
    def probed_health(self, resource: Resource, health: Health) -> None:
        """What the node found; forgotten when its session ends (NODE-10)."""
        ...


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as status shows it (interface, section 3)."""

    node_id: NodeId
    state: Literal["disconnected", "joining", "connected"]
    session: int | None
    version: str | None
    desired: Generation | None
    sent: Generation | None
    acknowledged: Generation | None
    effective: Generation | None
    last_failure: str | None
    active_runs: int
    draining: tuple[tuple[Generation, int, int], ...]
    """(generation, active runs, deadline in ms) of each registry that still drains."""


class _Node:
    """The edge's knowledge of one configured node."""

    __slots__ = (
        "acknowledged",
        "desired",
        "draining",
        "effective",
        "last_failure",
        "lowered",
        "node_id",
        "payload",
        "pending",
        "refused",
        "report_runs",
        "sent",
        "session",
        "takes_runs",
    )

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.payload: NodeConfigPayload | None = None
        self.desired: Generation | None = None
        self.sent: Generation | None = None
        self.acknowledged: Generation | None = None
        self.effective: Generation | None = None
        self.last_failure: str | None = None
        self.session: NodeSession | None = None
        self.takes_runs = False
        self.refused: Generation | None = None
        self.pending: dict[Generation, asyncio.Future[NodeConfigAnswer]] = {}
        self.lowered: set[ProviderId] = set()
        self.report_runs = 0
        self.draining: tuple[tuple[Generation, int, int], ...] = ()


class NodeHub:
    """Nodes are known from `set_desired`; only a known node can join."""

    def __init__(
        self,
        *,
        boot_id: str,
        version: str,
        pool: PoolEvents,
        budget: WindowBudget,
    ) -> None:
        self._boot_id = boot_id
        self._version = version
        self._pool = pool
        self._budget = budget
        self._nodes: dict[NodeId, _Node] = {}
        self._last_epoch = 0

    # -- configuration -------------------------------------------------------------------------

    def set_desired(self, payloads: Mapping[NodeId, NodeConfigPayload]) -> None:
        """What each node shall run from now on. Each payload carries its own generation: the one
        in which it last changed (REF-8). A node that joins is sent this."""
        for node_id, payload in payloads.items():
            node = self._nodes.setdefault(node_id, _Node(node_id))
            node.payload = payload
            node.desired = Generation(payload.generation)

    def connected(self) -> frozenset[NodeId]:
        """Nodes with an open session, whether or not they have acknowledged yet."""
        return frozenset(node.node_id for node in self._nodes.values() if node.session is not None)

    async def push(
        self, payloads: Mapping[NodeId, NodeConfigPayload], timeout_s: float
    ) -> AsyncIterator[NodeAnswer]:
        """Send each payload to its node and give the answers as they come.

        A node without a session answers `not_connected`; it is sent its desired payload when it
        joins. A generation that a node refused is not sent to it again within the session.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        waiting: list[asyncio.Task[NodeAnswer]] = []
        for position, (node_id, payload) in enumerate(payloads.items(), start=1):
            waiting.append(asyncio.create_task(self._push_one(node_id, payload, deadline)))
            if position % PUSH_WINDOW == 0:
                await asyncio.sleep(0)
        try:
            for answer in asyncio.as_completed(waiting):
                yield await answer
        finally:
            for task in waiting:
                task.cancel()

    # -- sessions ------------------------------------------------------------------------------

    async def join(self, node_id: NodeId, hello: Hello) -> NodeSession:
        """Accept a hello from the holder of this node's token.

        The same process replaces its own session at once. Another process is refused while the
        present session answers a probe within 2 s; nothing of the present session is touched
        before that is known. Raises JoinRefused.
        """
        theirs = Protocols(hello.protocol.min, hello.protocol.max)
        protocol = negotiate(SPOKEN, theirs)
        if protocol is None:
            raise JoinRefused(
                "protocol_mismatch",
                f"this edge speaks protocol {SPOKEN.min} to {SPOKEN.max}, "
                f"the node {theirs.min} to {theirs.max}",
            )
        node = self._nodes[node_id]
        while (present := node.session) is not None and (present.instance_id != hello.instance_id):
            if await present.answers_within(PROBE_TIMEOUT_S):
                raise JoinRefused(
                    "already_connected",
                    f"node {node_id} is connected from another process that answers",
                )
            present.close("replaced: it answered no probe")
        if present is not None:
            present.close("replaced by the same process")
        return self._admit(node, hello, protocol)

    def open_attempt(self, node_id: NodeId, opening: AttemptOpen, body: bytes) -> Attempt:
        """Open an attempt on a node. Raises Fault(node_lost) when it is not connected."""
        node = self._nodes.get(node_id)
        if node is None or node.session is None:
            raise Fault(Code.NODE_LOST, f"node {node_id} is not connected")
        return node.session.open(opening, body)

    def takes_runs(self, node_id: NodeId) -> bool:
        """The node is connected as POOL-1 means it."""
        node = self._nodes.get(node_id)
        return node is not None and node.takes_runs

    def say_goodbye(self, reason: str, deadline_ms: int) -> None:
        """Tell every node that no new attempts will come."""
        for node in self._nodes.values():
            if node.session is not None:
                node.session.say_goodbye(reason, deadline_ms)

    def close_all(self, reason: str) -> None:
        for node in self._nodes.values():
            if node.session is not None:
                node.session.close(reason)

    def views(self) -> list[NodeView]:
        return [_view(node) for node in self._nodes.values()]

    # -- SessionEvents -------------------------------------------------------------------------

    def on_answer(self, session: NodeSession, answer: NodeConfigAnswer) -> None:
        node = self._nodes[session.node_id]
        if node.session is not session:
            session.dropped["late"] += 1
            return
        generation = Generation(answer.generation)
        node.effective = Generation(answer.effective_generation) or None
        if answer.is_acknowledged:
            node.acknowledged = generation
            if generation == node.desired:
                node.last_failure = None
            if not node.takes_runs:
                node.takes_runs = True
                _log.info("node_connected", node_id=node.node_id, generation=generation)
                self._pool.node_connected(node.node_id)
        else:
            node.refused = generation
            node.last_failure = f"{answer.code}: {answer.reason}"
            _log.warning(
                "node_refused_config",
                node_id=node.node_id,
                generation=generation,
                code=answer.code,
                reason=answer.reason,
            )
        pending = node.pending.pop(generation, None)
        if pending is not None and not pending.done():
            pending.set_result(answer)

    def on_report(self, session: NodeSession, report: NodeReport) -> None:
        node = self._nodes[session.node_id]
        if node.session is not session:
            return
        node.report_runs = report.active_runs
        node.draining = tuple(
            (Generation(entry.generation), entry.active_runs, entry.deadline_in_ms)
            for entry in report.draining
        )
        self._hear_health(node, report)

    def _hear_health(self, node: _Node, report: NodeReport) -> None:
        """A report names every provider that is worse than healthy; all others are healthy."""
        heard = {ProviderId(entry.provider_id): entry for entry in report.health}
        for provider_id in sorted(node.lowered - heard.keys()):
            _log.info("provider_recovered", node_id=node.node_id, provider_id=provider_id)
            self._pool.probed_health(Resource(node.node_id, provider_id), "healthy")
        for provider_id, entry in heard.items():
            if entry.health in _LOWERED:
                _log.warning(
                    "provider_lowered",
                    node_id=node.node_id,
                    provider_id=provider_id,
                    health=entry.health,
                    reason=entry.reason,
                )
                health = cast(Health, entry.health)
                self._pool.probed_health(Resource(node.node_id, provider_id), health)
        node.lowered = set(heard)

    def on_leaving(self, session: NodeSession, reason: str) -> None:
        node = self._nodes[session.node_id]
        if node.session is session and node.takes_runs:
            node.takes_runs = False
            _log.info("node_leaving", node_id=node.node_id, reason=reason)
            self._pool.node_lost(node.node_id)

    def on_closed(self, session: NodeSession, reason: str) -> None:
        node = self._nodes[session.node_id]
        if node.session is not session:
            return
        node.session = None
        node.sent = None
        node.refused = None
        node.draining = ()
        node.report_runs = 0
        node.lowered = set()
        for pending in node.pending.values():
            pending.cancel()
        node.pending.clear()
        _log.warning("node_lost", node_id=node.node_id, session=session.epoch, reason=reason)
        if node.takes_runs:
            node.takes_runs = False
            self._pool.node_lost(node.node_id)

    # ------------------------------------------------------------------------------------------

    def _admit(self, node: _Node, hello: Hello, protocol: int) -> NodeSession:
        self._last_epoch += 1
        session = NodeSession(node.node_id, self._last_epoch, hello, self, self._budget)
        node.session = session
        node.sent = node.desired
        node.acknowledged = None
        # What it ran under another edge process says nothing about this one's generations.
        node.effective = (
            Generation(hello.effective_generation) or None
            if hello.last_boot_id == self._boot_id
            else None
        )
        session.welcome(
            Welcome(
                protocol=protocol,
                session_epoch=session.epoch,
                boot_id=self._boot_id,
                version=self._version,
                node_id=node.node_id,
                heartbeat_interval_ms=int(HEARTBEAT_INTERVAL_S * 1000),
                silence_limit_ms=int(SILENCE_LIMIT_S * 1000),
                initial_window_bytes=INITIAL_WINDOW_BYTES,
                max_message_bytes=MAX_MESSAGE_BYTES,
                payload=node.payload,
            )
        )
        _log.info(
            "node_joining",
            node_id=node.node_id,
            session=session.epoch,
            node_version=hello.version,
            generation=node.sent,
        )
        return session

    async def _push_one(
        self, node_id: NodeId, payload: NodeConfigPayload, deadline: float
    ) -> NodeAnswer:
        node = self._nodes[node_id]
        generation = Generation(payload.generation)
        if node.session is None:
            return NodeAnswer(node_id=node_id, outcome="not_connected", generation=node.effective)
        if node.acknowledged == generation:
            # It joined between the swap and the push, and was welcomed with this payload.
            return NodeAnswer(node_id=node_id, outcome="acknowledged", generation=node.effective)
        if node.refused == generation:
            return NodeAnswer(
                node_id=node_id,
                outcome="refused",
                generation=node.effective,
                detail=node.last_failure,
            )
        pending = node.pending.get(generation)
        if pending is None:
            pending = asyncio.get_running_loop().create_future()
            node.pending[generation] = pending
        if node.sent != generation:
            node.sent = generation
            node.session.refresh(payload)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await asyncio.shield(pending)
        except TimeoutError:
            node.last_failure = f"timed_out: no answer to generation {generation}"
            return NodeAnswer(
                node_id=node_id,
                outcome="timed_out",
                generation=node.effective,
                detail=node.last_failure,
            )
        except asyncio.CancelledError:
            if not pending.cancelled():
                raise
            return NodeAnswer(
                node_id=node_id,
                outcome="not_connected",
                generation=node.effective,
                detail="the connection was lost before it answered",
            )
        return NodeAnswer(
            node_id=node_id,
            outcome="acknowledged" if answer.is_acknowledged else "refused",
            generation=node.effective,
            detail=None if answer.is_acknowledged else f"{answer.code}: {answer.reason}",
        )


def _view(node: _Node) -> NodeView:
    session = node.session
    return NodeView(
        node_id=node.node_id,
        state="disconnected" if session is None else "connected" if node.takes_runs else "joining",
        session=session.epoch if session else None,
        version=session.node_version if session else None,
        desired=node.desired,
        sent=node.sent,
        acknowledged=node.acknowledged,
        effective=node.effective,
        last_failure=node.last_failure,
        active_runs=node.report_runs,
        draining=node.draining,
    )
