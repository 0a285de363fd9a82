"""Who takes part: each a name and a way to start it before the mock upstream.

What has to be fetched is fetched by `installs`; one that cannot be had here says so in a word and
is left out. Every contender gets a folder and an environment of its own, and shares nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.speed import processes, site
from demo.processes import Group


class Absent(Exception):
    """It cannot be had here. Says why, in a word."""


@dataclass(frozen=True)
class Running:
    """A contender that answers: where, and the processes whose cost is its cost."""

    port: int
    parts: dict[str, int] = field(default_factory=dict)  # each process by a short name: its pid
    path: str = "/v1/chat/completions"

    @property
    def pids(self) -> list[int]:
        """All its processes now, those that its own have started among them."""
        return processes.family(self.parts.values())


Start = Callable[[Group, int], Running]
"""Given its group and the upstream's port. Raises Absent or StartFailed."""


def direct(group: Group, upstream: int) -> Running:
    """No proxy at all: what the others' latency is measured from."""
    return Running(upstream)


def iop(group: Group, upstream: int) -> Running:
    made = site.start(group, upstream)
    assert made.edge is not None
    return Running(made.ports.openai, {"edge": made.edge.pid, "node": made.nodes["a"].pid})


def floor(group: Group, upstream: int) -> Running:
    edge = group.start_announced("edge", "bench.speed.floor_edge")
    command = [sys.executable, "-m", "bench.speed.floor_node", str(edge["grpc"]), str(upstream)]
    group.start("node", command)
    return Running(edge["http"], {process.name: process.pid for process in group.processes})


def naive(group: Group, upstream: int) -> Running:
    announced = group.start_announced("naive", "bench.speed.naive", str(upstream))
    return Running(announced["port"], {"naive": group.processes[0].pid})


STARTS: dict[str, Start] = {"direct": direct, "iop": iop, "floor": floor, "naive": naive}
"""In the order in which they are measured and shown."""
