"""How a refresh looks while it runs and when it is done: first what changes, then who takes it.

The lines are the same on a terminal and elsewhere. A terminal also has colours and one moving line
that says who is still waited for; where many nodes are told, it names only those that fail.
"""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from iop_edge.config.report import printable
from iop_edge.refresh.receipt import ChangeReport, ErrorReport, NodeReport, RefreshResult
from iop_shared.ids import NodeId

NAMED_NODES = 20
"""With more of them, those that acknowledge are counted on a terminal and not named."""

_MARKS = {
    "acknowledged": ("✓", "green"),
    "refused": ("✗", "red"),
    "timed_out": ("✗", "red"),
    "not_connected": ("○", "yellow"),
    "would_send": ("→", "cyan"),
    "unchanged": ("·", "bright_black"),
}
_RELOAD_STYLES = {"live": "green", "restart": "yellow"}


class RefreshView:
    """One refresh on the screen. To be entered before it is asked for, so that waiting shows."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began = time.monotonic()
        self._status: Status | None = None
        self._waiting: list[NodeId] = []
        self._told = 0
        self._has_changes = False
        self._shown: set[NodeId] = set()

    def __enter__(self) -> RefreshView:
        if self._out.is_terminal:
            self._status = self._out.status("the edge reads and checks its files")
            self._status.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, plan: RefreshResult, waiting_for: tuple[NodeId, ...]) -> None:
        """The edge runs the new generation, and tells these nodes."""
        self._changes(plan)
        self._waiting = list(waiting_for)
        self._told = len(waiting_for)
        self._move()

    def node(self, node: NodeReport) -> None:
        """One node has answered, or nobody waits for it any more."""
        self._shown.add(node.node_id)
        if node.node_id in self._waiting:
            self._waiting.remove(node.node_id)
        is_counted = self._out.is_terminal and self._told > NAMED_NODES
        if not (is_counted and node.outcome == "acknowledged"):
            self._node(node, took_s=time.monotonic() - self._began)
        self._move()

    def end(self, result: RefreshResult) -> None:
        """Everything that has not been shown yet, and the outcome in one sentence."""
        if not self._has_changes:
            self._changes(result)
        for node in result.nodes:
            is_quiet = node.outcome == "unchanged" and node.detail is None
            if node.node_id not in self._shown and not is_quiet:
                self._node(node)
        for error in result.errors:
            self._out.print(_place(error), style="red")
        if result.omitted:
            self._out.print(f"… and {result.omitted} more", style="red")
        self._out.print(headline(result), style="bold")

    # ------------------------------------------------------------------------------------------

    def _changes(self, result: RefreshResult) -> None:
        self._has_changes = True
        for change in result.changes:
            self._out.print(_change(change))
            if change.reason:
                self._out.print(Text(f"        {change.reason}", style="bright_black"))

    def _node(self, node: NodeReport, took_s: float | None = None) -> None:
        runs = f" (runs generation {node.generation})" if node.generation is not None else ""
        detail = f": {node.detail}" if node.detail else ""
        line = printable(f"{node.node_id}: {node.outcome.replace('_', ' ')}{runs}{detail}")
        mark, style = _MARKS[node.outcome]
        if not self._out.is_terminal:
            self._out.print(f"node    {line}")
            return
        took = f"  {took_s * 1000:.0f} ms" if took_s is not None else ""
        self._out.print(
            Text.assemble(("node  ", style), (mark, style), f" {line}", (took, "bright_black"))
        )

    def _move(self) -> None:
        if self._status is None:
            return
        answered = self._told - len(self._waiting)
        names = ", ".join(self._waiting[:3]) + (" …" if len(self._waiting) > 3 else "")
        self._status.update(
            f"{answered} of {self._told} nodes have answered; waiting for {escape(names)}"
        )


def headline(result: RefreshResult) -> str:
    """The result in one sentence."""
    before, after = result.generation.before, result.generation.after
    match result.status, result.mode:
        case "rejected", _:
            return f"rejected: nothing has changed, generation {before} goes on"
        case "restart_required", _:
            count = len(result.restart_required_paths)
            paths = "1 path needs" if count == 1 else f"{count} paths need"
            return f"restart required: {paths} one; nothing applied, generation {before} goes on"
        case _, "dry_run":
            if not result.changes:
                return "dry run: no change"
            return f"dry run: would apply {_count(result)} to generation {before}"
        case _:
            what = _count(result) if result.changes else "no change"
            return f"applied: {what}, generation {before} → {after}"


def _change(change: ChangeReport) -> Text:
    return Text.assemble(
        (f"{change.reload:<8}", _RELOAD_STYLES[change.reload]),
        f"{change.path}: ",
        (_brief(change.old), "bright_black"),
        " → ",
        _brief(change.new),
    )


def _count(result: RefreshResult) -> str:
    count = len(result.changes)
    return "1 change" if count == 1 else f"{count} changes"


def _brief(value: Any) -> str:
    if value is None:
        return "(none)"
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 80 else f"{text[:77]}…"


def _place(error: ErrorReport) -> str:
    place = (
        f"{error.file}:{error.line}:{error.column}: "
        if error.file and error.line
        else (f"{error.file}: " if error.file else "")
    )
    path = f"{error.path}: " if error.path else ""
    return f"{place}{error.code}: {path}{error.message}"
