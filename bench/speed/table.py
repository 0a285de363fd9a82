"""The result as tables, for a terminal and for a page. It computes nothing that is not shown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.speed import figures
from bench.speed.figures import Spread
from bench.speed.result import Result
from bench.speed.shapes import SHAPES
from bench.speed.targets import Judged, Unit

TITLES = {
    "iop": "IOP",
    "floor": "floor",
    "floor-own": "floor, own wire",
    "nginx": "nginx",
    "vllm-router": "vllm-router",
    "naive": "naive aiohttp",
    "portkey": "Portkey",
    "litellm": "LiteLLM",
    "direct": "the upstream itself",
}
_MARKS = {"aim": "met", "must": "enough", "missed": "**missed**", "not measured": "–"}
Rows = Sequence[Sequence[str]]


def shown(value: float, unit: Unit = "×") -> str:
    """A figure as people read it; a ratio far below one as the fraction that it is."""
    if unit != "×":
        return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
    if 0 < value < 0.3:
        return f"1/{1 / value:.3g}"
    return f"{value:.2f}"


def targets(judged: Sequence[Judged]) -> Rows:
    """What was found beside what is asked."""
    rows = [("", "", "found", "lowest to highest", "must", "aim", "")]
    row = ""
    for one in judged:
        target, spread = one.target, one.spread
        found, between = "–", ""
        if spread is not None:
            found = shown(spread.median, target.unit)
            between = f"{shown(spread.low, target.unit)} to {shown(spread.high, target.unit)}"
        rows.append(
            (
                target.row if target.row != row else "",
                target.of,
                found,
                between,
                f"≤ {shown(target.must, target.unit)}",
                f"≤ {shown(target.aim, target.unit)}",
                _MARKS[one.verdict],
            )
        )
        row = target.row
    return rows


def contenders(result: Result) -> Rows:
    """CPU of a request under every shape, and the memory, of everybody who took part."""
    shapes = [name for name in SHAPES if any(one.shape == name for one in result.samples)]
    heads = [f"{SHAPES[name].kind}, {SHAPES[name].in_flight}" for name in shapes]
    added = ("adds, ms", "a first byte of 16, ms")
    rows = [("µs of CPU a request", *heads, *added, "most memory, MB")]
    for name in _order(result):
        cells = [_median(figures.cpu_us(result.samples, shape, name)) for shape in shapes]
        later = [
            "" if spread is None or name == "direct" else f"{spread.median:.2f}"
            for spread in (
                figures.added_p50_ms(result.samples, "plain1", name, "direct"),
                figures.added_first_byte_ms(result.samples, "paced16", name, "direct"),
            )
        ]
        held = result.memory.get(name)
        rows.append((TITLES[name], *cells, *later, f"{held.peak_mib:.0f}" if held else ""))
    return rows


def _order(result: Result) -> list[str]:
    present = {one.contender for one in result.samples}
    return [name for name in TITLES if name in present]


def _median(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:,.0f}"


def notes(result: Result) -> list[str]:
    """On what, beside what, and without whom."""
    machine = result.machine
    rounds = max(
        [1 + one.round for one in result.samples]
        + [len(found) for found in result.limits.values()],
        default=0,
    )
    what = f"Medians of {rounds} interleaved rounds on {machine.cores} cores of {machine.processor}"
    beside = f"Python {machine.python}, load average {machine.load_average:.2f} when it began"
    lines = [f"{what}, {beside}."]
    lines += [f"Left out: {name}: {why}" for name, why in result.absent.items()]
    return lines


def plain(rows: Rows) -> str:
    """Columns under one another."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < 1 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip().replace("**", ""))
    return "\n".join(lines)


def markdown(rows: Rows) -> str:
    head, *rest = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rest))
