"""The `anthropic` kind: upstreams that speak the Messages API. Passthrough only (NODE-5)."""

from __future__ import annotations

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters.base import Adapter, HeaderPairs, TunnelCall
from iop_node.adapters.profiled import ProfiledAdapter
from iop_node.adapters.upstream_spec import UpstreamSpec

API_VERSION = "2023-06-01"
"""Sent where a caller named none: the API takes no request without one."""


def build(config: AdapterConfig, upstream: UpstreamSpec) -> Adapter:
    return AnthropicAdapter(config.key, config.anthropic.profile, upstream)


class AnthropicAdapter(ProfiledAdapter):
    def _passed_on(self, call: TunnelCall) -> HeaderPairs:
        if any(name.lower() == "anthropic-version" for name, _ in call.headers):
            return call.headers
        return (*call.headers, ("anthropic-version", API_VERSION))
