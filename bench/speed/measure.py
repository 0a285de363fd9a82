"""Starts everything, drives it round by round, and hands back what was seen.

The rounds are interleaved: in each, every shape is put to every contender in turn, and each round
begins with another one. What disturbs the machine for a while so meets them all, and the ratios of
one round belong together.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.speed import peers, processes
from bench.speed.load import Figures, Order
from bench.speed.peers import Running
from bench.speed.shapes import SHAPES, Memory, Sample
from demo.processes import ROOT, Group

_WARM_UP_S = 0.4
Say = Callable[[str], None]


class Failed(Exception):
    """A contender gave an answer that is not the one that is due."""


class Load:
    """The process that makes the load. It ends when this one closes its input, or ends."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    def run(self, order: Order) -> Figures:
        """Carry out one order. Raises Failed where an answer was not the one that is due."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(msgspec.json.encode(order) + b"\n")
        self._popen.stdin.flush()
        figures = msgspec.json.decode(self._popen.stdout.readline(), type=Figures)
        if figures.error is not None:
            raise Failed(figures.error)
        return figures


@contextmanager
def load() -> Iterator[Load]:
    command = [sys.executable, "-m", "bench.speed.load"]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    with popen:
        yield Load(popen)


@contextmanager
def mock_upstream(folder: Path) -> Iterator[int]:
    """The mock upstream's port."""
    group = Group(folder / "upstream")
    try:
        yield int(group.start_announced("upstream", "bench.speed.upstream")["port"])
    finally:
        group.stop()


@contextmanager
def contenders(
    names: Sequence[str], folder: Path, upstream: int, say: Say
) -> Iterator[dict[str, Running]]:
    """All of them before the upstream; those that cannot be had are named and left out."""
    with ExitStack() as stack:
        running = {}
        for name in names:
            group = Group(folder / name)
            stack.callback(group.stop)
            try:
                running[name] = peers.STARTS[name](group, upstream)
            except peers.Absent as why:
                say(f"{name} is left out: {why}")
        yield running


def rounds(
    running: Mapping[str, Running],
    driver: Load,
    *,
    shapes: Sequence[str],
    repeats: int,
    seconds: float,
    say: Say,
) -> list[Sample]:
    """What every contender costs under every shape, in so many interleaved rounds.

    Raises Failed for an answer that is not the one that is due.
    """
    names = list(running)
    for name in names:
        for kind in sorted({SHAPES[shape].kind for shape in shapes}):
            _one(driver, name, running[name], Order(running[name].port, kind, 8, _WARM_UP_S))
    samples = []
    for number in range(repeats):
        first = number % len(names)
        for shape in shapes:
            for name in names[first:] + names[:first]:
                sample = measure(driver, name, running[name], shape, number, seconds)
                samples.append(sample)
                say(_line(sample))
    return samples


def measure(
    driver: Load, name: str, running: Running, shape: str, number: int, seconds: float
) -> Sample:
    """One contender under one shape, once."""
    kind, in_flight = SHAPES[shape]
    order = Order(running.port, kind, in_flight, seconds, running.path)
    parts = {part: [pid] for part, pid in running.parts.items()}
    pids = running.pids
    before, before_parts = processes.cpu_s(pids), {p: processes.cpu_s(parts[p]) for p in parts}
    figures = _one(driver, name, running, order)
    used_s = processes.cpu_s(pids) - before
    used_parts = {p: processes.cpu_s(parts[p]) - before_parts[p] for p in parts}
    return Sample(
        contender=name,
        shape=shape,
        round=number,
        requests=figures.requests,
        cpu_us=used_s / figures.requests * 1e6,
        parts_us={part: used / figures.requests * 1e6 for part, used in used_parts.items()},
        p50_ms=figures.p50_ms,
        p99_ms=figures.p99_ms,
        first_byte_ms=figures.first_byte_p50_ms,
    )


def _one(driver: Load, name: str, running: Running, order: Order) -> Figures:
    try:
        return driver.run(order)
    except Failed as failed:
        raise Failed(f"{name}, {order.kind} at {order.in_flight}: {failed}") from None


def memory(running: Mapping[str, Running]) -> dict[str, Memory]:
    """What each holds now and has held at most, in contenders that are processes of their own."""
    return {
        name: Memory(processes.peak_mib(pids), processes.pss_mib(pids))
        for name, one in running.items()
        if (pids := one.pids)
    }


def _line(sample: Sample) -> str:
    parts = " + ".join(f"{part} {us:.0f}" for part, us in sample.parts_us.items())
    return (
        f"{sample.round + 1}  {sample.shape:8} {sample.contender:12} {sample.requests:7} requests"
        f"  {sample.cpu_us:9.1f} µs CPU {f'({parts})' if parts else '':24}"
        f" p50 {sample.p50_ms:8.3f} ms  p99 {sample.p99_ms:8.3f} ms"
        f"  first byte {sample.first_byte_ms:7.3f} ms"
    )
