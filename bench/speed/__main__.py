"""The bench of speed, in one command.

python -m bench.speed [--only iop,floor,naive] [--shapes plain16,paced64] [--quick]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench.speed import figures, measure, peers
from bench.speed.shapes import SHAPES, Sample


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _names(known: object) -> object:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:  # type: ignore[operator]
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")  # type: ignore[call-overload]
        return names

    return parse


def _summary(samples: list[Sample], names: list[str]) -> None:
    for shape in dict.fromkeys(one.shape for one in samples):
        print(f"\n{shape}")
        for name in names:
            cost = figures.cpu_us(samples, shape, name)
            if cost is None:
                continue
            line = f"  {name:12} {cost.median:9.1f} µs CPU ({cost.low:.1f} to {cost.high:.1f})"
            base = figures.added_p50_ms(samples, shape, name, "direct")
            first = figures.added_first_byte_ms(samples, shape, name, "direct")
            if base is not None and first is not None:
                line += f"  adds p50 {base.median:7.3f} ms, first byte {first.median:7.3f} ms"
            ratio = figures.cpu_ratio(samples, shape, "iop", name)
            if ratio is not None and name != "iop":
                line += f"  iop / {name}: {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=_names(peers.STARTS), default=list(peers.STARTS))
    parser.add_argument("--shapes", type=_names(SHAPES), default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds = 2, 0.7
    names = list(dict.fromkeys(options.only))
    with (
        tempfile.TemporaryDirectory() as folder,
        measure.load() as driver,
        measure.mock_upstream(Path(folder)) as upstream,
        measure.contenders(names, Path(folder), upstream, driver, _say) as (running, absent),
    ):
        running = {peers.DIRECT: upstream, **running}
        samples = measure.rounds(
            running,
            driver,
            shapes=options.shapes,
            repeats=options.repeats,
            seconds=options.seconds,
            say=_say,
        )
        held = measure.memory(running)
    names = list(running)
    _summary(samples, names)
    print("\nmemory, MiB (peak resident, proportional now)")
    for name, one in held.items():
        print(f"  {name:12} {one.peak_mib:6.1f} {one.pss_mib:6.1f}")
    print(f"\nload average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
