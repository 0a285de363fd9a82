"""`iop-edge status`: what the running edge does right now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from iop_edge.cli.admin_address import admin_address, admin_options
from iop_edge.cli.admin_client import AdminClient, NoAnswer, Unreachable, read, tell
from iop_edge.cli.status_view import lines, screen
from iop_edge.serve.admin.shapes import EdgeStatus

EXIT_NO_EDGE = 1
EXIT_UNREACHABLE = 5


@click.command()
@click.option("--watch", is_flag=True, help="Show it anew until interrupted.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@admin_options
def status(
    watch: bool, interval_s: float, admin: str | None, config_files: tuple[Any, ...], as_json: bool
) -> None:
    """Show nodes, providers, slots, queue and generations of the running edge.

    On a terminal --watch goes on when the edge is gone, and shows it again when it is back.

    \b
    Exit status
      0  shown
      1  what answers at the address is no edge
      5  the edge is not reachable
    """
    out = Console(highlight=False, soft_wrap=True, markup=False)
    try:
        client = AdminClient(admin_address(admin, config_files))
        if as_json:
            for document in _documents(client, interval_s if watch else None):
                read(document, EdgeStatus)
                click.echo(json.dumps(document))
        elif not out.is_terminal:
            for document in _documents(client, interval_s if watch else None):
                click.echo("\n".join(lines(read(document, EdgeStatus))))
        elif watch:
            sys.exit(_watch(client, interval_s, out))
        else:
            out.print(screen(_status(client)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (Unreachable, NoAnswer) as error:
        tell(error, as_json=as_json)
        sys.exit(EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_NO_EDGE)
    except KeyboardInterrupt:
        pass


def _documents(client: AdminClient, interval_s: float | None) -> Iterator[Any]:
    """One status, or one at each interval, without end."""
    yield client.get("/status")
    while interval_s is not None:
        time.sleep(interval_s)
        yield client.get("/status")


def _watch(client: AdminClient, interval_s: float, out: Console) -> int:
    """Fill the screen until interrupted; the exit status. Raises Unreachable only at the start."""
    edge = _status(client)
    loss: Unreachable | None = None
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_framed(edge, loss, client.address, interval_s, out), refresh=True)
                time.sleep(interval_s)
                try:
                    edge, loss = _status(client), None
                except Unreachable as error:
                    loss = error
        except KeyboardInterrupt:
            return EXIT_UNREACHABLE if loss is not None else 0


def _framed(
    edge: EdgeStatus, loss: Unreachable | None, address: str, interval_s: float, out: Console
) -> RenderableType:
    title = Text.assemble(
        ("iop-edge ", "bold"), address, (f"   every {interval_s:g} s, Ctrl-C ends", "bright_black")
    )
    if loss is not None:
        title = Text(f"{address} is not reachable: {loss.reason}. Its last status:", "bold red")
    # One line is kept free: a terminal that is written to its last column may scroll.
    return Group(title, Text(), screen(edge, height=out.size.height - 3))


def _status(client: AdminClient) -> EdgeStatus:
    return read(client.get("/status"), EdgeStatus)
