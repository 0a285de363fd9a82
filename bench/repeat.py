"""How well and how cheaply repetition is found: precision, recall, delay, what is held, and time.

The examples are the tests' own. By default the half that was not looked at while tuning is
reported; `--tuned` reports the other one, `--all` both. `--speed` measures what a piece of four
characters of ordinary text costs, and a long piece of hostile text.

    .venv/bin/python bench/repeat.py [--tuned | --all] [--speed] [--each]
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from iop_edge.gate.repeat import Loop, RepeatGuard

EXAMPLES = Path(__file__).parent.parent / "tests/edge/gate/repeat_examples/examples.py"
BOUND = 500
PIECE = 4


class Reading(NamedTuple):
    """What came of one text that arrived in small pieces."""

    loop: Loop | None
    seen: int
    held: list[int]
    """Characters held back, at every piece."""


def read(text: str, bound: int = BOUND) -> Reading:
    guard = RepeatGuard(bound, key=b"bench")
    held = []
    for at in range(0, len(text), PIECE):
        loop = guard.feed(text[at : at + PIECE])
        if loop is not None:
            return Reading(loop, guard.seen, held)
        held.append(guard.seen - guard.cleared)
    return Reading(None, guard.seen, held)


def examples() -> list[Any]:
    spec = importlib.util.spec_from_file_location("repeat_examples", EXAMPLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: list[Any] = module.examples()
    return found


def judge(chosen: list[Any], each: bool) -> None:
    found: dict[str, list[bool]] = defaultdict(list)
    over: list[int] = []
    delays: list[int] = []
    held: list[int] = []
    for example in chosen:
        reading = read(example.text)
        loop = reading.loop
        kind = ("loop: " if example.is_loop else "innocent: ") + example.kind
        found[kind].append((loop is not None) == example.is_loop)
        if example.is_loop and loop is not None:
            over.append(loop.kept - example.first_ends)
            delays.append(reading.seen - example.first_ends)
        if not example.is_loop:
            held += reading.held
        if each or not found[kind][-1]:
            print(
                f"  {'  ' if found[kind][-1] else '!!'} {kind}: {example.name}: {loop}, "
                f"first ends {example.first_ends}, seen {reading.seen}, "
                f"held {mean(reading.held or [0]):.1f}"
            )
    for kind, right in sorted(found.items()):
        print(f"{kind:32} {sum(right):4} of {len(right):4} right")
    loops = [one for kind, right in found.items() if kind.startswith("loop") for one in right]
    texts = [one for kind, right in found.items() if kind.startswith("inno") for one in right]
    hits, alarms = sum(loops), len(texts) - sum(texts)
    print(f"\n{len(loops)} loops, {len(texts)} innocent texts")
    print(f"precision {hits / (hits + alarms):.3f}, recall {hits / len(loops):.3f}")
    print(
        f"certain after the first occurrence: median {median(delays):.0f}, "
        f"most {max(delays)} characters"
    )
    print(f"let through after it: median {median(over):.0f}, most {max(over)} characters")
    print(
        f"innocent text: held {sum(h > 0 for h in held) / len(held):.1%} of the time, "
        f"{mean(held):.1f} characters on average, at most {max(held)}"
    )


def cost_us(text: str) -> float:
    """Of a piece of four characters: of each stretch of pieces the best of several runs."""
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    stretches = [pieces[at : at + 100] for at in range(0, len(pieces), 100)]
    best = [float("inf")] * len(stretches)
    for _ in range(25):
        guard = RepeatGuard(BOUND, key=b"bench")
        for place, stretch in enumerate(stretches):
            began = time.perf_counter()
            for piece in stretch:
                guard.feed(piece)
            best[place] = min(best[place], time.perf_counter() - began)
    return sum(best) / len(pieces) * 1e6


def cost_ms_per_mib(text: str) -> float:
    """Of one long piece."""
    guard = RepeatGuard(BOUND, key=b"bench")
    began = time.perf_counter()
    guard.feed(text)
    return (time.perf_counter() - began) / len(text) * 2**20 * 1e3


def speed(chosen: list[Any]) -> None:
    dice = random.Random(7)
    ordinary = "\n".join(
        one.text
        for one in chosen
        if one.kind in ("prose", "script", "legal", "rhetoric", "list", "onomatopoeia")
    )
    forms = "\n".join(one.text for one in chosen if one.kind in ("code", "json", "log", "table"))
    print(f"prose: {cost_us(ordinary):.2f} us per piece of {PIECE} characters")
    print(f"code, tables, logs: {cost_us(forms):.2f} us per piece of {PIECE} characters")
    print(f"one piece of prose: {cost_ms_per_mib(ordinary):.0f} ms per MiB")
    size = 2**18
    for name, text in {
        "random letters": "".join(dice.choices("abcdefghijklmnopqrstuvwxyz ", k=size)),
        "random bits": "".join(dice.choices("01", k=size)),
        "mostly one letter": "".join(dice.choices("ab", (15, 1), k=size)),
        "mostly one sign": "".join(dice.choices("-+", (31, 1), k=size)),
        "blanks": " " * size,
        "runs of one sign": "".join("-" * dice.randrange(20, 60) + "+" for _ in range(size // 40)),
    }.items():
        print(f"one piece of {name}: {cost_ms_per_mib(text):.0f} ms per MiB")


def main() -> None:
    everything = examples()
    if "--all" in sys.argv:
        chosen = everything
    else:
        chosen = [one for one in everything if one.is_held_out != ("--tuned" in sys.argv)]
    if "--speed" in sys.argv:
        speed(everything)
    else:
        judge(chosen, "--each" in sys.argv)


if __name__ == "__main__":
    main()
