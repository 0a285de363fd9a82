"""How a status looks: bars and colours on a terminal, lines of `key=value` elsewhere.

Pure rendering of an `EdgeStatus`; it asks nobody anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from iop_edge.config.report import printable
from iop_edge.serve.admin.shapes import EdgeStatus, ModelStatus, NodeStatus, ProviderStatus

BAR_CELLS = 16
"""A bar is this long at most; up to here every slot has a cell of its own."""

REMARKS = 4
"""Of one kind, on a terminal."""

_GOOD, _WARN, _BAD, _QUIET = "green", "yellow", "red", "bright_black"

_MARKS = {
    "connected": ("●", _GOOD),
    "joining": ("◐", _WARN),
    "disconnected": ("○", _BAD),
    "available": ("●", _GOOD),
    "busy": ("●", _WARN),
    "unavailable": ("○", _BAD),
    "disabled": ("–", _QUIET),
}
_HEALTH_STYLES = {"degraded": _WARN, "unavailable": _BAD, "unknown": _QUIET, "disabled": _QUIET}


class _Row(NamedTuple):
    """One line of a table, and whether it tells nothing that one has to know."""

    cells: tuple[Text, ...]
    is_quiet: bool


class _Part(NamedTuple):
    """One table: its heads and its rows."""

    heads: tuple[str, ...]
    rows: list[_Row]


_BAR = ""
"""The head of a column of bars. These columns go where the terminal is too narrow for all."""

_UNBOUNDED = 10_000

_LEAST_WANTED = {3: 2, 2: 0}
"""Of so many tables, the one that goes first where there is no room: models, then nodes."""

# --- on a terminal ----------------------------------------------------------------------------


def screen(edge: EdgeStatus, *, height: int | None = None) -> RenderableType:
    """The whole status. With `height` it fits into so many lines: what is quiet is left out."""
    summary = [*_summary(edge), *_failures(edge)]
    tables = [
        _Part(("NODE", "STATE", "RUNS", "GENERATION"), [_node(node) for node in edge.nodes]),
        _Part(
            ("PROVIDER", "NODE", "STATUS", "SLOTS", _BAR, "LONG", _BAR, "PRIORITY", "HEALTH"),
            [_provider(provider) for provider in edge.providers],
        ),
        _Part(("MODEL", "USABLE", "PROVIDERS"), [_model(model) for model in edge.models]),
    ]
    tables = [table for table in tables if table.rows]
    room = None
    if height is not None:
        room = height - len(summary)
        # A table takes a line of air, a head, and should show something.
        while len(tables) > 1 and room < 5 * len(tables):
            tables.pop(_LEAST_WANTED[len(tables)])
        room = max(len(tables), room - 2 * len(tables))
    shares = _shares([len(table.rows) for table in tables], room)
    shown = [(Text(), _Table(*table, share)) for table, share in zip(tables, shares, strict=True)]
    return Group(*summary, *(part for parts in shown for part in parts))


def bar(taken: int, slots: int, *, cells: int = BAR_CELLS) -> Text:
    """Slots as a bar: taken ones, free ones, and in red what runs beyond a lowered capacity."""
    width = min(slots, cells)
    inside, beyond = min(taken, slots), max(0, taken - slots)
    filled = width if inside == slots else min(width - 1, -(-inside * width // max(slots, 1)))
    style = _WARN if taken and taken >= slots else _GOOD
    return Text.assemble(
        ("█" * filled, style),
        ("░" * (width - filled), _QUIET),
        ("█" * min(beyond, cells - width or 1), _BAD),
    )


def _slots(taken: int, slots: int, cells: int, *, is_open: bool) -> tuple[Text, Text]:
    """The numbers, and their bar. Slots that nobody can take are no bar."""
    number = Text(f"{taken}/{slots}", style="" if taken else _QUIET)
    return number, bar(taken, slots, cells=cells) if is_open or taken else Text()


def _summary(edge: EdgeStatus) -> Iterator[Text]:
    yield Text.assemble(
        ("generation ", _QUIET), (str(edge.generation), "bold"), "   ",
        (f"{edge.config_digest[:19]}…", _QUIET), "   ",
        (f"since {edge.started_at.astimezone():%Y-%m-%d %H:%M}", _QUIET),
    )  # fmt: skip
    queue = edge.queue
    waits = f"   the oldest for {queue.oldest_ms / 1000:.1f} s" if queue.oldest_ms else ""
    count = f" {queue.pending}/{queue.max_queue}"
    drawn = bar(queue.pending, queue.max_queue)
    yield Text.assemble(("queue ", _QUIET), drawn, count, (waits, _WARN))
    yield from _remarks(edge, REMARKS)


def _remarks(edge: EdgeStatus, at_most: int | None = None) -> Iterator[Text]:
    if not edge.nodes:
        yield Text("no nodes are configured", style=_WARN)
    if not edge.models:
        yield Text("no models are configured", style=_WARN)
    yield from _first(
        [f"restart needed for {one}" for one in edge.pending_restart_paths], _WARN, at_most
    )
    if edge.last_error is not None:
        yield Text(f"the last apply was rejected ({edge.last_error.at:%Y-%m-%d %H:%M:%S})", _BAD)
        errors = edge.last_error.errors
        yield from _first(
            [f"  {one.code}: {one.path or one.file or ''}: {one.message}" for one in errors],
            _BAD,
            at_most,
        )


def _first(remarks: Sequence[str], style: str, at_most: int | None) -> Iterator[Text]:
    """Some of many, and how many more there are."""
    for remark in remarks[:at_most]:
        yield Text(remark, style=style)
    if at_most is not None and len(remarks) > at_most:
        yield Text(f"… and {len(remarks) - at_most} more of these", style=style)


def _failures(edge: EdgeStatus) -> Iterator[Text]:
    # The words are the node's.
    failed = [
        printable(f"{node.node_id}: {node.last_failure}")
        for node in edge.nodes
        if node.last_failure
    ]
    return _first(failed, _BAD, REMARKS)


def _node(node: NodeStatus) -> _Row:
    runs = Text(str(node.active_runs), style="" if node.active_runs else _QUIET)
    if node.draining_registries:
        old = sum(one.active_runs for one in node.draining_registries)
        runs += Text(f"  {len(node.draining_registries)} draining ({old})", style=_WARN)
    generation = Text(_generation(node), style=_WARN if _lags(node) else "")
    cells = (Text(node.node_id), _marked(node.state), runs, generation)
    is_quiet = node.connected and not (node.active_runs or _lags(node) or node.last_failure)
    return _Row(cells, is_quiet)


def _provider(one: ProviderStatus) -> _Row:
    long_slots = one.long_context_capacity
    is_open = one.status in ("available", "busy")
    cells = (
        Text(one.provider_id),
        Text(one.node_id, style=_QUIET),
        _marked(one.status),
        *_slots(one.in_flight, one.capacity, BAR_CELLS, is_open=is_open),
        *(
            (Text(), Text())
            if long_slots is None
            else _slots(one.long_in_flight, long_slots, 4, is_open=is_open)
        ),
        Text(str(one.priority), style="" if one.priority else _QUIET, justify="right"),
        Text(one.health, style=_HEALTH_STYLES.get(one.health, "")),
    )
    return _Row(cells, one.status == "available" and not one.in_flight)


def _model(model: ModelStatus) -> _Row:
    usable, all_of_them = model.available_providers, len(model.providers)
    style = _BAD if not usable else _WARN if usable < all_of_them else _GOOD
    cells = (
        Text(model.model_id),
        Text(f"{usable}/{all_of_them}", style=style),
        Text(", ".join(model.providers), style=_QUIET),
    )
    return _Row(cells, usable == all_of_them)


def _marked(state: str) -> Text:
    mark, style = _MARKS[state]
    return Text(f"{mark} {state}", style=style)


class _Table:
    """A table of at most `share` lines; those that tell something stay, in their order.

    Where it is too wide, the bars go; then the widest columns are cut, and short numbers last.
    """

    def __init__(self, heads: Sequence[str], rows: Sequence[_Row], share: int) -> None:
        left_out = len(rows) - share
        if left_out > 0:
            share -= 1
            telling = sorted(range(len(rows)), key=lambda at: (rows[at].is_quiet, at))
            rows = [rows[at] for at in sorted(telling[:share])]
            left_out += 1
        self._heads, self._rows, self._left_out = heads, rows, left_out

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        whole = self._drawn(self._heads)
        wanted = console.measure(whole, options=options.update(width=_UNBOUNDED)).maximum
        fits = wanted <= options.max_width
        yield whole if fits else self._drawn([head for head in self._heads if head != _BAR])

    def _drawn(self, heads: Sequence[str]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET)
        for head in heads:
            # A column that may wrap is cut by its width, others all alike; no cell does wrap.
            table.add_column(_cut(Text(head)))
        for row in self._rows:
            cells = zip(self._heads, row.cells, strict=True)
            table.add_row(*(_cut(cell) for head, cell in cells if head in heads))
        if self._left_out > 0:
            table.add_row(_cut(Text(f"… {self._left_out} more", style=_QUIET)))
        return table


def _cut(cell: Text) -> Text:
    """The cell in one line, however long it is."""
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def _shares(wanted: Sequence[int], room: int | None) -> list[int]:
    """How many lines each table gets: what it wants, and the largest give way first."""
    shares = list(wanted)
    while room is not None and sum(shares) > room and max(shares) > 1:
        shares[shares.index(max(shares))] -= 1
    return shares


# --- elsewhere --------------------------------------------------------------------------------


def lines(edge: EdgeStatus) -> Iterator[str]:
    """The same as plain lines, each of which a script can take apart."""
    queue = edge.queue
    waits = "" if queue.oldest_ms is None else f", the oldest for {queue.oldest_ms / 1000:.1f} s"
    yield f"generation {edge.generation}  {edge.config_digest[:19]}…"
    yield f"queue {queue.pending} of {queue.max_queue}{waits}"
    yield from (remark.plain for remark in _remarks(edge))
    for node in edge.nodes:
        old = f" +{len(node.draining_registries)} draining" if node.draining_registries else ""
        yield _line(
            ("node", node.node_id),
            ("state", node.state),
            ("runs", f"{node.active_runs}{old}"),
            ("generation", _generation(node)),
            ("failure", node.last_failure or ""),
        )
    for one in edge.providers:
        long_slots = one.long_context_capacity
        yield _line(
            ("provider", one.provider_id),
            ("node", one.node_id),
            ("status", one.status),
            ("health", one.health),
            ("slots", f"{one.in_flight}/{one.capacity}"),
            ("long", "-" if long_slots is None else f"{one.long_in_flight}/{long_slots}"),
            ("priority", str(one.priority)),
        )
    for model in edge.models:
        yield _line(
            ("model", model.model_id),
            ("usable", f"{model.available_providers}/{len(model.providers)}"),
            ("providers", ", ".join(model.providers)),
        )


def _line(first: tuple[str, str], *others: tuple[str, str]) -> str:
    return " ".join(
        (
            f"{first[0]} {_word(first[1])}",
            *(f"{key}={_word(value)}" for key, value in others if value),
        )
    )


def _word(cell: str) -> str:
    """The cell as one word that a script can split off and a terminal shows as it is."""
    is_printable = cell.isprintable()
    if is_printable and not set(' "') & set(cell):
        return cell
    return json.dumps(cell, ensure_ascii=not is_printable)


def _lags(node: NodeStatus) -> bool:
    return node.generation.effective != node.generation.desired


def _generation(node: NodeStatus) -> str:
    facts = node.generation
    lag = f" (wants {facts.desired})" if _lags(node) else ""
    return f"{'-' if facts.effective is None else facts.effective}{lag}"
