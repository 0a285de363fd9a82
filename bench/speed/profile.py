"""Where a contender's Python spends its time: a flame graph of each process, drawn by py-spy."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.speed import installs
from bench.speed.load import Order
from bench.speed.measure import Load, Say
from bench.speed.running import Running
from bench.speed.shapes import SHAPES

_RATE = 400  # looks a second
_AT_BOTH_ENDS_S = 1.0


def record(
    running: Running, driver: Load, *, shapes: Sequence[str], seconds: float, folder: Path, say: Say
) -> None:
    """Write `<shape>-<process>.svg` into the folder. Raises Absent where py-spy cannot be had.

    Looking needs the right to trace another process, which root has. It costs the processes
    something, so nothing of this is in any figure.
    """
    py_spy = installs.py_spy()
    folder.mkdir(parents=True, exist_ok=True)
    for shape in shapes:
        kind, in_flight = SHAPES[shape]
        drawing = {
            folder / f"{shape}-{part}.svg": ["--pid", str(pid)]
            for part, pid in running.parts.items()
        }
        how = ["--rate", str(_RATE), "--duration", str(round(seconds)), "--nonblocking"]
        looking = [
            subprocess.Popen(
                [py_spy, "record", *how, *whom, "--output", file],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for file, whom in drawing.items()
        ]
        order = Order(
            running.port, kind, in_flight, round(seconds) + _AT_BOTH_ENDS_S, running.headers
        )
        driver.run(order)
        for file, one in zip(drawing, looking, strict=True):
            _, errors = one.communicate()
            say(str(file) if one.returncode == 0 else f"py-spy: {errors.decode().strip()}")
