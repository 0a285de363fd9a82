"""What a node says, held to what a node may say.

A node holds a valid token and may be broken or hostile all the same. Its words reach callers, logs
and status, so they are of bounded length, and its faults are those that only a node can know: what
the edge judges itself (tokens, queue, models) no node can claim. Nothing here ends a session.
"""

from __future__ import annotations

from iop.runtime_pb2 import Fault as FaultFrame
from iop_shared.errors import Code, Fault

MAX_ID_CHARS = 128
"""Of the number of a process, and of a version."""

MAX_CODE_CHARS = 64
MAX_REASON_CHARS = 500

MAX_DRAINING = 64
"""Old registries of one node that status shows."""

_CLAIMABLE = {
    code.value: code
    for code in (
        Code.INVALID_VALUE,
        Code.UNSUPPORTED_BY_MODEL,
        Code.UNSUPPORTED_FIELD,
        Code.NO_PROVIDER,
        Code.DRAINING,
        Code.UPSTREAM_REFUSED,
        Code.UPSTREAM_CLOSED,
        Code.UPSTREAM_INVALID,
        Code.UPSTREAM_CONNECT_TIMEOUT,
        Code.UPSTREAM_FIRST_BYTE_TIMEOUT,
        Code.UPSTREAM_IDLE_TIMEOUT,
        Code.UPSTREAM_TOTAL_TIMEOUT,
        Code.DRAIN_DEADLINE,
        Code.INTERNAL,
    )
}


def cut(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a sign that there were more."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def refusal_line(code: str, reason: str) -> str:
    """A node's refusal in one line."""
    return f"{cut(code, MAX_CODE_CHARS)}: {cut(reason, MAX_REASON_CHARS)}"


def fault_of(told: FaultFrame) -> Fault:
    """A node's fault as the edge's own. A code that this edge does not know, or that is not a
    node's to claim, is `internal`."""
    code = _CLAIMABLE.get(told.code)
    if code is None:
        return Fault(Code.INTERNAL, f"the node reported {cut(told.code, MAX_CODE_CHARS)!r}")
    return Fault(
        code,
        cut(told.message, MAX_REASON_CHARS),
        param=cut(told.param, MAX_ID_CHARS) or None,
    )
