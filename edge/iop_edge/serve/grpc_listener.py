"""The one gRPC listener: its address, its TLS, its services, and health and reflection by config.

It decides where and how is listened. What a service means is the service's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

from iop_edge.config.effective import Server
from iop_edge.serve.grpc_health import SERVICE_NAME as HEALTH
from iop_edge.serve.grpc_health import HealthService
from iop_edge.serve.grpc_reflection import SERVICE_NAMES as REFLECTION
from iop_edge.serve.grpc_reflection import ReflectionService
from iop_edge.serve.http import address as addresses
from iop_edge.serve.http.address import ListenError
from iop_edge.serve.http.listener import tls_context
from iop_shared.rpc.server import Method, RpcServer


class Service(Protocol):
    def methods(self) -> Mapping[str, Method]:
        """Its methods by their names."""
        ...


class GrpcListener:
    """Serves `services`, by their full names, on `server.listen`. Used as `async with`.

    Entering raises ListenError, which names the address or the TLS file, with nothing left
    listening. Leaving ends every call at once: whoever wants calls to end well drains before.
    """

    def __init__(self, config: Server, services: Mapping[str, Service]) -> None:
        self._config = config
        self._services = dict(services)
        self._health = HealthService(services) if config.grpc_health else None
        self._server: RpcServer | None = None
        self.address = ""
        """Where it listens, with the port that was picked. Empty before it does."""

    async def __aenter__(self) -> Self:
        services = dict(self._services)
        if self._health is not None:
            services[HEALTH] = self._health
        if self._config.grpc_reflection:
            reflection = ReflectionService(services)
            services |= dict.fromkeys(REFLECTION, reflection)
        methods = {
            f"/{name}/{method}": handled
            for name, service in services.items()
            for method, handled in service.methods().items()
        }
        tls = None if self._config.tls is None else tls_context(self._config.tls, speaks="h2")
        try:
            sockets = addresses.bind(self._config.listen)
        except ListenError as error:
            raise ListenError(error.address, f"{error.reason} (server.listen)") from None
        self._server = RpcServer(methods)
        await self._server.start(sockets, backlog=addresses.BACKLOG, tls=tls)
        self.address = addresses.bound_address(sockets[0])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._server is not None:
            await self._server.stop()
            addresses.remove_socket_file(self.address)

    def set_serving(self, is_serving: bool) -> None:
        """What health answers from now on. It is NOT_SERVING to begin with."""
        if self._health is not None:
            self._health.set_serving(is_serving)
