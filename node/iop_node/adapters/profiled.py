"""What every profile-driven kind shares: a client, resolved operations, the tunnel, the probe.

Passthrough relays bytes: the edge has rendered the body for this upstream, and reads the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from iop.runtime_pb2 import ProtocolProfile
from iop_node.adapters.base import HeaderPairs, Probe, Responder, RunCall, TunnelCall
from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.http_headers import caller_headers
from iop_node.adapters.upstream import UpstreamClient
from iop_node.adapters.upstream_spec import ProbeSpec, UpstreamSpec
from iop_node.adapters.upstream_url import operation_urls
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey


class ProfiledAdapter:
    """An adapter that a resolved profile describes (PROF-8).

    Raises PayloadRefused on construction for operation URLs that a node does not dial.
    """

    def __init__(self, key: str, profile: ProtocolProfile, upstream: UpstreamSpec) -> None:
        self._key = AdapterKey(key)
        urls: Mapping[str, str] = operation_urls(
            profile.operation_urls, adapter=key, allow_link_local=upstream.allow_link_local
        )
        self._endpoints = {operation: Endpoint.of(url) for operation, url in urls.items()}
        self._client = UpstreamClient(upstream)

    @property
    def key(self) -> AdapterKey:
        return self._key

    async def start(self) -> None:
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()

    async def tunnel(self, call: TunnelCall, out: Responder) -> None:
        async with self._client.exchange(
            b"GET" if call.operation == "models" else b"POST",
            self._endpoint(call.operation),
            headers=self._passed_on(call),
            auth_override=call.auth_override,
            body=call.body,
            content_length=call.content_length,
            deadline_s=call.deadline_s,
            started=out.started,
        ) as answer:
            out.head(answer.status, caller_headers(answer.fields))
            while content := await answer.read():
                await out.chunk(content)

    async def run(self, call: RunCall, out: Responder) -> None:
        raise Fault(
            Code.UNSUPPORTED_BY_MODEL, f"adapter {self._key} relays requests and translates none"
        )

    @property
    def probe_spec(self) -> ProbeSpec | None:
        return self._client.spec.probe

    async def probe(self) -> Probe:
        return await self._client.probe()

    def _passed_on(self, call: TunnelCall) -> HeaderPairs:
        return call.headers

    def _endpoint(self, operation: str) -> Endpoint:
        endpoint = self._endpoints.get(operation)
        if endpoint is None:
            raise Fault(
                Code.UNSUPPORTED_BY_MODEL, f"adapter {self._key} has no operation {operation}"
            )
        return endpoint
