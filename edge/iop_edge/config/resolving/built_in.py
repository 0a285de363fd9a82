"""The profiles that come with the edge (PROF-1).

None of them names a base URL: an adapter that forgets its own must be refused, and never send
prompts to somebody's public service instead. A profile of a local server offers what every version
of it has; an overlay adds what a newer one can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from iop_edge.config.effective import CatalogProfile, ProfileAuth
from iop_edge.config.frozen import FrozenMap
from iop_shared.profiles import DEFAULT_PATHS, Capability, Driver, Operation


def _built_in(
    driver: Driver,
    operations: tuple[Operation, ...],
    capabilities: tuple[Capability, ...],
    *,
    auth: tuple[str, str] = ("Authorization", "Bearer"),
    paths: Mapping[Operation, str] = MappingProxyType({}),
) -> CatalogProfile:
    return CatalogProfile(
        driver=driver,
        operations=FrozenMap({one: paths.get(one, DEFAULT_PATHS[one]) for one in operations}),
        auth=ProfileAuth(header=auth[0], scheme=auth[1]),
        capabilities=frozenset(capabilities),
        model_mapping=FrozenMap(),
        extensions=FrozenMap(),
    )


_LOCAL_CHAT = _built_in(
    "openai_chat",
    ("models", "chat_completions"),
    ("models", "chat", "streaming", "tool_calling"),
)
_CLAUDE_OPERATIONS: tuple[Operation, ...] = ("models", "messages", "count_tokens")
_CLAUDE_CAPABILITIES: tuple[Capability, ...] = (
    "models",
    "messages",
    "streaming",
    "tool_calling",
    "count_tokens",
)

BUILT_IN: Mapping[str, CatalogProfile] = MappingProxyType(
    {
        "openai": _built_in(
            "openai_chat",
            ("models", "chat_completions", "responses"),
            ("models", "chat", "responses", "streaming", "tool_calling"),
        ),
        "openai_responses": _built_in(
            "openai_responses",
            ("models", "responses"),
            ("models", "responses", "streaming", "tool_calling"),
        ),
        "anthropic": _built_in(
            "anthropic_messages",
            _CLAUDE_OPERATIONS,
            _CLAUDE_CAPABILITIES,
            auth=("x-api-key", ""),
        ),
        "ollama_openai": _LOCAL_CHAT,
        "vllm": _LOCAL_CHAT,
        "sglang": _LOCAL_CHAT,
        "llama_cpp": _LOCAL_CHAT,
        "lm_studio": _LOCAL_CHAT,
        "seulgivibe_openai": _built_in(
            "openai_chat",
            ("models", "chat_completions", "responses"),
            ("models", "chat", "responses", "streaming", "tool_calling"),
        ),
        "seulgivibe_claude": _built_in(
            "anthropic_messages",
            _CLAUDE_OPERATIONS,
            _CLAUDE_CAPABILITIES,
            paths={"models": "/anthropic/v1/models"},
        ),
    }
)
