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
from bench.speed.running import Absent, Running
from bench.speed.shapes import SHAPES, Memory, Sample
from demo.processes import ROOT, Group, StartFailed

_WARM_UP_S = 0.8
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
def mock_upstream(folder: Path) -> Iterator[Running]:
    """The mock upstream, which is a contender too: what all others are later than."""
    group = Group(folder / "upstream")
    try:
        port = group.start_announced("upstream", "bench.speed.upstream")["port"]
        yield Running(int(port), {"upstream": group.processes[0].pid})
    finally:
        group.stop()


@contextmanager
def contenders(
    names: Sequence[str], folder: Path, upstream: Running, driver: Load, say: Say
) -> Iterator[tuple[dict[str, Running], dict[str, str]]]:
    """All of them before the upstream, warm; and of those that are left out, why."""
    with ExitStack() as stack:
        running, absent = {}, {}
        for name in names:
            group = Group(folder / name)
            stack.callback(group.stop)
            try:
                started = peers.STARTS[name](group, upstream.port)
                warm_up(driver, name, started)
                running[name] = started
            except (Absent, StartFailed, Failed) as why:
                if name not in peers.OTHERS:
                    raise
                absent[name] = str(why)
                say(f"{name} is left out: {why}")
        yield running, absent


def warm_up(driver: Load, name: str, running: Running) -> None:
    """A little of every kind. Raises Failed where an answer is not the one that is due."""
    for kind in ("plain", "burst", "paced"):
        _one(driver, name, Order(running.port, kind, 16, _WARM_UP_S, running.headers))


def rounds(
    running: dict[str, Running],
    absent: dict[str, str],
    driver: Load,
    *,
    shapes: Sequence[str],
    repeats: int,
    seconds: float,
    say: Say,
) -> list[Sample]:
    """What every contender costs under every shape, in so many interleaved rounds.

    A peer whose answer is not the one that is due moves to the absent; for one of ours Failed is
    raised.
    """
    samples = []
    for number in range(repeats):
        for shape in shapes:
            names = list(running)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                try:
                    sample = measure(driver, name, running[name], shape, number, seconds)
                except Failed as why:
                    if name not in peers.OTHERS:
                        raise
                    del running[name]
                    absent[name] = str(why)
                    say(f"{name} is left out: {why}")
                    continue
                samples.append(sample)
                say(_line(sample))
    return [one for one in samples if one.contender in running]


def measure(
    driver: Load, name: str, running: Running, shape: str, number: int, seconds: float
) -> Sample:
    """One contender under one shape, once."""
    kind, in_flight = SHAPES[shape]
    figures = _one(
        driver,
        name,
        Order(running.port, kind, in_flight, seconds, running.headers, running.families),
    )
    each_us = {part: used / figures.requests * 1e6 for part, used in figures.cpu_s.items()}
    return Sample(
        contender=name,
        shape=shape,
        round=number,
        requests=figures.requests,
        cpu_us=sum(each_us.values()),
        parts_us=each_us,
        p50_ms=figures.p50_ms,
        p99_ms=figures.p99_ms,
        first_byte_ms=figures.first_byte_p50_ms,
    )


def _one(driver: Load, name: str, order: Order) -> Figures:
    try:
        return driver.run(order)
    except Failed as failed:
        raise Failed(f"{name}, {order.kind} at {order.in_flight}: {failed}") from None


def memory(running: Mapping[str, Running]) -> dict[str, Memory]:
    """What each holds now and has held at most."""
    return {
        name: Memory(processes.peak_mib(one.pids), processes.pss_mib(one.pids))
        for name, one in running.items()
    }


def _line(sample: Sample) -> str:
    parts = " + ".join(f"{part} {us:.0f}" for part, us in sample.parts_us.items())
    return (
        f"{sample.round + 1}  {sample.shape:8} {sample.contender:12} {sample.requests:7} requests"
        f"  {sample.cpu_us:9.1f} µs CPU {f'({parts})' if parts else '':24}"
        f" p50 {sample.p50_ms:8.3f} ms  p99 {sample.p99_ms:8.3f} ms"
        f"  first byte {sample.first_byte_ms:7.3f} ms"
    )
