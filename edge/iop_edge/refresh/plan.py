"""What a candidate would do to the edge: the one planner of dry run and apply (REF-1…4, REF-7).

A plan is a value. It is made from two configs and from which nodes' payloads differ; it knows no
node's state, and nobody's.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from iop_edge.config.reload_class import Reload
from iop_edge.refresh.diff import Change
from iop_shared.ids import ModelId, NodeId, ProviderId


class Plan(NamedTuple):
    """Everything an apply of the candidate would do. All collections are ordered.

    `nodes_to_push` are the nodes whose payload changes. It is empty where a restart is needed: a
    change set that holds any restart path applies nothing (REF-7).
    """

    status: Literal["applied", "restart_required"]
    changes: tuple[Change, ...]
    live_paths: tuple[str, ...]
    restart_paths: tuple[str, ...]
    changed_nodes: tuple[NodeId, ...]
    changed_providers: tuple[ProviderId, ...]
    changed_models: tuple[ModelId, ...]
    nodes_to_push: frozenset[NodeId]

    @property
    def needs_restart(self) -> bool:
        return self.status == "restart_required"


def plan(changes: tuple[Change, ...], payload_changes: AbstractSet[NodeId]) -> Plan:
    """The plan for these changes; `payload_changes` are the nodes whose payload they change."""
    restart_paths = _paths(changes, Reload.RESTART)
    return Plan(
        status="restart_required" if restart_paths else "applied",
        changes=changes,
        live_paths=_paths(changes, Reload.LIVE),
        restart_paths=restart_paths,
        changed_nodes=tuple(map(NodeId, _ids(changes, "nodes"))),
        changed_providers=tuple(map(ProviderId, _ids(changes, "nodes", "providers"))),
        changed_models=tuple(map(ModelId, _ids(changes, "models"))),
        nodes_to_push=frozenset() if restart_paths else frozenset(payload_changes),
    )


def _paths(changes: tuple[Change, ...], reload: Reload) -> tuple[str, ...]:
    return tuple(str(change.path) for change in changes if change.reload is reload)


def _ids(changes: tuple[Change, ...], *collections: str) -> list[str]:
    found = (change.path.entry_of(*collections) for change in changes)
    return sorted({entry_id for entry_id in found if entry_id is not None})
