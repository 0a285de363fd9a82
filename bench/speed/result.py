"""What one run of the bench has found: everything that is printed, drawn and kept comes from it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from bench.speed.shapes import Memory, Sample


class Machine(msgspec.Struct, frozen=True):
    """What the figures were taken on. Absolute times belong to it; ratios hardly do."""

    processor: str
    cores: int
    python: str
    load_average: float
    """Of the last minute, when the bench began: what else the machine was doing."""


class Result(msgspec.Struct, frozen=True):
    """All of one run."""

    machine: Machine
    samples: list[Sample]
    memory: dict[str, Memory]
    limits: dict[str, list[float]]
    absent: dict[str, str]
    """What was left out, and why."""


def this_machine() -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        load_average=round(os.getloadavg()[0], 2),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
