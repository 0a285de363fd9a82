"""The session between an edge and a node, without a socket, a clock or a loop.

Both ends run the same parts, so this room never knows which end it is on:

- `handshake`: which frames are legal when, and which protocol both will speak.
- `outbox`: what waits to be written, in which order, and how much of it makes one batch.
- `flow`: credit windows; who may send how many bytes of one attempt.
- `liveness`: when to send a heartbeat, and when a silent peer is lost.

The shells (a gRPC stream on either side) feed frames and clock values in, and write what `outbox`
gives them.
"""
