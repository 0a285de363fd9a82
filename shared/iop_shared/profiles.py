"""Protocol profiles: how an upstream's API is spoken (PROF-1…8).

Pure. The edge resolves a profile once, at load; the resolved snapshot travels to the node inside
the adapter's config, and nothing in it is looked up again. What stands here is what both ends must
agree on: the closed vocabularies, how a URL is joined, and what a resolved profile answers. Which
profiles there are is the edge's own business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

from msgspec import Struct

from iop_shared.ids import ModelId, Target

Driver = Literal["openai_chat", "openai_responses", "anthropic_messages"]
Operation = Literal["models", "chat_completions", "responses", "messages", "count_tokens"]
Capability = Literal[
    "models", "chat", "messages", "responses", "streaming", "tool_calling", "count_tokens"
]

DRIVERS: tuple[Driver, ...] = get_args(Driver)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)

OPERATIONS_BY_DRIVER: Mapping[Driver, frozenset[Operation]] = MappingProxyType(
    {
        "openai_chat": frozenset({"models", "chat_completions", "responses", "count_tokens"}),
        "anthropic_messages": frozenset({"models", "messages", "count_tokens"}),
        "openai_responses": frozenset({"models", "responses", "count_tokens"}),
    }
)
"""The closed sets of PROF-3."""

OPERATION_OF_CAPABILITY: Mapping[Capability, Operation] = MappingProxyType(
    {
        "models": "models",
        "chat": "chat_completions",
        "messages": "messages",
        "responses": "responses",
        "count_tokens": "count_tokens",
    }
)
"""The operation that a capability cannot do without (PROF-2). `streaming` and `tool_calling` are
properties of the others and need none of their own."""

DEFAULT_PATHS: Mapping[Operation, str] = MappingProxyType(
    {
        "models": "/v1/models",
        "chat_completions": "/v1/chat/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
        "count_tokens": "/v1/messages/count_tokens",
    }
)
"""Operation paths as inputs (PROF-5); a profile names its own where they differ."""

_ABSOLUTE = re.compile(r"https?://", re.IGNORECASE)


def is_absolute_url(path_or_url: str) -> bool:
    """Whether an operation is a whole URL, which no base URL is joined to."""
    return _ABSOLUTE.match(path_or_url) is not None


def join_url(base_url: str, path_or_url: str) -> str:
    """The complete upstream URL of an operation (PROF-5).

    An absolute URL is kept as it is. A path is joined exactly once; where it brings its own `/v1`,
    a `/v1` that the base ends in is dropped first, so that `http://h/api/v1/` and `/v1/models`
    give `http://h/api/v1/models`. Any other path of the base stays a prefix.
    """
    if is_absolute_url(path_or_url):
        return path_or_url
    base = base_url.rstrip("/")
    path = "/" + path_or_url.lstrip("/")
    # A host may be called `v1`.
    if "/v1/" in f"{path}/" and not base.endswith("://v1"):
        base = base.removesuffix("/v1").rstrip("/")
    return base + path


class ProtocolProfile(Struct, frozen=True, kw_only=True, gc=False):
    """A resolved profile: an immutable runtime snapshot (PROF-8).

    `operation_urls` holds complete upstream URLs.
    """

    id: str
    driver: Driver
    operation_urls: Mapping[Operation, str]
    capabilities: frozenset[Capability]
    model_mapping: Mapping[str, str]
    extensions: Mapping[str, Any]

    def has_capability(self, capability: Capability) -> bool:
        """Whether the upstream can do this (PROF-4)."""
        return capability in self.capabilities

    def operation_url(self, operation: Operation) -> str | None:
        """The complete upstream URL, or None where the upstream has no such operation."""
        return self.operation_urls.get(operation)

    def map_model(self, model: ModelId) -> Target:
        """The served target of an external model id; unchanged where nothing maps it (PROF-6)."""
        return Target(self.model_mapping.get(model, model))
