"""What processes have used: CPU to the nanosecond, and memory, each with its children.

It reads the kernel's own books and knows nothing of what the processes do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_PROC = Path("/proc")
_CPUCLOCK_SCHED = 2
_MOMENT_S, _QUIET = 0.25, 0.04


def family(root: int) -> list[int]:
    """This process and all that descend from it now."""
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of these processes since each began, user and system, all threads."""
    return sum(time.clock_gettime(_clock_of(pid)) for pid in pids)


def wait_quiet(pids: Sequence[int], within_s: float = 30.0) -> None:
    """Wait until they have nothing left to do: hardly any CPU for a moment, or the time is over."""
    deadline = time.monotonic() + within_s
    before = cpu_s(pids)
    while time.monotonic() < deadline:
        time.sleep(_MOMENT_S)
        now = cpu_s(pids)
        if now - before < _QUIET * _MOMENT_S:
            return
        before = now


def _clock_of(pid: int) -> int:
    # What clock_getcpuclockid(3) returns. /proc/PID/stat has the same in steps of 10 ms.
    return (~pid << 3) | _CPUCLOCK_SCHED


def peak_mib(pids: Iterable[int]) -> float:
    """The most that each has ever held resident, added up; what they share counts for each."""
    return sum(_kib(_PROC / str(pid) / "status", "VmHWM:") for pid in pids) / 1024


def resident_mib(pids: Iterable[int]) -> float:
    """What each holds resident now, added up."""
    return sum(_kib(_PROC / str(pid) / "status", "VmRSS:") for pid in pids) / 1024


def pss_mib(pids: Iterable[int]) -> float:
    """What they hold now; a page that several processes share counts once among them."""
    return sum(_kib(_PROC / str(pid) / "smaps_rollup", "Pss:") for pid in pids) / 1024


def _kib(file: Path, which: str) -> int:
    return int(file.read_text().partition(which)[2].split()[0])
