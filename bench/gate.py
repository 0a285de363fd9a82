"""What the stream evidence gate costs a stream.

`python -m bench.gate` runs three sites of one edge and one node as real processes before one
upstream: without a word of the gate in the config, with the gate configured and off, and with it
on (a blocking `repeat_guard`). Each round puts the same load to all three; the figures are ratios
within a round, and their median. A chunk costs what edge and node use for a stream, by its chunks.
Off must cost what nothing costs (1.02 is the bound that is kept), on at most 1.3 times that.
With `--docs` the figures go into docs/gate.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.speed import measure, site, table
from bench.speed.answers import CHUNKS
from bench.speed.page import with_figures
from bench.speed.result import this_machine
from bench.speed.shapes import SHAPES as SHAPE_OF
from bench.speed.shapes import Sample
from demo.processes import ROOT, Group

FILTERS = [{"filter": "repeat_guard", "enforcement": "blocking"}]
GATES: dict[str, dict[str, Any] | None] = {
    "absent": None,
    "off": {"enabled": False, "filters": FILTERS},
    "on": {"enabled": True, "filters": FILTERS},
}
SHAPES = ("paced64", "paced16", "burst16")
SPOKEN = {"paced": "5 ms apart", "burst": "all at once"}
PAGE = ROOT / "docs/gate.md"
BEGIN = "<!-- figures: printed by `python -m bench.gate --docs` -->"


def run(repeats: int, seconds: float) -> list[Sample]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        driver = stack.enter_context(measure.load())
        upstream = stack.enter_context(measure.mock_upstream(folder))
        running = {}
        for name, gate in GATES.items():
            group = Group(folder / name)
            stack.callback(group.stop)
            running[name] = site.start(group, upstream.port, gate=gate)
            measure.warm_up(driver, name, running[name])
        absent: dict[str, str] = {}
        samples = measure.rounds(
            running,
            absent,
            driver,
            shapes=SHAPES,
            repeats=repeats,
            seconds=seconds,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        if absent:
            raise measure.Failed(str(absent))
        return samples


def ratio(samples: list[Sample], shape: str, one: str, other: str, part: str | None) -> list[float]:
    """What the one costs for the other's cost, round by round: all processes, or one part."""

    def cost(sample: Sample) -> float:
        return sample.cpu_us if part is None else sample.parts_us[part]

    costs = {(s.contender, s.round): cost(s) for s in samples if s.shape == shape}
    rounds = sorted({number for _, number in costs})
    return [costs[one, number] / costs[other, number] for number in rounds]


def figures(samples: list[Sample]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for shape in SHAPES:
        of = [sample for sample in samples if sample.shape == shape]
        medians = {
            name: statistics.median(s.cpu_us / CHUNKS for s in of if s.contender == name)
            for name in GATES
        }
        first = {
            name: statistics.median(s.first_byte_ms for s in of if s.contender == name)
            for name in GATES
        }
        found[shape] = {
            "chunk_us": {name: round(value, 2) for name, value in medians.items()},
            "first_byte_ms": {name: round(value, 3) for name, value in first.items()},
            "added_first_byte_ms": round(first["on"] - first["off"], 3),
            **{
                f"{one}/{other}{' edge' if part else ''}": _spread(
                    ratio(samples, shape, one, other, part)
                )
                for one, other in (("off", "absent"), ("on", "off"))
                for part in (None, "edge")
            },
        }
    return found


def page_rows(found: dict[str, Any]) -> table.Rows:
    """The figures as they stand in the docs."""
    rows = [
        (
            "pieces come, streams at once",
            "µs a piece: no gate · off · on",
            "off ÷ none",
            "on ÷ off",
            "first byte later by",
        )
    ]
    for name, of in found.items():
        off, on = of["off/absent"], of["on/off"]
        rows.append(
            (
                f"{SPOKEN[SHAPE_OF[name].kind]}, {SHAPE_OF[name].in_flight}",
                " · ".join(f"{of['chunk_us'][gate]:.1f}" for gate in GATES),
                f"{off['median']:.2f} ({off['low']:.2f} to {off['high']:.2f})",
                f"{on['median']:.2f} ({on['low']:.2f} to {on['high']:.2f})",
                f"{max(0.0, of['added_first_byte_ms']):.1f} ms",
            )
        )
    return rows


def print_into_docs(found: dict[str, Any], repeats: int, page: Path = PAGE) -> None:
    """Put the figures of so many rounds between the page's markers. Raises NoPlace."""
    machine = this_machine()
    taken_on = (
        f"Medians of {repeats} interleaved rounds, with the lowest and the highest ratio, on "
        f"{machine.cores} cores of {machine.processor}, Python {machine.python}."
    )
    printed = f"{table.markdown(page_rows(found))}\n\n{taken_on}"
    page.write_text(with_figures(page.read_text(), printed, BEGIN))


def _spread(ratios: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(ratios), 3),
        "low": round(min(ratios), 3),
        "high": round(max(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--docs", action="store_true", help="print them into docs/gate.md")
    options = parser.parse_args()
    found = figures(run(options.repeats, options.seconds))
    print(json.dumps(found, indent=2))
    if options.docs:
        print_into_docs(found, options.repeats)


if __name__ == "__main__":
    main()
