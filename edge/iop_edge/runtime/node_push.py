"""Sending payloads to nodes that are connected, and what came of each (REF-8, REF-9).

It decides what is sent, what need not be, and how long an answer is waited for. It never knows why
a payload changed, nor what a refresh is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Literal

import msgspec

from iop.runtime_pb2 import NodeConfigPayload
from iop_edge.runtime.node_state import NodeState
from iop_shared.ids import Generation, NodeId
from iop_shared.wire import MAX_MESSAGE_BYTES

PUSH_WINDOW = 32
"""Pushes between two turns of the loop: a burst of a thousand would stop it for 60 to 100 ms."""

MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
"""A configuration is one message, and the frames that go with it need some room."""

Outcome = Literal["acknowledged", "refused", "timed_out", "not_connected"]


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one push. `generation` is the one that the node runs now, if known."""

    node_id: NodeId
    outcome: Outcome
    generation: Generation | None
    detail: str | None = None


async def push(
    nodes: Mapping[NodeId, NodeState],
    payloads: Mapping[NodeId, NodeConfigPayload],
    timeout_s: float,
) -> AsyncIterator[NodeAnswer]:
    """Send each payload to its node and give the answers as they come; see `NodeHub.push`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    waiting: list[asyncio.Task[NodeAnswer]] = []
    for position, (node_id, payload) in enumerate(payloads.items(), start=1):
        waiting.append(asyncio.create_task(_push_one(nodes[node_id], payload, deadline)))
        if position % PUSH_WINDOW == 0:
            await asyncio.sleep(0)
    try:
        for answer in asyncio.as_completed(waiting):
            yield await answer
    finally:
        for task in waiting:
            task.cancel()


def too_large(size: int) -> str:
    """What is said of a configuration that no message can hold."""
    return (
        f"the node's configuration takes {size} bytes, "
        f"and a message at most {MAX_PAYLOAD_BYTES}; spread its providers over more nodes"
    )


async def _push_one(node: NodeState, payload: NodeConfigPayload, deadline: float) -> NodeAnswer:
    node_id = node.node_id
    generation = Generation(payload.generation)
    if node.session is None:
        return NodeAnswer(node_id=node_id, outcome="not_connected", generation=node.effective)
    if node.acknowledged == generation:
        # It joined between the swap and the push, and was welcomed with this payload.
        return NodeAnswer(node_id=node_id, outcome="acknowledged", generation=node.effective)
    if (size := payload.ByteSize()) > MAX_PAYLOAD_BYTES and node.refused != generation:
        # A message over the limit would end the session, and every run on it.
        node.refused = generation
        node.last_failure = f"payload_too_large: {too_large(size)}"
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
        node.asked.add(generation)
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
