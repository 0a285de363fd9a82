"""Between the session's frames and the messages of proto/iop/runtime.proto.

One place builds the batches, names the metadata, and sets the gRPC options of both ends, so that
limits and keepalive cannot disagree. It decides nothing about a session.
"""

from __future__ import annotations

from collections.abc import Iterable

from iop.runtime_pb2 import EdgeBatch, EdgeFrame, NodeBatch, NodeFrame
from iop_shared.session.outbox import Chunk

AUTHORIZATION = "authorization"
"""Metadata key of the node token: `Bearer <token>`."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_LIMITS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_LIMITS,
    # Otherwise a second edge binds the same port silently and takes half of the nodes.
    ("grpc.so_reuseport", 0),
    # Otherwise the client's own pings are answered with GOAWAY.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_LIMITS,
    # The node's own backoff paces attempts; the channel must not add a longer one of its own.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Two sessions of one process are two connections, as they would be from two machines.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


def node_batch(session_epoch: int, items: Iterable[NodeFrame | Chunk]) -> NodeBatch:
    """A batch from a node: response bodies and whatever else waits, in the order given."""
    batch = NodeBatch(session_epoch=session_epoch)
    frames = batch.frames
    for item in items:
        if isinstance(item, Chunk):
            chunk = frames.add().response_chunk
            chunk.attempt_id = item.attempt_id
            chunk.content = item.content
            if item.is_last:
                chunk.last = True
        else:
            frames.append(item)
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
