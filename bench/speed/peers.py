"""Who takes part: each a name and a way to start it before the mock upstream.

Every contender gets a folder of its own and shares nothing but the upstream. One that cannot be had
here raises `Absent` and is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from bench.speed import others, site
from bench.speed.running import Running
from demo.processes import Group

Start = Callable[[Group, int], Running]
"""Given its group and the upstream's port. Raises Absent or StartFailed."""


def floor(link: str, group: Group, upstream: int) -> Running:
    edge = group.start_announced("edge", "bench.speed.floor_edge", link)
    ports = [str(edge["grpc"]), str(upstream)]
    command = [sys.executable, "-m", "bench.speed.floor_node", link, *ports]
    group.start("node", command)
    return Running(edge["http"], {process.name: process.pid for process in group.processes})


def naive(group: Group, upstream: int) -> Running:
    announced = group.start_announced("naive", "bench.speed.naive", str(upstream))
    return Running(announced["port"], {"naive": group.processes[0].pid})


DIRECT = "direct"
"""No proxy at all: the upstream itself."""

OTHERS = ("nginx", "vllm-router", "portkey", "litellm")
"""Those whose failure only leaves them out; one of ours ends the bench."""

STARTS: dict[str, Start] = {
    "iop": site.start,
    "floor": partial(floor, "library"),
    "floor-own": partial(floor, "own"),
    "nginx": others.nginx,
    "vllm-router": others.vllm_router,
    "naive": naive,
    "portkey": others.portkey,
    "litellm": others.litellm,
}
"""In the order in which they are measured and shown."""
