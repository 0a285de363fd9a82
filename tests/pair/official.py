"""Options of gRPC's own library where it plays one end of the wire."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

SERVER_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)

CHANNEL_OPTIONS = (
    # A node of ours sends nothing over the limit; one that is played may.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
