"""`iop-edge status`: what the running edge does right now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iop_edge.cli.admin_address import admin_address, admin_options
from iop_edge.cli.admin_client import AdminClient, NoAnswer, Unreachable
from iop_edge.serve.admin.shapes import EdgeStatus

EXIT_NO_EDGE = 1
EXIT_UNREACHABLE = 5

_STYLES = {
    "available": "green",
    "connected": "green",
    "busy": "yellow",
    "joining": "yellow",
    "unavailable": "red",
    "disconnected": "red",
    "disabled": "dim",
}

Row = Sequence[str]


@click.command()
@click.option("--watch", is_flag=True, help="Show it anew until interrupted.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@admin_options
def status(
    watch: bool, interval_s: float, admin: str | None, config_files: tuple[Any, ...], as_json: bool
) -> None:
    """Show nodes, providers, slots, queue and generations of the running edge.

    \b
    Exit status
      0  shown
      5  the edge is not reachable
    """
    try:
        client = AdminClient(admin_address(admin, config_files))
        if as_json:
            _print_json(_documents(client, interval_s if watch else None))
        else:
            _print(_documents(client, interval_s if watch else None), is_watch=watch)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except Unreachable as error:
        click.echo(f"iop-edge: {error}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    except NoAnswer as error:
        click.echo(f"iop-edge: {error}", err=True)
        sys.exit(EXIT_NO_EDGE)
    except KeyboardInterrupt:
        pass


def _documents(client: AdminClient, interval_s: float | None) -> Iterator[Any]:
    """One status, or one at each interval, without end."""
    yield client.get("/status").document
    while interval_s is not None:
        time.sleep(interval_s)
        yield client.get("/status").document


def _print_json(documents: Iterator[Any]) -> None:
    for document in documents:
        click.echo(json.dumps(document))


def _print(documents: Iterator[Any], *, is_watch: bool) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False)
    if not (is_watch and out.is_terminal):
        for document in documents:
            out.print(_shown(document, out))
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        for document in documents:
            live.update(_shown(document, out), refresh=True)


def _shown(document: Any, out: Console) -> RenderableType:
    try:
        edge = msgspec.convert(document, EdgeStatus)
    except msgspec.ValidationError:
        raise NoAnswer("what answers at the admin address is no edge") from None
    sections = [
        _section("NODE", ("STATE", "RUNS", "GENERATION", "FAILURE"), _nodes(edge), out),
        _section(
            "PROVIDER",
            ("NODE", "STATUS", "HEALTH", "SLOTS", "LONG", "PRIORITY"),
            _providers(edge),
            out,
        ),
        _section("MODEL", ("USABLE", "PROVIDERS"), _models(edge), out),
    ]
    return Group(*_summary(edge), *(section for section in sections if section is not None))


def _summary(edge: EdgeStatus) -> Iterator[Text]:
    queue = edge.queue
    waits = "" if queue.oldest_ms is None else f", the oldest for {queue.oldest_ms / 1000:.1f} s"
    yield Text(f"generation {edge.generation}  {edge.config_digest[:19]}…", style="bold")
    yield Text(f"queue {queue.pending} of {queue.max_queue}{waits}")
    if not edge.nodes:
        yield Text("no nodes are configured", style="yellow")
    if not edge.models:
        yield Text("no models are configured", style="yellow")
    for path in edge.pending_restart_paths:
        yield Text(f"restart needed for {path}", style="yellow")
    if edge.last_error is not None:
        yield Text(f"the last apply was rejected ({edge.last_error.at:%Y-%m-%d %H:%M:%S})", "red")
        for error in edge.last_error.errors[:5]:
            yield Text(f"  {error.code}: {error.path or error.file or ''}: {error.message}", "red")


def _nodes(edge: EdgeStatus) -> Iterator[Row]:
    for node in edge.nodes:
        facts = node.generation
        lag = "" if facts.effective == facts.desired else f" (wants {facts.desired})"
        generation = "-" if facts.effective is None else str(facts.effective)
        draining = f" +{len(node.draining_registries)} draining" if node.draining_registries else ""
        yield (
            node.node_id,
            node.state,
            f"{node.active_runs}{draining}",
            f"{generation}{lag}",
            node.last_failure or "",
        )


def _providers(edge: EdgeStatus) -> Iterator[Row]:
    for one in edge.providers:
        long_slots = one.long_context_capacity
        yield (
            one.provider_id,
            one.node_id,
            one.status,
            one.health,
            f"{one.in_flight}/{one.capacity}",
            "-" if long_slots is None else f"{one.long_in_flight}/{long_slots}",
            str(one.priority),
        )


def _models(edge: EdgeStatus) -> Iterator[Row]:
    for model in edge.models:
        usable = f"{model.available_providers}/{len(model.providers)}"
        yield model.model_id, usable, ", ".join(model.providers)


def _section(
    first: str, others: Sequence[str], rows: Iterator[Row], out: Console
) -> RenderableType | None:
    """A table on a terminal, and lines of `key=value` elsewhere."""
    found = list(rows)
    if not found:
        return None
    if not out.is_terminal:
        return Text("\n".join(_plain(first, others, row) for row in found))
    table = Table(first, *others, box=None, pad_edge=False)
    for row in found:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _plain(first: str, others: Sequence[str], row: Row) -> str:
    cells = (
        f"{name.lower()}={_word(cell)}" for name, cell in zip(others, row[1:], strict=True) if cell
    )
    return f"{first.lower()} {_word(row[0])} {' '.join(cells)}"


def _word(cell: str) -> str:
    """The cell as one word that a script can split off."""
    return json.dumps(cell, ensure_ascii=False) if " " in cell else cell
