"""What a refresh does to the streams that run meanwhile: nothing, or how much.

    python -m bench.refresh [--pairs 40] [--json]      (what many nodes cost: bench.refresh_nodes)

Real processes: one edge, two nodes, a paced upstream. A steady load of streams runs throughout.
Windows with refreshes alternate with quiet ones, in random order within each pair, so that both
kinds meet the same machine. Every refresh changes both nodes' payloads, so both nodes build and
swap a registry each time, ten times a second. Every answer is compared to the one that is due,
byte by byte: whatever is missing, cut or other is counted. The latencies are the time to the first
token and the longest pause within a stream; each kind's p99 is over all its windows, and the
interval of the ratio is a bootstrap over pairs of windows. The reach: nothing lost, and a ratio of
at most 1.2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop
import yaml

from demo.processes import Group
from demo.site import Site

STREAMS = 8
TOKENS = 40
PACE_MS = 5
WINDOW_S = 0.5
REFRESHES = 5
"""Of one window."""

RESAMPLES = 2000
SEED = 1


def config(site: Site, upstream: str, capacity: int) -> dict[str, Any]:
    nodes = [
        {
            "id": node_id,
            "token": {"sha256": site.token_sha256(node_id)},
            "adapters": [{"key": "small", "type": "openai_compat", "base_url": upstream}],
            "providers": [
                {
                    "id": f"{node_id}-p",
                    "type": "llama_cpp",
                    "category": "local_inference",
                    "adapter": "small",
                    "models": ["small"],
                    "capacity": capacity,
                }
            ],
        }
        for node_id in ("a", "b")
    ]
    models = [{"id": "m", "providers": {"a-p": "small", "b-p": "small"}}]
    return {**site.listeners(), "logging": {"level": "warning"}, "models": models, "nodes": nodes}


# --- the load ---------------------------------------------------------------------------------


@dataclass
class Window:
    """What the runs that began in it met, in milliseconds."""

    first_token: list[float] = field(default_factory=list)
    longest_pause: list[float] = field(default_factory=list)


@dataclass
class Load:
    """A steady number of streams. Each run counts for the window in which it began."""

    url: str
    window: Window | None = None
    runs: Counter[str] = field(default_factory=Counter)
    answer: bytes | None = None
    is_over: bool = False

    async def stream(self) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
        async with aiohttp.ClientSession() as http:
            while not self.is_over:
                window = self.window
                try:
                    await self._run(http, body, window)
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.runs[f"dropped: {type(error).__name__}"] += 1

    async def _run(
        self, http: aiohttp.ClientSession, body: dict[str, Any], window: Window | None
    ) -> None:
        received = bytearray()
        began = last = time.perf_counter()
        first = longest = 0.0
        async with http.post(self.url, json=body) as answer:
            if answer.status != 200:
                self.runs[f"failed: {answer.status}"] += 1
                return
            async for chunk in answer.content.iter_any():
                now = time.perf_counter()
                if received:
                    longest = max(longest, now - last)
                else:
                    first = now - began
                last = now
                received += chunk
        if not received.endswith(b"data: [DONE]\n\n"):
            self.runs["truncated"] += 1
            return
        if self.answer is None:
            self.answer = bytes(received)
        self.runs["completed" if bytes(received) == self.answer else "other bytes"] += 1
        if window is not None:
            window.first_token.append(first * 1000)
            window.longest_pause.append(longest * 1000)


async def measure(pairs: int) -> dict[str, Any]:
    order = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        try:
            arguments = ("--tokens", str(TOKENS), "--pace-ms", str(PACE_MS))
            upstream = group.start_announced("upstream", "demo.small_upstream", *arguments)
            site = Site(group)
            candidates = [
                yaml.safe_dump(config(site, upstream["listening"], STREAMS + more))
                for more in (0, 1)
            ]
            site.config.write_text(candidates[0])
            site.start_edge()
            for node_id in ("a", "b"):
                site.start_node(node_id)
            site.wait_connected("a", "b")
            return await _windows(site, candidates, pairs, order)
        finally:
            group.stop()


async def _windows(
    site: Site, candidates: Sequence[str], pairs: int, order: random.Random
) -> dict[str, Any]:
    load = Load(f"{site.openai_url}/chat/completions")
    streams = [asyncio.create_task(load.stream()) for _ in range(STREAMS)]
    await asyncio.sleep(2 * WINDOW_S)
    quiet: list[Window] = []
    refreshed: list[Window] = []
    applies: list[float] = []
    async with aiohttp.ClientSession(site.admin_url) as admin:
        for _ in range(pairs):
            kinds = [(quiet, False), (refreshed, True)]
            order.shuffle(kinds)
            for windows, has_refreshes in kinds:
                load.window = Window()
                windows.append(load.window)
                ends_at = time.perf_counter() + WINDOW_S
                for number in range(REFRESHES if has_refreshes else 0):
                    site.config.write_text(candidates[(len(applies) + 1) % 2])
                    applies.append(await _apply(admin))
                    due = ends_at - WINDOW_S * (1 - (number + 1) / REFRESHES)
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await asyncio.sleep(max(0.0, ends_at - time.perf_counter()))
        load.window = None
        load.is_over = True
        await asyncio.gather(*streams)
    lost = sum(load.runs.values()) - load.runs["completed"]
    return {
        "refreshes": len(applies),
        "runs": dict(load.runs),
        "lost_runs": lost,
        "apply_ms": round(median(applies), 1),
        **_compare("first_token", quiet, refreshed),
        **_compare("longest_pause", quiet, refreshed),
        "load_average": os.getloadavg()[0],
    }


async def _apply(admin: aiohttp.ClientSession) -> float:
    began = time.perf_counter()
    async with admin.post("/refresh", json={"mode": "apply"}) as answer:
        result = await answer.json()
    outcomes = {node["outcome"] for node in result["nodes"]}
    assert (result["status"], outcomes) == ("applied", {"acknowledged"}), result
    return (time.perf_counter() - began) * 1000


# --- figures ----------------------------------------------------------------------------------


def _compare(name: str, quiet: list[Window], refreshed: list[Window]) -> dict[str, Any]:
    """Medians and p99 in milliseconds, quiet and refreshing, the ratio of the p99, and its 95 %
    interval over pairs of windows."""
    pairs = [(getattr(q, name), getattr(r, name)) for q, r in zip(quiet, refreshed, strict=True)]
    order = random.Random(SEED)
    ratios = sorted(_ratio(order.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return {
        f"{name}_p50_ms": [
            round(median([one for pair in pairs for one in pair[kind]]), 2) for kind in (0, 1)
        ],
        f"{name}_p99_quiet_ms": round(p99([one for q, _ in pairs for one in q]), 2),
        f"{name}_p99_refreshing_ms": round(p99([one for _, r in pairs for one in r]), 2),
        f"{name}_ratio": round(_ratio(pairs), 3),
        f"{name}_ratio_95": [
            round(ratios[int(RESAMPLES * 0.025)], 3),
            round(ratios[int(RESAMPLES * 0.975)], 3),
        ],
    }


def _ratio(pairs: Sequence[tuple[list[float], list[float]]]) -> float:
    return p99([one for _, r in pairs for one in r]) / p99([one for q, _ in pairs for one in q])


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="of windows, half a second each")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    figures = uvloop.run(measure(options.pairs))
    if options.as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<34} {value}")


if __name__ == "__main__":
    main()
