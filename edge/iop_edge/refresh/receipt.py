"""The result of a refresh, as the admin surface, the history and the command line give it.

Every collection is present in every outcome and ordered (REF-2). Field names and shapes are
those of the interface; nothing in here holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field, structs

from iop_edge.config.reload_class import Reload
from iop_edge.refresh.diff import Change
from iop_edge.refresh.plan import Plan
from iop_shared.ids import Generation, ModelId, NodeId, ProviderId

Mode = Literal["dry_run", "apply"]
Status = Literal["applied", "restart_required", "rejected"]
Origin = Literal["admin", "sighup"]
Outcome = Literal[
    "acknowledged", "refused", "timed_out", "not_connected", "unchanged", "would_send"
]


class GenerationStep(Struct, frozen=True, kw_only=True):
    """The edge's generation before and after; equal where nothing was applied."""

    before: Generation
    after: Generation


class ChangeReport(Struct, frozen=True, kw_only=True):
    path: str
    reload: Literal["live", "restart"] = field(name="class")
    old: Any
    new: Any
    reason: str | None


class NodeReport(Struct, frozen=True, kw_only=True):
    """What became of one node. `generation` is what it runs by, as far as the edge knows."""

    node_id: NodeId
    outcome: Outcome
    generation: Generation | None = None
    detail: str | None = None


class ErrorReport(Struct, frozen=True, kw_only=True):
    code: str
    path: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    message: str


class RefreshResult(Struct, frozen=True, kw_only=True):
    """One refresh, from its request to its last answer (the receipt).

    `omitted` counts errors beyond those listed (CFG-4). `mode` is None where the request named
    none that there is.
    """

    status: Status
    mode: Mode | None
    generation: GenerationStep
    candidate_digest: str | None = None
    duration_ms: float = 0.0
    changes: tuple[ChangeReport, ...] = ()
    live_paths: tuple[str, ...] = ()
    restart_required_paths: tuple[str, ...] = ()
    changed_nodes: tuple[NodeId, ...] = ()
    changed_providers: tuple[ProviderId, ...] = ()
    changed_models: tuple[ModelId, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    errors: tuple[ErrorReport, ...] = ()
    omitted: int = 0


class RefreshRecord(Struct, frozen=True, kw_only=True):
    """One refresh in the history."""

    at: datetime
    origin: Origin
    result: RefreshResult


class LastError(Struct, frozen=True, kw_only=True):
    """Why the latest apply was rejected."""

    at: datetime
    candidate_digest: str | None
    errors: tuple[ErrorReport, ...]
    omitted: int


def drafted(plan: Plan, *, mode: Mode, running: Generation, candidate_digest: str) -> RefreshResult:
    """The result of a candidate that could be planned, before anything is done about it.

    With thousands of changes this takes a while, and can be made ahead and elsewhere.
    """
    return RefreshResult(
        status=plan.status,
        mode=mode,
        generation=GenerationStep(before=running, after=running),
        candidate_digest=candidate_digest,
        changes=tuple(map(_report, plan.changes)),
        live_paths=plan.live_paths,
        restart_required_paths=plan.restart_paths,
        changed_nodes=plan.changed_nodes,
        changed_providers=plan.changed_providers,
        changed_models=plan.changed_models,
    )


def receipt(
    draft: RefreshResult,
    *,
    after: Generation,
    nodes: Iterable[NodeReport],
    errors: Iterable[ErrorReport] = (),
) -> RefreshResult:
    """The draft with what came of it: applied, restart_required or dry run.

    `errors` are of what came after the swap, which an apply does not take back.
    """
    return structs.replace(
        draft,
        generation=GenerationStep(before=draft.generation.before, after=after),
        nodes=tuple(sorted(nodes, key=lambda node: node.node_id)),
        errors=tuple(sorted(errors, key=_place)),
    )


def rejection(
    errors: Iterable[ErrorReport],
    *,
    mode: Mode | None,
    running: Generation,
    candidate_digest: str | None = None,
    omitted: int = 0,
) -> RefreshResult:
    """The result of a refresh that changed nothing because of these errors (REF-5)."""
    return RefreshResult(
        status="rejected",
        mode=mode,
        generation=GenerationStep(before=running, after=running),
        candidate_digest=candidate_digest,
        errors=tuple(sorted(errors, key=_place)),
        omitted=omitted,
    )


def _report(change: Change) -> ChangeReport:
    return ChangeReport(
        path=str(change.path),
        reload="live" if change.reload is Reload.LIVE else "restart",
        old=change.old,
        new=change.new,
        reason=change.reason,
    )


def _place(error: ErrorReport) -> tuple[str, str, int, int, str]:
    return (error.path, error.file or "", error.line or 0, error.column or 0, error.code)
