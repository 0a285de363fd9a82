"""What it costs to check a config: time, growth, memory, and how long an event loop stands still.

For 100, 1,000 and 10,000 providers (about 50 to a node, three to a model). Times are medians, and
the ratio is to `yaml.load` with the C loader over the same bytes in the same run, the collector at
its defaults. The reach: a ratio of at most 1, growth no worse than linear, and a loop that stands
still for at most 20 ms at 1,000 and 40 ms at 10,000 providers while a thread validates.

    .venv/bin/python bench/config.py [--json]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import yaml

from iop_edge.config.load import SecretFile, SourceFile, Sources, load
from iop_edge.runtime.undisturbed import interpreter

SIZES = (100, 1_000, 10_000)
RUNS = {100: 25, 1_000: 11, 10_000: 5}
PROVIDERS_OF_NODE = 50
PROVIDERS_OF_MODEL = 3


def config_text(providers: int) -> str:
    """A valid config of this many providers."""
    lines = ["edge: {id: bench}", "provider_pool: {max_queue: 64}", "models:"]
    for model in range(-(-providers // PROVIDERS_OF_MODEL)):
        first = model * PROVIDERS_OF_MODEL
        named = range(first, min(first + PROVIDERS_OF_MODEL, providers))
        lines += [
            f"  - id: model-{model}",
            f"    display_name: Model {model}",
            "    providers: {" + ", ".join(f"p{one}: served-{model}" for one in named) + "}",
            "    context_window_tokens: 131072",
            "    default_max_tokens: 2048",
        ]
    lines.append("nodes:")
    for node in range(-(-providers // PROVIDERS_OF_NODE)):
        lines += [f"  - id: node-{node}", f'    token: {{sha256: "{node:064x}"}}', "    adapters:"]
        lines += [
            f"      - {{key: a{one}, type: openai_compat, base_url: http://10.0.0.{one}:8000}}"
            for one in range(5)
        ]
        lines.append("    providers:")
        first = node * PROVIDERS_OF_NODE
        for one in range(first, min(first + PROVIDERS_OF_NODE, providers)):
            lines += [
                f"      - id: p{one}",
                "        type: vllm",
                "        category: local_inference",
                f"        adapter: a{one % 5}",
                f'        models: ["served-{one // PROVIDERS_OF_MODEL}"]',
                "        capacity: 8",
                "        long_context_capacity: 2",
                "        total_context_tokens: 262144",
                "        priority: 0",
                "        enabled: true",
                "        health: healthy",
            ]
    return "\n".join(lines) + "\n"


def candidate(text: str) -> Sources:
    """The text as a candidate without environment or secret files."""

    def read_secret(path: str) -> SecretFile:
        raise AssertionError(path)

    return Sources(
        files=(SourceFile("edge.yaml", text.encode()),),
        environment={},
        read_secret=read_secret,
        fingerprint_key=b"bench",
    )


def took_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


async def standstill_ms(work: Callable[[], object]) -> float:
    """The longest time between two turns of this loop while `work` runs in a thread, with the
    interpreter set as a running edge sets it for a refresh."""
    longest = 0.0
    with interpreter.undisturbed():
        task = asyncio.create_task(asyncio.to_thread(work))
        last = time.perf_counter()
        while not task.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now
        await task
    return longest * 1e3


def peak_mib(providers: int) -> float:
    """Peak memory of a process of its own that checks once, less that of one that checks `{}`."""
    return _peak_kib(providers) / 1024 - _peak_kib(0) / 1024


def _peak_kib(providers: int) -> int:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import config as bench\n"
        "count = int(sys.argv[1])\n"
        "text = bench.config_text(count) if count else '{}'\n"
        "bench.load(bench.candidate(text))\n"
        "status = open('/proc/self/status').read()\n"
        "print(status.split('VmHWM:')[1].split()[0])\n"
    )
    folder = __file__.rpartition("/")[0] or "."
    ran = subprocess.run(
        [sys.executable, "-c", program, str(providers), folder],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(ran.stdout)


def measure(providers: int) -> dict[str, float]:
    """All figures for one size."""
    text = config_text(providers)
    sources = candidate(text)
    content = sources.files[0].content
    load(sources)
    ours, theirs = [], []
    for _ in range(RUNS[providers]):
        ours.append(took_ms(lambda: load(sources)))
        theirs.append(took_ms(lambda: yaml.load(content, yaml.CSafeLoader)))
    still = [asyncio.run(standstill_ms(lambda: load(sources))) for _ in range(RUNS[providers])]
    return {
        "providers": providers,
        "kib": round(len(content) / 1024, 1),
        "check_ms": round(median(ours), 1),
        "yaml_load_ms": round(median(theirs), 1),
        "ratio": round(median(ours) / median(theirs), 2),
        "us_per_provider": round(median(ours) * 1e3 / providers, 1),
        "standstill_ms": round(median(still), 1),
        "standstill_max_ms": round(max(still), 1),
        "peak_mib": round(peak_mib(providers), 1),
    }


def main() -> None:
    rows = [measure(providers) for providers in SIZES]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
        return
    columns = list(rows[0])
    print("  ".join(f"{name:>17}" for name in columns))
    for row in rows:
        print("  ".join(f"{row[name]:>17}" for name in columns))


if __name__ == "__main__":
    main()
