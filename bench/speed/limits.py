"""IOP alone at its limits: a slow caller, idle sessions, open streams, providers, a long queue.

Each of these is one figure, taken several times on processes started for it, and needs no peer.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from bench import idle_nodes
from bench.speed import callers, measure, processes, site
from bench.speed.load import Figures, Order
from bench.speed.running import Absent, Running
from demo.processes import Group
from demo.site import Site

SESSIONS = STREAMS = 1000
PROVIDERS = 2, 1000
_SLOTS = 16  # for the long queue: so many run, all others wait
PENDING = 10, 9_900
"""An edge takes 10,000 connections; those that run and what has just been closed count too."""
_MB_OF_MIB = 2**20 / 1e6
_FILES_NEEDED = PENDING[1] + 500  # of the load and of the edge each


class Rig(NamedTuple):
    """What each of them is given. `folder()` is a new one each time."""

    folder: Callable[[], Path]
    driver: measure.Load
    upstream: Running
    seconds: float

    @contextmanager
    def iop(self, **of_config: int) -> Iterator[Running]:
        with site.running(Group(self.folder()), self.upstream.port, **of_config) as running:
            measure.warm_up(self.driver, "iop", running)
            yield running

    def plain(self, iop: Running, in_flight: int, *, slots: int = 0) -> Figures:
        processes.wait_quiet(iop.pids)
        return self.driver.run(
            Order(
                iop.port,
                "plain",
                in_flight,
                self.seconds,
                processes=iop.families,
                slots=slots,
            )
        )


def others_beside_a_slow_reader(rig: Rig, repeats: int) -> Iterator[float]:
    """The p99 of 16 callers beside one who reads 1 KB a second, as a multiple of theirs alone."""
    with rig.iop() as iop:
        for number in range(repeats):
            p99 = {}
            for is_slow in (False, True) if number % 2 else (True, False):
                with callers.slow_reader(iop.port) if is_slow else nullcontext():
                    p99[is_slow] = rig.plain(iop, 16).p99_ms
            yield p99[True] / p99[False]


def idle_sessions_mb(rig: Rig, repeats: int) -> Iterator[float]:
    """MB that an edge holds resident with 1,000 node sessions that do nothing."""
    for _ in range(repeats):
        group = Group(rig.folder())
        made = Site(group)
        made.config.write_bytes(idle_nodes.config(made.listeners(), SESSIONS))
        names = [f"n{number}" for number in range(SESSIONS)]
        try:
            edge = made.start_edge()
            with idle_nodes.holding(SESSIONS, made.ports.grpc):
                made.wait_connected(*names, timeout_s=120)
                processes.wait_quiet([edge.pid])
                yield processes.resident_mib([edge.pid]) * _MB_OF_MIB
        finally:
            group.stop()


def open_stream_kb(rig: Rig, repeats: int) -> Iterator[float]:
    """KB that each of 1,000 open streams adds to what edge and node hold resident together."""
    for _ in range(repeats):
        with rig.iop(capacity=STREAMS) as iop:
            processes.wait_quiet(iop.pids)
            before = processes.resident_mib(iop.pids)
            with callers.open_streams(iop.port, STREAMS):
                processes.wait_quiet(iop.pids)
                added = processes.resident_mib(iop.pids) - before
                yield added * _MB_OF_MIB * 1000 / STREAMS


def growth_with_providers(rig: Rig, repeats: int) -> Iterator[float]:
    """CPU of a plain request with 1,000 providers of its model, as a multiple of that with two."""
    few, many = PROVIDERS
    with rig.iop(providers=few) as small, rig.iop(providers=many) as large:
        yield from _ratios(
            repeats, lambda: _cpu_us(rig.plain(small, 16)), lambda: _cpu_us(rig.plain(large, 16))
        )


def growth_with_pending(rig: Rig, repeats: int) -> Iterator[float]:
    """CPU of a plain request that waited among 9,900, as a multiple of that among ten."""
    few, many = PENDING
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < _FILES_NEEDED:
        raise Absent(f"it needs {_FILES_NEEDED} open files, and {allowed} are allowed here")
    with rig.iop(capacity=_SLOTS // 2, pending=2 * many) as iop:
        yield from _ratios(
            repeats,
            lambda: _cpu_us(rig.plain(iop, few, slots=_SLOTS)),
            lambda: _cpu_us(rig.plain(iop, many, slots=_SLOTS)),
        )


def _cpu_us(figures: Figures) -> float:
    return sum(figures.cpu_s.values()) / figures.requests * 1e6


def _ratios(repeats: int, few: Callable[[], float], many: Callable[[], float]) -> Iterator[float]:
    """Either comes first in turn, so that a machine that slows down favours neither."""
    for number in range(repeats):
        if number % 2:
            small, large = few(), many()
        else:
            large, small = many(), few()
        yield large / small


LIMITS: dict[str, Callable[[Rig, int], Iterator[float]]] = {
    "slow-reader": others_beside_a_slow_reader,
    "idle-sessions": idle_sessions_mb,
    "open-streams": open_stream_kb,
    "growth-providers": growth_with_providers,
    "growth-pending": growth_with_pending,
}
