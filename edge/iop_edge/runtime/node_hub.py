"""All nodes of the edge: who is connected, and which configuration each one runs.

The hub decides who may join (NODE-9), keeps the four config facts of each node apart (desired,
sent, acknowledged, effective: REF-9), and tells the dispatcher when a node's providers become
candidates and when they cease to be (POOL-1). It opens no socket and knows no run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol, cast

from iop.runtime_pb2 import (
    EdgeFrame,
    Hello,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeReport,
    Welcome,
)
from iop_edge.config.effective import Health
from iop_edge.runtime.attempt import Attempt
from iop_edge.runtime.node_claims import (
    MAX_CODE_CHARS,
    MAX_DRAINING,
    MAX_REASON_CHARS,
    cut,
    refusal_line,
)
from iop_edge.runtime.node_push import MAX_PAYLOAD_BYTES, NodeAnswer, Outcome, push, too_large
from iop_edge.runtime.node_session import NodeSession
from iop_edge.runtime.node_state import NodeState, NodeView, view_of
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.ids import Generation, NodeId, ProviderId, Resource
from iop_shared.session.flow import INITIAL_WINDOW_BYTES, WindowBudget
from iop_shared.session.handshake import SPOKEN, Protocols, negotiate
from iop_shared.session.liveness import HEARTBEAT_INTERVAL_S, SILENCE_LIMIT_S
from iop_shared.wire import MAX_MESSAGE_BYTES

__all__ = ["JoinRefused", "NodeAnswer", "NodeHub", "NodeView", "Outcome", "PoolEvents"]

PROBE_TIMEOUT_S = 2.0
"""How long a session that another process wants to replace may take to show life (NODE-9)."""

_LOWERED = frozenset({"degraded", "unavailable"})

_log = logs.get("node_hub")


class JoinRefused(Exception):
    """The hello is not accepted; `code` is stable, the message is for the node's operator."""

    def __init__(
        self,
        code: Literal["already_connected", "protocol_mismatch", "payload_too_large"],
        message: str,
    ) -> None:
        super().__init__(message)
        self.code = code


class PoolEvents(Protocol):
    """What the hub tells the dispatcher."""

    def node_connected(self, node_id: NodeId) -> None: ...
    def node_lost(self, node_id: NodeId) -> None: ...
    def probed_health(self, resource: Resource, health: Health) -> None:
        """What the node found; forgotten when its session ends (NODE-10)."""
        ...


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
        self._nodes: dict[NodeId, NodeState] = {}
        self._last_epoch = 0

    # -- configuration -------------------------------------------------------------------------

    def set_desired(self, payloads: Mapping[NodeId, NodeConfigPayload]) -> None:
        """What each node shall run from now on. Each payload carries its own generation: the one
        in which it last changed (REF-8). A node that joins is sent this."""
        for node_id, payload in payloads.items():
            node = self._nodes.setdefault(node_id, NodeState(node_id))
            node.payload = payload
            node.desired = Generation(payload.generation)

    def connected(self) -> frozenset[NodeId]:
        """Nodes with an open session, whether or not they have acknowledged yet."""
        return frozenset(node.node_id for node in self._nodes.values() if node.session is not None)

    def push(
        self, payloads: Mapping[NodeId, NodeConfigPayload], timeout_s: float
    ) -> AsyncIterator[NodeAnswer]:
        """Send each payload to its node and give the answers as they come.

        A node without a session answers `not_connected`; it is sent its desired payload when it
        joins. A generation that a node refused is not sent to it again within the session.
        """
        return push(self._nodes, payloads, timeout_s)

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
        if node.payload is not None and (size := node.payload.ByteSize()) > MAX_PAYLOAD_BYTES:
            refusal = JoinRefused("payload_too_large", too_large(size))
            node.last_failure = f"{refusal.code}: {refusal}"
            raise refusal
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

    def open_attempt(self, node_id: NodeId, frame: EdgeFrame, body: bytes) -> Attempt:
        """Open an attempt on a node, by a frame that opens one.

        Raises Fault(node_lost) when it is not connected."""
        node = self._nodes.get(node_id)
        if node is None or node.session is None:
            raise Fault(Code.NODE_LOST, f"node {node_id} is not connected")
        return node.session.open(frame, body)

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
        return [view_of(node) for node in self._nodes.values()]

    # -- SessionEvents -------------------------------------------------------------------------

    def on_answer(self, session: NodeSession, answer: NodeConfigAnswer) -> None:
        node = self._nodes[session.node_id]
        if node.session is not session:
            session.dropped["late"] += 1
            return
        generation = Generation(answer.generation)
        if generation not in node.asked:
            # It answers what this session was never sent, or answers again.
            session.dropped["unasked"] += 1
            return
        # Nodes answer in order, so nothing older is answered after this: no fact goes back.
        node.asked = {asked for asked in node.asked if asked > generation}
        effective = generation if answer.is_acknowledged else answer.effective_generation
        node.effective = _known(effective, node.sent)
        if answer.is_acknowledged:
            node.acknowledged = generation
            if generation == node.desired:
                node.last_failure = None
            if not node.takes_runs and not session.is_leaving:
                node.takes_runs = True
                self._tell(node, "node_connected", generation=generation)
                self._pool.node_connected(node.node_id)
        else:
            node.refused = generation
            node.last_failure = refusal_line(answer.code, answer.reason)
            self._tell(
                node,
                "node_refused_config",
                is_warning=True,
                generation=generation,
                code=cut(answer.code, MAX_CODE_CHARS),
                reason=cut(answer.reason, MAX_REASON_CHARS),
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
            for entry in report.draining[:MAX_DRAINING]
        )
        self._hear_health(node, report)

    def _hear_health(self, node: NodeState, report: NodeReport) -> None:
        """A report names every provider that is worse than healthy; all others are healthy. Only
        what changed is told on: a report comes with every change of anything."""
        heard = {
            ProviderId(entry.provider_id): (cast(Health, entry.health), entry.reason)
            for entry in report.health
            if entry.health in _LOWERED
        }
        if heard and node.payload is not None:
            # What is not the node's own is none of its affair.
            own = {ProviderId(one.id) for one in node.payload.providers}
            heard = {provider_id: told for provider_id, told in heard.items() if provider_id in own}
        for provider_id in sorted(node.lowered.keys() - heard.keys()):
            self._tell(node, "provider_recovered", provider_id=provider_id)
            self._pool.probed_health(Resource(node.node_id, provider_id), "healthy")
        for provider_id, (health, reason) in heard.items():
            if node.lowered.get(provider_id) != health:
                self._tell(
                    node,
                    "provider_lowered",
                    is_warning=True,
                    provider_id=provider_id,
                    health=health,
                    reason=cut(reason, MAX_CODE_CHARS),
                )
                self._pool.probed_health(Resource(node.node_id, provider_id), health)
        node.lowered = {provider_id: health for provider_id, (health, _) in heard.items()}

    def on_leaving(self, session: NodeSession, reason: str) -> None:
        node = self._nodes[session.node_id]
        if node.session is session and node.takes_runs:
            node.takes_runs = False
            self._tell(node, "node_leaving", reason=reason)
            self._pool.node_lost(node.node_id)

    def on_closed(self, session: NodeSession, reason: str) -> None:
        node = self._nodes[session.node_id]
        if node.session is not session:
            return
        node.session = None
        node.sent = None
        node.asked.clear()
        node.refused = None
        node.draining = ()
        node.report_runs = 0
        for pending in node.pending.values():
            pending.cancel()
        node.pending.clear()
        self._tell(node, "node_lost", is_warning=True, session=session.epoch, reason=reason)
        if node.takes_runs or node.lowered:
            node.takes_runs = False
            node.lowered = {}
            self._pool.node_lost(node.node_id)

    # ------------------------------------------------------------------------------------------

    def _admit(self, node: NodeState, hello: Hello, protocol: int) -> NodeSession:
        self._last_epoch += 1
        session = NodeSession(node.node_id, self._last_epoch, hello, self, self._budget)
        session.dropped = node.dropped  # counted for the node, over all its sessions
        node.session = session
        node.sent = node.desired
        node.asked = set() if node.desired is None else {node.desired}
        node.acknowledged = None
        # What it ran under another edge process says nothing about this one's generations.
        node.effective = (
            _known(hello.effective_generation, node.desired)
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
        self._tell(
            node,
            "node_joining",
            session=session.epoch,
            node_version=session.node_version,
            generation=node.sent,
        )
        return session

    @staticmethod
    def _tell(node: NodeState, event: str, *, is_warning: bool = False, **facts: object) -> None:
        """Log what a node did. One that does it over and over must not fill the log."""
        if not node.quota.allows(asyncio.get_running_loop().time()):
            return
        if node.quota.suppressed:
            facts["suppressed_lines"] = node.quota.take_suppressed()
        log = _log.warning if is_warning else _log.info
        log(event, node_id=node.node_id, **facts)


def _known(claimed: int, newest: Generation | None) -> Generation | None:
    """A generation that a node says it runs; None where this edge process never made it."""
    return Generation(claimed) if 0 < claimed <= (newest or 0) else None
