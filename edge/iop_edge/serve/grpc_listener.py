"""The one gRPC listener: its address, its TLS, its services, and health and reflection by config.

It decides where and how is listened. What a service means is the service's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from iop_edge.config.effective import Server, Tls
from iop_edge.serve.grpc_health import SERVICE_NAME as HEALTH
from iop_edge.serve.grpc_health import HealthService
from iop_edge.serve.http.address import ListenError
from iop_edge.serve.http.listener import tls_context
from iop_shared.wire import SERVER_OPTIONS

AddToServer = Callable[[grpc.aio.Server], None]


class GrpcListener:
    """Serves `services` (full name to what adds it) on `server.listen`. Used as `async with`.

    Entering raises ListenError, which names the address or the TLS file, with nothing left
    listening. Leaving ends every call at once: whoever wants calls to end well drains before.
    """

    def __init__(self, config: Server, services: Mapping[str, AddToServer]) -> None:
        self._config = config
        self._services = dict(services)
        self._server: grpc.aio.Server | None = None
        self._health = HealthService(services) if config.grpc_health else None
        self.address = ""
        """Where it listens, with the port that was picked. Empty before it does."""

    async def __aenter__(self) -> Self:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        for add in self._services.values():
            add(server)
        names = list(self._services)
        if self._health is not None:
            self._health.add_to(server)
            names.append(HEALTH)
        if self._config.grpc_reflection:
            _reflect(names, server)
        self.address = self._bind(server)
        await server.start()
        self._server = server
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._server is not None:
            await self._server.stop(0)

    def set_serving(self, is_serving: bool) -> None:
        """What health answers from now on. It is NOT_SERVING to begin with."""
        if self._health is not None:
            self._health.set_serving(is_serving)

    def _bind(self, server: grpc.aio.Server) -> str:
        listen, tls = self._config.listen, self._config.tls
        credentials = None if tls is None else _credentials(tls)
        try:
            if credentials is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ListenError(
                listen, "the address is already in use, or is none of this machine (server.listen)"
            )
        return f"{listen.rpartition(':')[0]}:{port}"


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    # gRPC tells nothing about a file that it cannot use; this names it.
    tls_context(tls)
    pair = (Path(tls.key_file).read_bytes(), Path(tls.cert_file).read_bytes())
    if tls.client_ca_file is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials(
        [pair],
        root_certificates=Path(tls.client_ca_file).read_bytes(),
        require_client_auth=True,
    )


def _reflect(names: list[str], server: grpc.aio.Server) -> None:
    from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]  # no stubs

    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
