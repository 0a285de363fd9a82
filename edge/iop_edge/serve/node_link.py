"""The gRPC end that nodes dial: tokens, the first frame, and one stream for each session.

It knows sockets and statuses and nothing else: who may join is the hub's decision, what frames
mean is the session's.

  wrong or unknown token      UNAUTHENTICATED, one status for both (NODE-9)
  another node's certificate  UNAUTHENTICATED, told to a holder of the token alone
  no hello in time, or none   INVALID_ARGUMENT
  protocol ranges do not meet FAILED_PRECONDITION
  its config fits no message  FAILED_PRECONDITION
  another process is alive    ALREADY_EXISTS
  the edge is draining        UNAVAILABLE
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio

from iop.runtime_pb2 import DESCRIPTOR, Hello, NodeBatch
from iop.runtime_pb2_grpc import NodeLinkServicer, add_NodeLinkServicer_to_server
from iop_edge.runtime.node_claims import MAX_ID_CHARS
from iop_edge.runtime.node_hub import JoinRefused, NodeHub
from iop_edge.runtime.node_session import NodeSession
from iop_edge.serve.peer_certificate import names_node
from iop_shared import logs
from iop_shared.ids import NodeId
from iop_shared.session_end import PARTING_TIMEOUT_S
from iop_shared.wire import AUTHORIZATION

SERVICE_NAME = DESCRIPTOR.services_by_name["NodeLink"].full_name

HELLO_TIMEOUT_S = 10.0

_log = logs.get("node_link")

_Context = grpc.aio.ServicerContext[Any, Any]


class NodeTokens:
    """Which node a token belongs to, by the sha256 of its UTF-8 bytes.

    A digest is looked up and then compared in constant time: how long the look-up takes tells
    something about digests alone, which nobody can choose bit by bit.
    """

    def __init__(self, digests: Mapping[NodeId, bytes]) -> None:
        self._by_digest = {digest: (digest, node_id) for node_id, digest in digests.items()}

    def __repr__(self) -> str:
        return f"NodeTokens({len(self._by_digest)} nodes)"

    def owner(self, authorization: str | None) -> NodeId | None:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known, node_id = self._by_digest.get(digest, (bytes(len(digest)), None))
        return node_id if hmac.compare_digest(known, digest) else None


class NodeLink(NodeLinkServicer):
    """Serves `Session`. With `binds_certificates` the transport has verified a certificate of the
    peer, and it must be that of the node whose token the peer holds."""

    def __init__(
        self, hub: NodeHub, tokens: NodeTokens, *, binds_certificates: bool = False
    ) -> None:
        self._hub = hub
        self._tokens = tokens
        self._binds_certificates = binds_certificates
        self._refusals = 0
        self.joins_refused = 0
        """Holders of a valid token that were not let in, since the start."""
        self.is_draining = False

    def add_to(self, server: grpc.aio.Server) -> None:
        add_NodeLinkServicer_to_server(self, server)

    async def Session(  # type: ignore[override]  # grpc takes a coroutine that writes as well
        self, request_iterator: AsyncIterator[NodeBatch], context: _Context
    ) -> None:
        node_id = await self._authenticated(context)
        hello = await self._hello(request_iterator, context)
        try:
            session = await self._hub.join(node_id, hello)
        except JoinRefused as refusal:
            self.joins_refused += 1
            if _is_telling(self.joins_refused):
                _log.warning(
                    "node_join_refused",
                    node_id=node_id,
                    code=refusal.code,
                    refusals=self.joins_refused,
                )
            status = (
                grpc.StatusCode.ALREADY_EXISTS
                if refusal.code == "already_connected"
                else grpc.StatusCode.FAILED_PRECONDITION
            )
            await context.abort(status, f"{refusal.code}: {refusal}")
        reader = asyncio.create_task(_read(session, request_iterator))
        writer = asyncio.create_task(_write(session, context))
        try:
            # Not the writer alone: a peer that takes nothing would keep it, and all that it holds.
            await asyncio.wait((session.closed,))
            # What was said last is still written, to a peer that takes it.
            await asyncio.wait((writer,), timeout=PARTING_TIMEOUT_S)
        finally:
            session.close("the stream ended")
            reader.cancel()
            writer.cancel()
            await asyncio.wait((reader, writer))
        if session.close_reason and session.close_reason.startswith("protocol_error"):
            await context.abort(grpc.StatusCode.INTERNAL, session.close_reason)

    async def _authenticated(self, context: _Context) -> NodeId:
        if self.is_draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining: the edge is stopping")
        metadata = dict(context.invocation_metadata() or ())
        presented = metadata.get(AUTHORIZATION)
        node_id = self._tokens.owner(presented if isinstance(presented, str) else None)
        if node_id is None:
            self._count_refusal(context)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the token is not one of this edge's nodes"
            )
            raise AssertionError("abort does not return")
        if self._binds_certificates and not names_node(context.auth_context(), node_id):
            self._count_refusal(context)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"the certificate is not that of node {node_id}"
            )
        return node_id

    async def _hello(self, request_iterator: AsyncIterator[NodeBatch], context: _Context) -> Hello:
        try:
            first = await asyncio.wait_for(anext(request_iterator), HELLO_TIMEOUT_S)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no hello arrived")
            raise AssertionError("abort does not return") from None
        if len(first.frames) != 1 or not first.frames[0].HasField("hello"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first frame of a node must be its hello"
            )
        hello = first.frames[0].hello
        if not hello.instance_id:
            # Without it one process could not be told from another, and each would take the place.
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "a hello must name its process (instance_id)"
            )
        if len(hello.instance_id) > MAX_ID_CHARS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"an instance_id has at most {MAX_ID_CHARS} characters",
            )
        return hello

    def _count_refusal(self, context: _Context) -> None:
        self._refusals += 1
        if _is_telling(self._refusals):
            _log.warning("node_unauthenticated", peer=context.peer(), refusals=self._refusals)


def _is_telling(count: int) -> bool:
    """The 1st, 2nd, 4th, 8th …: one that retries for days must not fill the log."""
    return count & (count - 1) == 0


async def _write(session: NodeSession, context: _Context) -> None:
    try:
        while (batch := await session.next_batch()) is not None:
            await context.write(batch)
    except Exception as error:
        session.close(f"the connection broke: {type(error).__name__}")


async def _read(session: NodeSession, batches: AsyncIterator[NodeBatch]) -> None:
    try:
        async for batch in batches:
            session.receive(batch)
    except Exception as error:
        session.close(f"the connection broke: {type(error).__name__}")
    else:
        session.close("closed by the node")
