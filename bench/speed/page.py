"""Writes a result into docs/performance.md and the picture beside it, so that nobody types one."""

from __future__ import annotations

from pathlib import Path

from bench.speed import chart, table, targets
from bench.speed.result import Result
from demo.processes import ROOT

PAGE = ROOT / "docs/performance.md"
PICTURE = ROOT / "docs/performance.svg"
BEGIN, END = "<!-- figures: printed by `make bench ARGS=--docs` -->", "<!-- end of figures -->"


class NoPlace(ValueError):
    """The page has no pair of markers to write between."""


def figures(result: Result) -> str:
    """The part of the page that is printed."""
    return "\n\n".join(
        [
            f"![CPU of a request, by contender]({PICTURE.name})",
            table.markdown(table.targets(targets.judge(result))),
            table.markdown(table.contenders(result)),
            "\n".join(table.notes(result)),
        ]
    )


def with_figures(page: str, printed: str, begins: str = BEGIN) -> str:
    """The page with these between its markers. Raises NoPlace."""
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoPlace(f"the page has no {begins!r} followed by {END!r}")
    return f"{before}{begins}\n\n{printed}\n\n{END}{after}"


def write(result: Result, page: Path = PAGE, picture: Path = PICTURE) -> None:
    page.write_text(with_figures(page.read_text(), figures(result)))
    picture.write_text(chart.svg(result))
