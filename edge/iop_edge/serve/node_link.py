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
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from iop.runtime_pb2 import DESCRIPTOR, Hello, NodeBatch
from iop_edge.runtime.node_claims import MAX_ID_CHARS
from iop_edge.runtime.node_hub import JoinRefused, NodeHub
from iop_edge.serve.peer_certificate import names_node
from iop_shared import logs
from iop_shared.ids import NodeId
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.server import Method, ServerCall
from iop_shared.session_end import PARTING_TIMEOUT_S
from iop_shared.session_link import SessionLink
from iop_shared.wire import AUTHORIZATION, MAX_MESSAGE_BYTES

SERVICE_NAME = DESCRIPTOR.services_by_name["NodeLink"].full_name

HELLO_TIMEOUT_S = 10.0

_log = logs.get("node_link")


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


class NodeLink:
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

    def methods(self) -> Mapping[str, Method]:
        return {"Session": Method(self._session, MAX_MESSAGE_BYTES)}

    async def _session(self, call: ServerCall) -> None:
        node_id = self._authenticated(call)
        hello = await _hello(call)
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
                StatusCode.ALREADY_EXISTS
                if refusal.code == "already_connected"
                else StatusCode.FAILED_PRECONDITION
            )
            raise RpcError(status, f"{refusal.code}: {refusal}") from None
        try:
            link = SessionLink(session, call, NodeBatch.FromString, peer="node")
            await asyncio.wait((session.closed,))
            if not await link.said_all(PARTING_TIMEOUT_S):
                # Nothing is held any longer for a peer that does not take it.
                call.fail(RpcError(StatusCode.UNAVAILABLE, "the node takes nothing"))
        finally:
            session.close("the stream ended")
        if session.close_reason and session.close_reason.startswith("protocol_error"):
            raise RpcError(StatusCode.INTERNAL, session.close_reason)

    def _authenticated(self, call: ServerCall) -> NodeId:
        if self.is_draining:
            raise RpcError(StatusCode.UNAVAILABLE, "draining: the edge is stopping")
        node_id = self._tokens.owner(call.headers.get(AUTHORIZATION))
        if node_id is None:
            self._count_refusal(call)
            raise RpcError(StatusCode.UNAUTHENTICATED, "the token is not one of this edge's nodes")
        if self._binds_certificates and not names_node(call.certificate, node_id):
            self._count_refusal(call)
            raise RpcError(
                StatusCode.UNAUTHENTICATED, f"the certificate is not that of node {node_id}"
            )
        return node_id

    def _count_refusal(self, call: ServerCall) -> None:
        self._refusals += 1
        if _is_telling(self._refusals):
            _log.warning("node_unauthenticated", peer=call.peer, refusals=self._refusals)


async def _hello(call: ServerCall) -> Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            message = await call.read()
    except TimeoutError:
        message = None
    if message is None:
        raise RpcError(StatusCode.INVALID_ARGUMENT, "no hello arrived")
    try:
        first = NodeBatch.FromString(message)
    except DecodeError:
        raise RpcError(StatusCode.INTERNAL, "a message that is no batch") from None
    if len(first.frames) != 1 or not first.frames[0].HasField("hello"):
        raise RpcError(StatusCode.INVALID_ARGUMENT, "the first frame of a node must be its hello")
    hello = first.frames[0].hello
    if not hello.instance_id:
        # Without it one process could not be told from another, and each would take the place.
        raise RpcError(StatusCode.INVALID_ARGUMENT, "a hello must name its process (instance_id)")
    if len(hello.instance_id) > MAX_ID_CHARS:
        raise RpcError(
            StatusCode.INVALID_ARGUMENT,
            f"an instance_id has at most {MAX_ID_CHARS} characters",
        )
    return hello


def _is_telling(count: int) -> bool:
    """The 1st, 2nd, 4th, 8th …: one that retries for days must not fill the log."""
    return count & (count - 1) == 0
