"""Protocol profiles: how an upstream's API is spoken (PROF-1…8).

Pure. The edge resolves a profile once, at load; the resolved snapshot travels to the node inside
the adapter's config, and nothing in it is looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Driver = Literal["openai_chat", "openai_responses", "anthropic_messages"]
Operation = Literal["models", "chat_completions", "responses", "messages", "count_tokens"]
Capability = Literal[
    "models", "chat", "messages", "responses", "streaming", "tool_calling", "count_tokens"
]


class ProtocolProfile(Struct, frozen=True, kw_only=True):
    """A resolved profile: an immutable runtime snapshot (PROF-8).

    `operation_urls` holds complete upstream URLs where the base URL is known.
    """

    id: str
    driver: Driver
    operation_urls: Mapping[Operation, str]
    capabilities: frozenset[Capability]
    model_mapping: Mapping[str, str]
    extensions: Mapping[str, Any]
