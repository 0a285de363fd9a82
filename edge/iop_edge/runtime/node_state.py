"""What the edge knows of one node: its session, its config facts, and what it last reported.

Desired, sent, acknowledged and effective generation are four facts and never one (REF-9). Plain
data: what changes it, and when, is the hub's and the push's to decide.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from iop.runtime_pb2 import NodeConfigAnswer, NodeConfigPayload
from iop_edge.config.effective import Health
from iop_edge.runtime.line_quota import LineQuota
from iop_edge.runtime.node_session import NodeSession
from iop_shared.ids import Generation, NodeId, ProviderId


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
    dropped_frames: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Frames of its sessions that were ignored since the edge started, by reason."""


class NodeState:
    """The edge's knowledge of one configured node."""

    __slots__ = (
        "acknowledged",
        "asked",
        "desired",
        "draining",
        "dropped",
        "effective",
        "last_failure",
        "lowered",
        "node_id",
        "payload",
        "pending",
        "quota",
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
        self.asked: set[Generation] = set()
        """Sent in this session and not answered yet."""
        self.acknowledged: Generation | None = None
        self.effective: Generation | None = None
        self.last_failure: str | None = None
        self.session: NodeSession | None = None
        self.takes_runs = False
        self.refused: Generation | None = None
        self.pending: dict[Generation, asyncio.Future[NodeConfigAnswer]] = {}
        self.lowered: dict[ProviderId, Health] = {}
        self.report_runs = 0
        self.draining: tuple[tuple[Generation, int, int], ...] = ()
        self.dropped: Counter[str] = Counter()
        self.quota = LineQuota()


def view_of(node: NodeState) -> NodeView:
    """The node as it stands at this moment."""
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
        # A node tells its count now and then; what was opened on it since is known here.
        active_runs=max(node.report_runs, session.open_attempts if session else 0),
        draining=node.draining,
        dropped_frames=dict(node.dropped),
    )
