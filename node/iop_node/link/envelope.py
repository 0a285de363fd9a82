"""From the session's envelope to what the router executes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from google.protobuf.message import DecodeError

from iop.runtime_pb2 import AttemptOpen, RunRequest
from iop_node.adapters.base import Body, RunCall, TunnelCall
from iop_node.runtime.router import Attempt
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, ProviderId, Target
from iop_shared.profiles import Operation


async def attempt_of(opening: AttemptOpen, body: Body) -> Attempt:
    """The work that an opening frame asks for.

    The chunks behind it are a tunnel's body, which is passed on as it comes, or a serialized
    RunRequest, which is waited for. Raises Fault(internal) for a kind of work that this node does
    not know: an edge of a later version may have more.
    """
    auth_override = (
        (opening.auth_override.name, opening.auth_override.value)
        if opening.HasField("auth_override")
        else None
    )
    deadline_s = opening.deadline_ms / 1000 if opening.deadline_ms else None
    work: TunnelCall | RunCall
    match opening.WhichOneof("work"):
        case "tunnel":
            tunnel = opening.tunnel
            work = TunnelCall(
                adapter=AdapterKey(tunnel.adapter),
                target=Target(tunnel.target),
                operation=cast(Operation, tunnel.operation),
                headers=(
                    *[(header.name, header.value) for header in tunnel.headers],
                    *trace_headers(opening.traceparent),
                ),
                body=body,
                content_length=opening.chunked_body_bytes or None,
                is_stream=tunnel.is_stream,
                auth_override=auth_override,
                deadline_s=deadline_s,
            )
        case "run":
            if not isinstance(body, bytes):
                opening.run.CopyFrom(await _whole(body))
            work = RunCall(
                adapter=AdapterKey(opening.run.adapter),
                target=Target(opening.run.target),
                request=opening.run,
                headers=trace_headers(opening.traceparent),
                auth_override=auth_override,
                deadline_s=deadline_s,
            )
        case _:
            raise Fault(Code.INTERNAL, "the node does not know this kind of work")
    return Attempt(
        work=work,
        provider_id=ProviderId(opening.provider_id),
        generation=opening.generation,
        run_id=opening.run_id,
        number=opening.attempt,
    )


def trace_headers(traceparent: str) -> tuple[tuple[str, str], ...]:
    """The caller's trace goes on at the upstream (W3C Trace Context)."""
    return (("traceparent", traceparent),) if traceparent else ()


async def _whole(pieces: AsyncIterator[bytes]) -> RunRequest:
    try:
        return RunRequest.FromString(b"".join([piece async for piece in pieces]))
    except DecodeError:
        raise Fault(Code.INTERNAL, "the request that came in chunks is no run") from None
