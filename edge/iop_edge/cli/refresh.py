"""`iop-edge config refresh`: ask the running edge to take its files anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console

from iop_edge.cli.admin_address import admin_address, admin_options
from iop_edge.cli.admin_client import AdminClient, NoAnswer, Unreachable
from iop_edge.refresh.receipt import ErrorReport, NodeReport, RefreshResult
from iop_edge.serve.admin.shapes import NodeLine, ResultLine
from iop_shared.ids import NodeId

T = TypeVar("T")

EXIT_DONE = 0
EXIT_REJECTED = 1
EXIT_USAGE = 2
EXIT_WOULD_APPLY = 3
EXIT_RESTART_REQUIRED = 4
EXIT_UNREACHABLE = 5
EXIT_NODE_FAILED = 8

_OUTCOME_STYLES = {"acknowledged": "green", "refused": "red", "timed_out": "red"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what an apply would do.")
@admin_options
def refresh(dry_run: bool, admin: str | None, config_files: tuple[Any, ...], as_json: bool) -> None:
    """Apply the files that the running edge was started with, as they are now.

    The edge reads them itself. Live changes take effect at once; a change that needs a restart
    holds everything back and says why.

    \b
    Exit status
      0  applied by every node, or nothing to do
      1  rejected or refused; nothing has changed
      3  dry run: would apply
      4  a restart is required; nothing has been applied
      5  the edge is not reachable
      8  applied, but a node refused it or did not answer
    """
    out = Console(highlight=False, soft_wrap=True, markup=False)
    shown: set[NodeId] = set()

    def on_node(node: NodeReport) -> None:
        if not as_json:
            show_node(node, out)
            shown.add(node.node_id)

    try:
        client = AdminClient(admin_address(admin, config_files))
        result = _ask(client, dry_run=dry_run, on_node=on_node)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except Unreachable as error:
        sys.exit(_failed(str(error), EXIT_UNREACHABLE, "unreachable", as_json=as_json))
    except NoAnswer as error:
        sys.exit(_failed(str(error), EXIT_REJECTED, "no_answer", as_json=as_json))
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        show(result, out, shown)
    sys.exit(exit_status(result))


def exit_status(result: RefreshResult) -> int:
    """What the command exits with (interface, section 2)."""
    if result.status == "rejected":
        return EXIT_REJECTED
    if result.status == "restart_required":
        return EXIT_RESTART_REQUIRED
    if result.mode == "dry_run":
        return EXIT_WOULD_APPLY if result.changes else EXIT_DONE
    # Errors beside `applied` are of steps after the swap: the nodes may not have been told.
    failed = any(node.outcome in ("refused", "timed_out") for node in result.nodes)
    return EXIT_NODE_FAILED if failed or result.errors else EXIT_DONE


def show(
    result: RefreshResult, out: Console, already_shown: Collection[NodeId] = frozenset()
) -> None:
    """Print a receipt or a plan, for people: changes, nodes that matter, errors, the outcome."""
    for change in result.changes:
        style = "green" if change.reload == "live" else "yellow"
        out.print(f"{change.reload:<8}", style=style, end="")
        out.print(f"{change.path}: {_brief(change.old)} → {_brief(change.new)}")
        if change.reason:
            out.print(f"        {change.reason}", style="dim")
    for node in result.nodes:
        is_quiet = node.outcome == "unchanged" and node.detail is None
        if node.node_id not in already_shown and not is_quiet:
            show_node(node, out)
    for error in result.errors:
        out.print(_line(error), style="red")
    if result.omitted:
        out.print(f"… and {result.omitted} more", style="red")
    out.print(headline(result), style="bold")


def show_node(node: NodeReport, out: Console) -> None:
    """One line for one node."""
    runs = f" (runs generation {node.generation})" if node.generation is not None else ""
    detail = f": {node.detail}" if node.detail else ""
    out.print(
        f"node    {node.node_id}: {node.outcome.replace('_', ' ')}{runs}{detail}",
        style=_OUTCOME_STYLES.get(node.outcome),
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
            return f"dry run: would apply {_changes(result)} to generation {before}"
        case _:
            what = _changes(result) if result.changes else "no change"
            return f"applied: {what}, generation {before} → {after}"


def _ask(
    client: AdminClient, *, dry_run: bool, on_node: Callable[[NodeReport], None]
) -> RefreshResult:
    """The result; `on_node` hears each node as it answers."""
    document: Any = None
    for _, document in client.post("/refresh", {"mode": "dry_run" if dry_run else "apply"}):
        if isinstance(document, dict) and document.keys() == {"node"}:
            on_node(_read(document, NodeLine).node)
    if isinstance(document, dict) and document.keys() == {"result"}:
        return _read(document, ResultLine).result
    return _read(document, RefreshResult)


def _read(document: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError:
        raise NoAnswer("what answers at the admin address is no edge") from None


def _failed(message: str, status: int, code: str, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"error": {"code": code, "message": message}}))
    click.echo(f"iop-edge: {message}", err=True)
    return status


def _changes(result: RefreshResult) -> str:
    count = len(result.changes)
    return "1 change" if count == 1 else f"{count} changes"


def _brief(value: Any) -> str:
    if value is None:
        return "(none)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _line(error: ErrorReport) -> str:
    place = (
        f"{error.file}:{error.line}:{error.column}: "
        if error.file and error.line
        else (f"{error.file}: " if error.file else "")
    )
    path = f"{error.path}: " if error.path else ""
    return f"{place}{error.code}: {path}{error.message}"
