"""The kinds of adapter there are: one line each, and one file each beside this one.

The key is the name of the field in `AdapterConfig.kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from iop.runtime_pb2 import AdapterConfig
from iop_node.adapters import anthropic, ollama, openai_compat
from iop_node.adapters.base import Adapter
from iop_node.adapters.upstream_spec import UpstreamSpec

Build = Callable[[AdapterConfig, UpstreamSpec], Adapter]
"""Makes an adapter that is not started. Raises PayloadRefused; opens nothing."""

KINDS: Mapping[str, Build] = MappingProxyType(
    {
        "openai_compat": openai_compat.build,
        "anthropic": anthropic.build,
        "ollama": ollama.build,
    }
)
