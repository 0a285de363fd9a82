"""The gRPC health service: SERVING or NOT_SERVING, and nothing else, to whoever asks (OPS-3).

Load balancers and orchestrators ask without a token, so the answer is bounded in what it tells and
in what it costs: no name of a node or a model, and a limited number of watchers. The library's own
servicer is not used because it writes to a watcher under the lock that a change of status needs:
one watcher that does not read would then hold up a drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from iop.health_pb2 import HealthCheckRequest, HealthCheckResponse
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.server import Method, ServerCall

SERVICE_NAME = "grpc.health.v1.Health"

WHOLE_SERVER = ""
"""The name by which the protocol asks for the server as a whole."""

MAX_WATCHERS = 64
MAX_REQUEST_BYTES = 4096
REQUEST_TIMEOUT_S = 10.0


class HealthService:
    """Serves `Check` and `Watch` for the whole server and for the services it is told of."""

    def __init__(self, services: Iterable[str]) -> None:
        self._known = frozenset((WHOLE_SERVER, *services))
        self._is_serving = False
        self._changed: set[asyncio.Event] = set()

    def methods(self) -> Mapping[str, Method]:
        return {
            "Check": Method(self._check, MAX_REQUEST_BYTES),
            "Watch": Method(self._watch, MAX_REQUEST_BYTES),
        }

    def set_serving(self, is_serving: bool) -> None:
        """What every answer says from now on; every watcher hears it. NOT_SERVING at first."""
        self._is_serving = is_serving
        for changed in self._changed:
            changed.set()

    async def _check(self, call: ServerCall) -> None:
        service = await _asked(call)
        if service not in self._known:
            raise RpcError(StatusCode.NOT_FOUND, "no such service here")
        call.send(self._answer(service))

    async def _watch(self, call: ServerCall) -> None:
        service = await _asked(call)
        if len(self._changed) >= MAX_WATCHERS:
            raise RpcError(
                StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watch already; use Check"
            )
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while True:
                await call.write(self._answer(service))
                await changed.wait()
                changed.clear()
        finally:
            self._changed.discard(changed)

    def _answer(self, service: str) -> bytes:
        if service not in self._known:
            status = HealthCheckResponse.SERVING_STATUS_SERVICE_UNKNOWN
        elif self._is_serving:
            status = HealthCheckResponse.SERVING_STATUS_SERVING
        else:
            status = HealthCheckResponse.SERVING_STATUS_NOT_SERVING
        return HealthCheckResponse(status=status).SerializeToString()


async def _asked(call: ServerCall) -> str:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            message = await call.read()
    except TimeoutError:
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, "no request arrived") from None
    try:
        return HealthCheckRequest.FromString(message or b"").service
    except DecodeError:
        raise RpcError(StatusCode.INVALID_ARGUMENT, "no HealthCheckRequest") from None
