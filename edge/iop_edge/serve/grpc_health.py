"""The gRPC health service: SERVING or NOT_SERVING, and nothing else, to whoever asks (OPS-3).

Load balancers and orchestrators ask without a token, so the answer is bounded in what it tells and
in what it costs: no name of a node or a model, and a limited number of watchers. The library's own
servicer is not used because it writes to a watcher under the lock that a change of status needs:
one watcher that does not read would then hold up a drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # no stubs

SERVICE_NAME = "grpc.health.v1.Health"

WHOLE_SERVER = ""
"""The name by which the protocol asks for the server as a whole."""

MAX_WATCHERS = 64

_Context = grpc.aio.ServicerContext[Any, Any]


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # no stubs
    """Serves `Check` and `Watch` for the whole server and for the services it is told of."""

    def __init__(self, services: Iterable[str]) -> None:
        self._known = frozenset((WHOLE_SERVER, *services))
        self._is_serving = False
        self._changed: set[asyncio.Event] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def set_serving(self, is_serving: bool) -> None:
        """What every answer says from now on; every watcher hears it. NOT_SERVING at first."""
        self._is_serving = is_serving
        for changed in self._changed:
            changed.set()

    async def Check(self, request: Any, context: _Context) -> Any:
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return self._answer(request.service)

    async def Watch(self, request: Any, context: _Context) -> AsyncIterator[Any]:
        if len(self._changed) >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watch already; use Check"
            )
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while True:
                yield self._answer(request.service)
                await changed.wait()
                changed.clear()
        finally:
            self._changed.discard(changed)

    def _answer(self, service: str) -> Any:
        status = health_pb2.HealthCheckResponse
        if service not in self._known:
            return status(status=status.SERVICE_UNKNOWN)
        return status(status=status.SERVING if self._is_serving else status.NOT_SERVING)
