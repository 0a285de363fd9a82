"""`iop-edge config refresh`: ask the running edge to take its files anew."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import Any

import click
import msgspec
from rich.console import Console

from iop_edge.cli.admin_address import admin_address, admin_options
from iop_edge.cli.admin_client import AdminClient, NoAnswer, Unreachable, read, tell
from iop_edge.cli.refresh_view import RefreshView
from iop_edge.refresh.receipt import RefreshResult
from iop_edge.serve.admin.shapes import NodeLine, PlanLine, ResultLine

EXIT_DONE = 0
EXIT_REJECTED = 1
EXIT_USAGE = 2
EXIT_WOULD_APPLY = 3
EXIT_RESTART_REQUIRED = 4
EXIT_UNREACHABLE = 5
EXIT_NODE_FAILED = 8


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
    out = _Out(highlight=False, soft_wrap=True, markup=False)
    view = None if as_json else RefreshView(out)
    try:
        with ExitStack() as stack:
            if view is not None:
                stack.enter_context(view)
            client = AdminClient(admin_address(admin, config_files))
            result = _ask(client, dry_run=dry_run, view=view)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (Unreachable, NoAnswer) as error:
        tell(error, as_json=as_json)
        sys.exit(EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_REJECTED)
    if view is not None:
        view.end(result)
    else:
        try:
            click.echo(msgspec.json.encode(result))
        except BrokenPipeError:
            out.on_broken_pipe()
    sys.exit(exit_status(result))


class _Out(Console):
    """Where the refresh is shown. When nobody reads on, as in `| grep -q`, the rest is not shown,
    and the exit status is still that of the refresh."""

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):
            super().on_broken_pipe()


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


def _ask(client: AdminClient, *, dry_run: bool, view: RefreshView | None) -> RefreshResult:
    """The result; `view` hears of the plan and of each node as it answers."""
    document: Any = None
    for document in client.post("/refresh", {"mode": "dry_run" if dry_run else "apply"}):
        match document:
            case {"plan": _, "waiting_for": _} if view is not None:
                line = read(document, PlanLine)
                view.begin(line.plan, line.waiting_for)
            case {"node": _} if view is not None:
                view.node(read(document, NodeLine).node)
    if isinstance(document, dict) and document.keys() == {"result"}:
        return read(document, ResultLine).result
    return read(document, RefreshResult)
