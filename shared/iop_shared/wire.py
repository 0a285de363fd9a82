"""Between the session's frames and the messages of proto/iop/runtime.proto.

One place builds the batches, names the metadata, and sets the limit of both ends, so that they
cannot disagree. It decides nothing about a session.
"""

from __future__ import annotations

from collections.abc import Iterable

from iop.runtime_pb2 import (
    BodyChunk,
    EdgeBatch,
    EdgeFrame,
    NodeBatch,
    NodeFrame,
    ResponseHead,
)
from iop_shared.session.outbox import Chunk

AUTHORIZATION = "authorization"
"""Metadata key of the node token: `Bearer <token>`."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


def node_batch(session_epoch: int, items: Iterable[NodeFrame | Chunk]) -> NodeBatch:
    """A batch from a node: response bodies and whatever else waits, in the order given. Body that
    comes right behind its head goes into the head's frame."""
    batch = NodeBatch(session_epoch=session_epoch)
    frames = batch.frames
    head: ResponseHead | None = None
    for item in items:
        if isinstance(item, Chunk):
            part: ResponseHead | BodyChunk
            if head is not None and head.attempt_id == item.attempt_id:
                part = head
            else:
                part = frames.add().response_chunk
                part.attempt_id = item.attempt_id
            part.content = item.content
            if item.is_last:
                part.last = True
            head = None
        else:
            frames.append(item)
            head = frames[-1].response_head if item.HasField("response_head") else None
    return batch


def edge_batch(session_epoch: int, items: Iterable[EdgeFrame | Chunk]) -> EdgeBatch:
    """A batch from an edge: request bodies and whatever else waits, in the order given."""
    batch = EdgeBatch(session_epoch=session_epoch)
    frames = batch.frames
    for item in items:
        if isinstance(item, Chunk):
            chunk = frames.add().request_chunk
            chunk.attempt_id = item.attempt_id
            chunk.content = item.content
            if item.is_last:
                chunk.last = True
        else:
            frames.append(item)
    return batch
