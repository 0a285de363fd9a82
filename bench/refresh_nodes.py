"""What a refresh costs an edge with many nodes.

    python -m bench.refresh_nodes [--nodes 1000] [--providers 1] [--rounds 10] [--json]

One process is the edge, another holds all node sessions over loopback (bench.idle_nodes) and
acknowledges whatever it is sent at once. The rounds alternate between an
apply that changes every node's payload and one bare message to every node with one back, so that
both meet the same disturbances; given are medians over the rounds.

A standstill is the longest stretch between two looks of the loop, as CPU time of the whole
process: what the process itself did meanwhile, in whatever thread, and not what the machine did
with its cores. Given are the median and the worst over the rounds.

The reach: the last acknowledgement after at most 3 times the bare messages, 100 KB of memory for a
connected node, and no standstill over 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench import idle_nodes
from demo.processes import free_ports
from iop_edge import app
from iop_edge.config.load import load
from iop_edge.runtime.reloader import RefreshRequest
from iop_edge.runtime.sources import read_sources
from iop_edge.runtime.undisturbed import settle
from iop_shared import logs

KEY = b"one key for the bench"


def config(port: int, nodes: int, capacity: int, providers: int) -> bytes:
    at = {name: {"listen": "127.0.0.1:0"} for name in ("bootstrap", "admin", "metrics")}
    at["server"] = {"listen": f"127.0.0.1:{port}"}
    return idle_nodes.config(at, nodes, capacity=capacity, providers=providers)


class Standstill:
    """The longest stretch between two looks of the loop since the last `take`, in CPU ms."""

    PAUSE_S = 0.001  # a shorter one would be none on uvloop, and the loop would spin

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst = 0.0
        self._last = time.process_time()
        self._timer = self._loop.call_later(self.PAUSE_S, self._look)

    def _look(self) -> None:
        now = time.process_time()
        self._worst = max(self._worst, now - self._last)
        self._last = now
        self._timer = self._loop.call_later(self.PAUSE_S, self._look)

    def take(self) -> float:
        worst, self._worst = self._worst, 0.0
        self._last = time.process_time()
        return worst * 1000

    def stop(self) -> None:
        self._timer.cancel()


def rss_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


async def until(claim: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not claim():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def edge_with_nodes(
    nodes: int, providers: int = 1
) -> AsyncIterator[tuple[app.Edge, Path, int, float]]:
    """An edge with all its nodes connected, its file and port, and KB for each connected node."""
    logs.configure("error", "json")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "edge.yaml"
        [port] = free_ports(1)
        file.write_bytes(config(port, nodes, 1, providers))
        loaded = load(read_sources([file], fingerprint_key=KEY))
        edge = app.Edge(loaded, [file], KEY)
        settle()  # as `app.serve` does
        async with edge.serving():
            gc.collect()
            before = rss_kb()
            holder = await asyncio.create_subprocess_exec(
                *idle_nodes.command(nodes, port), stdin=asyncio.subprocess.PIPE
            )
            try:
                await until(
                    lambda: sum(one.state == "connected" for one in edge.hub.views()) == nodes
                )
                gc.collect()
                await asyncio.sleep(1)
                yield edge, file, port, (rss_kb() - before) / nodes
            finally:
                assert holder.stdin is not None
                holder.stdin.close()
                await holder.wait()


async def bare_round(edge: app.Edge) -> float:
    """One message to every node and one back, over the same sessions; milliseconds."""
    loop = asyncio.get_running_loop()
    sessions = [node.session for node in edge.hub._nodes.values() if node.session is not None]
    began = time.perf_counter()
    answers = []
    for position, session in enumerate(sessions, start=1):
        answer: asyncio.Future[None] = loop.create_future()
        session._probes.append(answer)
        session._beat()
        answers.append(answer)
        if position % 32 == 0:
            await asyncio.sleep(0)
    for answer in answers:
        await answer
    took = (time.perf_counter() - began) * 1000
    for session in sessions:
        session._probes.clear()
    return took


async def measure(nodes: int, rounds: int, providers: int) -> dict[str, Any]:
    async with edge_with_nodes(nodes, providers) as (edge, file, port, kb_per_node):
        still = Standstill()
        swapped_at = 0.0
        put_in_effect = edge.reloader._put_in_effect

        def noting(candidate: Any) -> None:
            nonlocal swapped_at
            swapped_at = time.perf_counter()
            put_in_effect(candidate)

        edge.reloader._put_in_effect = noting  # type: ignore[method-assign]
        figures: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds):
            file.write_bytes(config(port, nodes, 2 + number % 2, providers))
            still.take()
            await asyncio.sleep(0.5)
            figures["quiet_standstill_ms"].append(still.take())
            figures["bare_ms"].append(await bare_round(edge))
            figures["bare_standstill_ms"].append(still.take())
            await asyncio.sleep(0.2)
            still.take()
            began = time.perf_counter()
            result = await edge.reloader.refresh(RefreshRequest(mode="apply"))
            ended = time.perf_counter()
            figures["apply_standstill_ms"].append(still.take())
            outcomes = {node.outcome for node in result.nodes}
            assert (result.status, outcomes) == ("applied", {"acknowledged"}), result.errors
            figures["apply_ms"].append((ended - began) * 1000)
            figures["push_ms"].append((ended - swapped_at) * 1000)
            # A full collection that the refresh held back may come now.
            await asyncio.sleep(0.5)
            figures["after_standstill_ms"].append(still.take())
        still.stop()
    times = {name: figures[name] for name in ("bare_ms", "push_ms", "apply_ms")}
    return {
        "nodes": nodes,
        "providers": nodes * providers,
        "rounds": rounds,
        "kb_per_node": round(kb_per_node, 1),
        **{name: round(median(values), 1) for name, values in times.items()},
        "push_over_bare": _ratio(figures["push_ms"], figures["bare_ms"]),
        "apply_over_bare": _ratio(figures["apply_ms"], figures["bare_ms"]),
        **{
            name: [round(median(values), 1), round(max(values), 1)]
            for name, values in figures.items()
            if name.endswith("standstill_ms")
        },
        "load_average": round(os.getloadavg()[0], 2),
    }


def _ratio(ones: list[float], others: list[float]) -> float:
    return round(median(one / other for one, other in zip(ones, others, strict=True)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--providers", type=int, default=1, help="of each node")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    figures = uvloop.run(measure(options.nodes, options.rounds, options.providers))
    if options.as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<24} {value}")


if __name__ == "__main__":
    main()
