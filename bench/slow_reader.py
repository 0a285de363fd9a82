"""What one slow caller costs the others, and what a very long answer costs in memory.

`python -m bench.slow_reader` runs one edge and one node as real processes. Fifty callers read
paced streams; in one window of two one more caller reads 1 KB a second of an endless one. The
figure is the ratio of the fast callers' median times with and without it, the median of several
pairs of windows (NODE-8 asks for no difference; 1.1 is the bound that is kept). Then a 1 GB answer
is read as fast as it comes, and another by nobody, and the most memory that edge and node ever
held is printed.

All figures of one run belong together. Windows come in pairs, so that other work on the machine
meets both kinds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.speed import callers, measure, processes, site
from bench.speed.load import Order
from bench.speed.running import Running
from demo.processes import Group

FAST_CALLERS = 50
PAIRS, WINDOW_S = 8, 2.5


def pairs(driver: measure.Load, iop: Running) -> list[tuple[float, float]]:
    """The fast callers' median, alone and beside the slow one, in milliseconds."""
    order = Order(iop.port, "paced", FAST_CALLERS, WINDOW_S)
    found = []
    for number in range(PAIRS):
        p50 = {}
        # Either comes first in turn, so that a machine that slows down favours neither.
        for with_slow in (False, True) if number % 2 else (True, False):
            with callers.slow_reader(iop.port) if with_slow else nullcontext():
                p50[with_slow] = driver.run(order).p50_ms
        found.append((p50[False], p50[True]))
    return found


def run(large_bytes: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        measure.load() as driver,
        measure.mock_upstream(Path(folder)) as upstream,
        site.running(Group(Path(folder) / "iop"), upstream.port) as iop,
    ):
        measure.warm_up(driver, "iop", iop)
        found = pairs(driver, iop)
        before = {name: processes.resident_mib(pids) for name, pids in iop.families.items()}
        began = time.monotonic()
        size = callers.whole(iop.port, large_bytes)
        took_s = time.monotonic() - began
        with callers.ask(iop.port, "large", large_bytes=large_bytes, receive_buffer=4096) as unread:
            unread.recv(1)
            time.sleep(5)
        most = {name: processes.peak_mib(pids) for name, pids in iop.families.items()}
    return {
        "alone_p50_ms": round(statistics.median(alone for alone, _ in found), 1),
        "beside_slow_p50_ms": round(statistics.median(beside for _, beside in found), 1),
        "ratio": round(statistics.median(beside / alone for alone, beside in found), 3),
        "large_answer_mib": round(size / 2**20),
        "large_answer_mib_a_second": round(size / 2**20 / took_s, 1),
        "resident_before_mib": {name: round(value, 1) for name, value in before.items()},
        "most_resident_mib": {name: round(value, 1) for name, value in most.items()},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description="What one slow caller costs the others")
    arguments.add_argument("--large-mb", type=int, default=1000, help="length of the long answer")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    result = run(options.large_mb * 1_000_000)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
