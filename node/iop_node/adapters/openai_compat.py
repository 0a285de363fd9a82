"""The `openai_compat` kind: upstreams that speak OpenAI's protocol, and many that nearly do.

`vllm`, `sglang`, `llama_cpp` and `lm_studio` are profiles of it (NODE-5).
"""

from __future__ import annotations

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters.base import Adapter, Responder, RunCall
from iop_node.adapters.lines import ServerSentEvents
from iop_node.adapters.normalized import execute_run
from iop_node.adapters.openai_chat import ChatReader, chat_request
from iop_node.adapters.profiled import ProfiledAdapter
from iop_node.adapters.upstream_spec import UpstreamSpec


def build(config: AdapterConfig, upstream: UpstreamSpec) -> Adapter:
    return OpenAICompatAdapter(config.key, config.openai_compat.profile, upstream)


class OpenAICompatAdapter(ProfiledAdapter):
    """Passthrough, and the normalized path by way of chat completions."""

    async def run(self, call: RunCall, out: Responder) -> None:
        endpoint = self._endpoint("chat_completions")
        body = chat_request(call.request)
        await execute_run(self._client, endpoint, body, call, out, ServerSentEvents(), ChatReader())
