"""The pool's one queue policy: the root's, or what legacy provider keys agree on (CFG-7, CFG-8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from iop_edge.config.document import (
    Document,
    NodeDocument,
    ProviderDocument,
    ProviderPoolDocument,
)
from iop_edge.config.effective import QueuePolicy
from iop_edge.config.resolving.context import Context
from iop_edge.config.yaml12.places import Steps

QueueSource = Literal["root", "providers", "default"]


class _Participant(NamedTuple):
    provider: ProviderDocument
    policy: QueuePolicy
    steps: Steps


class Queue(NamedTuple):
    policy: QueuePolicy
    source: QueueSource


def resolve_queue(document: Document, context: Context) -> Queue:
    """The effective policy. Legacy keys count only where the root key is absent altogether."""
    if document.provider_pool is not None:
        return Queue(_effective(document.provider_pool), "root")
    named = {provider for model in document.models or () for provider in model.providers or ()}
    participants = [one for one in _participants(document.nodes or ()) if one.provider.id in named]
    if not any(_is_legacy(one.provider) for one in participants):
        return Queue(QueuePolicy(), "default")
    first = participants[0]
    for other in participants[1:]:
        if other.policy != first.policy:
            context.report.error(
                "legacy_queue_conflict",
                "without `provider_pool` the queue policy comes from the providers, and "
                f"{_told(first)} and {_told(other)} differ; write one `provider_pool` at the root",
                other.steps,
            )
            break
    return Queue(first.policy, "providers")


def _effective(written: ProviderPoolDocument | ProviderDocument) -> QueuePolicy:
    default = QueuePolicy()
    timeout_ms = written.queue_timeout_ms
    return QueuePolicy(
        max_queue=written.max_queue or default.max_queue,
        queue_timeout_ms=default.queue_timeout_ms if timeout_ms is None else timeout_ms,
    )


def _participants(nodes: Sequence[NodeDocument]) -> Iterator[_Participant]:
    for number, node in enumerate(nodes):
        for position, provider in enumerate(node.providers or ()):
            if provider.enabled is not False:
                steps = ("nodes", number, "providers", position)
                yield _Participant(provider, _effective(provider), steps)


def _is_legacy(provider: ProviderDocument) -> bool:
    return provider.max_queue is not None or provider.queue_timeout_ms is not None


def _told(one: _Participant) -> str:
    policy = one.policy
    return f"`{one.provider.id}` ({policy.max_queue}, {policy.queue_timeout_ms} ms)"
