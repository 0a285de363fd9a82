"""The `openai_compat` kind: upstreams that speak OpenAI's protocol, and many that nearly do.

Passthrough relays bytes: the edge has rendered the body for this upstream, and reads the answer.
`vllm`, `sglang`, `llama_cpp` and `lm_studio` are profiles of it (NODE-5).
"""

from __future__ import annotations

from collections.abc import Mapping

from yarl import URL

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters.base import Adapter, Probe, Responder, RunCall, TunnelCall
from iop_node.adapters.upstream import UpstreamClient
from iop_node.adapters.upstream_spec import UpstreamSpec
from iop_node.adapters.upstream_url import operation_urls
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey


def build(config: AdapterConfig, upstream: UpstreamSpec) -> Adapter:
    """Raises PayloadRefused for operation URLs that a node does not dial."""
    urls = operation_urls(
        config.openai_compat.profile.operation_urls,
        adapter=config.key,
        allow_link_local=upstream.allow_link_local,
    )
    return OpenAICompatAdapter(AdapterKey(config.key), urls, upstream)


class ProfiledAdapter:
    """What every profile-driven kind shares: a client, resolved operations, the tunnel."""

    def __init__(self, key: AdapterKey, urls: Mapping[str, str], spec: UpstreamSpec) -> None:
        self._key = key
        self._urls = {operation: URL(url, encoded=True) for operation, url in urls.items()}
        self._client = UpstreamClient(spec)

    @property
    def key(self) -> AdapterKey:
        return self._key

    async def start(self) -> None:
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()

    async def tunnel(self, call: TunnelCall, out: Responder) -> None:
        async with self._client.exchange(
            "GET" if call.operation == "models" else "POST",
            self.url(call.operation),
            headers=call.headers,
            auth_override=call.auth_override,
            body=call.body,
            content_length=call.content_length,
            deadline_s=call.deadline_s,
            started=out.started,
        ) as answer:
            out.head(answer.status, answer.headers())
            while content := await answer.read():
                await out.chunk(content)

    @property
    def has_probe(self) -> bool:
        return self._client.spec.probe is not None

    async def probe(self) -> Probe:
        return await self._client.probe()

    def url(self, operation: str) -> URL:
        """The complete upstream URL (PROF-5). Raises Fault(unsupported_by_model)."""
        url = self._urls.get(operation)
        if url is None:
            raise Fault(
                Code.UNSUPPORTED_BY_MODEL,
                f"adapter {self._key} has no operation {operation}",
            )
        return url


class OpenAICompatAdapter(ProfiledAdapter):
    async def run(self, call: RunCall, out: Responder) -> None:
        raise Fault(Code.UNSUPPORTED_BY_MODEL, f"adapter {self._key} has no normalized path")
