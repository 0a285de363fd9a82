"""The `ollama` kind: Ollama's native API. The normalized path only (NODE-5).

Its OpenAI-compatible API is another upstream: the profile `ollama_openai` of `openai_compat`.
"""

from __future__ import annotations

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters.base import Adapter, Probe, Responder, RunCall, TunnelCall
from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.lines import Lines
from iop_node.adapters.normalized import execute_run
from iop_node.adapters.ollama_chat import ChatReader, chat_request
from iop_node.adapters.upstream import UpstreamClient
from iop_node.adapters.upstream_spec import ProbeSpec, UpstreamSpec
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey
from iop_shared.profiles import join_url


def build(config: AdapterConfig, upstream: UpstreamSpec) -> Adapter:
    return OllamaAdapter(config.key, config.ollama.context_size, upstream)


class OllamaAdapter:
    """`context_size` is sent as num_ctx with every run; 0 leaves it to the upstream."""

    def __init__(self, key: str, context_size: int, upstream: UpstreamSpec) -> None:
        self._key = AdapterKey(key)
        self._context_size = context_size
        self._client = UpstreamClient(upstream)
        self._chat = Endpoint.of(join_url(upstream.base_url, "/api/chat"))

    @property
    def key(self) -> AdapterKey:
        return self._key

    async def start(self) -> None:
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()

    async def tunnel(self, call: TunnelCall, out: Responder) -> None:
        raise Fault(
            Code.UNSUPPORTED_BY_MODEL,
            f"adapter {self._key} speaks Ollama's native API and relays no {call.operation}",
        )

    async def run(self, call: RunCall, out: Responder) -> None:
        body = chat_request(call.request, self._context_size)
        await execute_run(self._client, self._chat, body, call, out, Lines(), ChatReader())

    @property
    def probe_spec(self) -> ProbeSpec | None:
        return self._client.spec.probe

    async def probe(self) -> Probe:
        return await self._client.probe()
