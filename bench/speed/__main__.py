"""The bench of speed: IOP beside its peers under the same load, in one command.

    python -m bench.speed                                        everything, in about twenty minutes
    python -m bench.speed --quick                                the same, shorter and rougher
    python -m bench.speed --only iop,floor --shapes plain16      one question at a time
    python -m bench.speed --limits open-streams                  one of the limits
    python -m bench.speed --only iop --shapes plain16 --profile flames       where time goes
    python -m bench.speed --from FILE --docs                     print what `--json FILE` has kept

Progress goes to standard error, the tables to standard output. What docs/performance.md says of a
figure and how it is taken is where to begin.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path

import msgspec

from bench.speed import chart, measure, page, peers, profile, table, targets
from bench.speed.callers import NotHeld
from bench.speed.limits import LIMITS, Rig
from bench.speed.result import Result, this_machine
from bench.speed.running import Absent
from bench.speed.shapes import SHAPES
from demo.processes import StartFailed

_FILES = 32_768
"""Open files for each process: a long queue is a connection for each that waits."""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> Result:
    """Everything that was asked for."""
    machine = this_machine()
    with (
        tempfile.TemporaryDirectory() as folder,
        measure.load() as driver,
        measure.mock_upstream(Path(folder)) as upstream,
    ):
        with measure.contenders(options.only, Path(folder), upstream, driver, say) as taking_part:
            running, absent = taking_part
            running = {peers.DIRECT: upstream, **running}
            samples = measure.rounds(
                running,
                absent,
                driver,
                shapes=options.shapes,
                repeats=options.repeats,
                seconds=options.seconds,
                say=say,
            )
            memory = measure.memory(running)
            if options.profile is not None:
                try:
                    profile.record(
                        running["iop"],
                        driver,
                        shapes=options.shapes,
                        seconds=options.seconds,
                        folder=options.profile,
                        say=say,
                    )
                except Absent as why:
                    say(f"there are no flame graphs: {why}")
        folders = (Path(folder) / f"limit-{number}" for number in count())
        rig = Rig(lambda: next(folders), driver, upstream, options.seconds)
        limits: dict[str, list[float]] = {}
        for name in options.limits:
            try:
                for value in LIMITS[name](rig, options.repeats):
                    limits.setdefault(name, []).append(value)
                    say(f"{name}: {value:.3g}")
            except (Absent, NotHeld, StartFailed, measure.Failed) as why:
                absent[name] = str(why)
                say(f"{name} is left out: {why}")
    return Result(machine, samples, memory, limits, absent)


def show(result: Result) -> None:
    if result.samples:
        print(table.plain(table.contenders(result)))
    judged = [one for one in targets.judge(result) if one.spread is not None]
    if judged:
        print("\n" + table.plain(table.targets(judged)))
    print("\n" + "\n".join(table.notes(result)))


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(found))

    return names


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    only = f"of {', '.join(peers.STARTS)}"
    parser.add_argument("--only", type=_names(peers.STARTS), metavar="NAMES", help=only)
    shapes = f"of {', '.join(SHAPES)}"
    parser.add_argument("--shapes", type=_names(SHAPES), metavar="NAMES", help=shapes)
    limits = f"of {', '.join(LIMITS)}; all of them unless --only or --shapes are given"
    parser.add_argument("--limits", type=_names(LIMITS), metavar="NAMES", help=limits)
    parser.add_argument("--repeats", type=int, help="interleaved rounds (5; 2 with --quick)")
    parser.add_argument("--seconds", type=float, help="of each measurement (3; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="kept", help="measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the result here")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the picture here")
    flames = "draw a flame graph of each of IOP's processes under each shape into it"
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help=flames)
    parser.add_argument("--docs", action="store_true", help=f"print it into {page.PAGE.name}")
    options = parser.parse_args(arguments)
    is_part = options.only is not None or options.shapes is not None
    if options.shapes is None:
        options.shapes = [] if options.limits is not None else list(SHAPES)
    if options.limits is None:
        options.limits = [] if is_part else list(LIMITS)
    if options.only is None:
        options.only = list(peers.STARTS) if options.shapes else []
    if options.profile is not None and "iop" not in options.only:
        parser.error("--profile looks at iop, which --only leaves out")
    options.repeats = options.repeats or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    if sys.platform != "linux":
        raise SystemExit("the bench reads CPU and memory as Linux tells them")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    if options.kept is not None:
        result = msgspec.json.decode(options.kept.read_bytes(), type=Result)
    else:
        result = run(options)
    show(result)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if options.svg is not None:
        options.svg.write_text(chart.svg(result))
    if options.docs:
        page.write(result)


if __name__ == "__main__":
    main()
