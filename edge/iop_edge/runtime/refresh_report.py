"""What a refresh says of itself: its nodes, its errors, and its line in the log.

Words only; the transaction is `reloader`. Nothing here repeats an exception's message, which may
hold what must not be shown (SEC-1).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from traceback import extract_tb

from iop_edge.config.problems import Problem
from iop_edge.refresh.receipt import (
    ErrorReport,
    Mode,
    NodeReport,
    Origin,
    RefreshResult,
    rejection,
)
from iop_edge.runtime.node_hub import NodeView
from iop_shared import logs
from iop_shared.ids import Generation, NodeId

GENERATION_MISMATCH = "generation_mismatch"
CANDIDATE_MISMATCH = "candidate_mismatch"

LOGGED_ENTRIES = 50
"""Entries of one list in one log line; the receipt has them all."""

_log = logs.get("reloader")


def mismatch(code: str, mode: Mode, running: Generation, actual: object) -> RefreshResult:
    """The result where what the request is based on is not what there is (REF-10)."""
    message = f"the request is based on something else: it is {actual}; look again, then ask again"
    return rejection(
        [ErrorReport(code=code, message=message)],
        mode=mode,
        running=running,
        candidate_digest=actual if isinstance(actual, str) else None,
    )


def failed(error: Exception) -> ErrorReport:
    """What kept a candidate from being built, where it was not the candidate's own fault."""
    return ErrorReport(
        code="apply_failed",
        message=f"the candidate could not be built ({type(error).__name__}); nothing was changed",
    )


def interrupted(error: Exception) -> ErrorReport:
    """A failure after the swap, which an apply does not take back."""
    return ErrorReport(
        code="internal",
        message="the new generation is in effect, but a later step failed"
        f" ({type(error).__name__})",
    )


def unchanged(views: Iterable[NodeView], *, but: AbstractSet[NodeId]) -> list[NodeReport]:
    """Every node but these, as nothing is sent to it. One that lags behind says why."""
    return [
        NodeReport(
            node_id=view.node_id,
            outcome="unchanged",
            generation=view.effective,
            detail=view.last_failure if view.effective != view.desired else None,
        )
        for view in views
        if view.node_id not in but
    ]


def foreseen(views: Iterable[NodeView], pushed: AbstractSet[NodeId]) -> list[NodeReport]:
    """Every node, with what an apply would send to it."""
    nodes = list(views)
    would_send = [
        NodeReport(
            node_id=view.node_id,
            outcome="would_send",
            generation=view.effective,
            detail=(
                "not connected: sent when it connects" if view.state == "disconnected" else None
            ),
        )
        for view in nodes
        if view.node_id in pushed
    ]
    return [*unchanged(nodes, but=pushed), *would_send]


def unheard(
    views: Iterable[NodeView], pushed: AbstractSet[NodeId], reports: Iterable[NodeReport]
) -> list[NodeReport]:
    """Reports of the nodes whose outcome nobody waits for any more."""
    heard = {report.node_id for report in reports}
    return [
        NodeReport(
            node_id=view.node_id,
            outcome="timed_out",
            generation=view.effective,
            detail="the push was interrupted",
        )
        for view in views
        if view.node_id in pushed - heard
    ]


def facts(error: Exception) -> dict[str, str]:
    """Type and place. The message is left out: it may hold what must not be logged (SEC-1)."""
    frames = extract_tb(error.__traceback__)
    at = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
    return {"error": type(error).__name__, "at": at}


def problem_report(problem: Problem) -> ErrorReport:
    """A problem of the candidate as a refresh result has it."""
    return ErrorReport(
        code=problem.code,
        path=problem.path,
        file=problem.file,
        line=problem.line,
        column=problem.column,
        message=problem.message,
    )


def log_warnings(warnings: Iterable[Problem]) -> None:
    """What an operator should know of a candidate that runs."""
    for warning in warnings:
        _log.warning("config_warning", code=warning.code, path=warning.path, text=warning.message)


def log_receipt(result: RefreshResult, origin: Origin) -> None:
    """Counts, paths and codes; values stay out of the log."""
    log = _log.info if result.status == "applied" else _log.warning
    log(
        "refresh",
        origin=origin,
        mode=result.mode,
        status=result.status,
        generation_before=result.generation.before,
        generation_after=result.generation.after,
        candidate_digest=result.candidate_digest,
        duration_ms=result.duration_ms,
        live_paths=result.live_paths[:LOGGED_ENTRIES],
        restart_required_paths=result.restart_required_paths[:LOGGED_ENTRIES],
        changes=len(result.changes),
        nodes={
            report.node_id: report.outcome
            for report in result.nodes
            if report.outcome != "unchanged"
        },
        errors=[
            f"{error.file or ''}:{error.line or 0}:{error.column or 0}: {error.code}:"
            f" {error.path}: {error.message}"
            for error in result.errors[:LOGGED_ENTRIES]
        ],
    )
