"""What admission costs, as multiples of a bare function call and of one heap push and pop.

`python -m bench.pool` prints a table; `--json` the same as JSON. All figures of one run belong
together: absolute times move with the machine, the ratios within a run hardly do. Each figure is
CPU time, and the best of several repeats, because what disturbs a measurement only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import timeit
from collections.abc import Callable
from heapq import heappop, heappush
from time import process_time
from types import MappingProxyType

from msgspec.structs import replace

from iop_edge.config.effective import QueuePolicy
from iop_edge.pool.catalog import (
    Abilities,
    Attribution,
    Candidate,
    Catalog,
    ModelSpec,
    ResourceSpec,
)
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Granted, Lease
from iop_edge.pool.estimate import estimate_tokens
from iop_edge.pool.pool import Pool
from iop_edge.runtime.dispatcher import Dispatcher
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, Resource, RunId, Target

CANDIDATES = (1, 10, 100, 1_000, 10_000)
PENDING = (10, 10_000)
MODELS_SHARING = (1, 10, 100)
REPEATS = 9

NODE = NodeId("n")
RUN = RunId("run")
MODEL = ModelId("m")
ABILITIES = Abilities(
    operations=frozenset({"chat_completions"}), capabilities=frozenset({"chat", "streaming"})
)


def catalog(candidates: int, *, capacity: int = 4, models: int = 1, priorities: int = 1) -> Catalog:
    """One node with so many providers; the first model has all, each further one all but one."""
    resources = [Resource(NODE, ProviderId(f"p{n:05}")) for n in range(candidates)]
    specs = {
        resource: ResourceSpec(
            resource=resource,
            adapter=AdapterKey("a"),
            capacity=capacity,
            long_slots=None,
            priority=n % priorities,
            is_enabled=True,
            health="healthy",
            abilities=ABILITIES,
        )
        for n, resource in enumerate(resources)
    }
    groups = {}
    for number in range(models):
        model = ModelId("m" if number == 0 else f"m{number}")
        groups[model] = ModelSpec(
            id=model,
            candidates=tuple(
                Candidate(resource, Target("t"), Attribution("provider", resource.provider_id))
                for n, resource in enumerate(resources)
                if number == 0 or n != number
            ),
            context_window_tokens=None,
            usage_attribution="provider",
            chars_per_token=None,
        )
    return Catalog(
        resources=MappingProxyType(specs),
        models=MappingProxyType(groups),
        long_context_threshold_tokens=100_000,
        routes=MappingProxyType({}),
        fallback=None,
    )


def pool_of(of: Catalog, max_queue: int = 16) -> Pool:
    pool = Pool(of, QueuePolicy(max_queue=max_queue, queue_timeout_ms=30_000))
    pool.node_connected(NODE, 0.0)
    return pool


def demand(model: ModelId = MODEL) -> Demand:
    return Demand(model=model, operation="chat_completions", input_tokens=100)


def lease_of(granted: object) -> Lease:
    assert isinstance(granted, Granted)
    return granted.lease


def best_us(work: Callable[[], object], number: int) -> float:
    work()
    gc.collect()
    times = timeit.repeat(work, timer=process_time, number=number, repeat=REPEATS)
    return min(times) / number * 1e6


def bare_call_us() -> float:
    def nothing() -> None:
        return None

    return best_us(nothing, 200_000)


def heap_us() -> float:
    heap = list(range(1000))

    def push_and_pop() -> None:
        heappush(heap, 1001)
        heappop(heap)

    return best_us(push_and_pop, 50_000)


def admit_and_release_us(of: Catalog, *, half_full: bool = False) -> float:
    pool = pool_of(of)
    asked = demand()
    if half_full:
        for n in range(len(of.resources) * 2):
            pool.admit(RunId(f"r{n}"), asked, 0.0)

    def one() -> None:
        pool.release(lease_of(pool.admit(RUN, asked, 0.0)[-1]), 0.0)

    return best_us(one, 3000)


def shared_us(models: int) -> float:
    """Every model has been asked for, and each has its own set out of the same ten providers."""
    pool = pool_of(catalog(max(10, models + 1), models=models))
    for number in range(1, models):
        granted = pool.admit(RUN, demand(ModelId(f"m{number}")), 0.0)[-1]
        pool.release(lease_of(granted), 0.0)
    asked = demand()

    def one() -> None:
        pool.release(lease_of(pool.admit(RUN, asked, 0.0)[-1]), 0.0)

    return best_us(one, 1000)


def release_to_waiter_us(pending: int) -> float:
    """A release that serves the oldest of so many, and one that joins them at the end."""
    pool = pool_of(catalog(10, capacity=1), max_queue=pending + 16)
    asked = demand()
    leases = [lease_of(pool.admit(RunId(f"l{n}"), asked, 0.0)[-1]) for n in range(10)]
    for n in range(pending):
        pool.admit(RunId(f"w{n}"), asked, 0.0)
    names = iter(range(10**9))

    def one() -> None:
        granted = pool.release(leases.pop(0), 0.0)[-1]
        leases.append(lease_of(granted))
        pool.admit(RunId(f"n{next(names)}"), asked, 0.0)

    return best_us(one, 3000)


def replace_us(candidates: int, pending: int) -> float:
    of = catalog(candidates, capacity=1)
    grown = replace(of, long_context_threshold_tokens=99_999)
    pool = pool_of(of, max_queue=pending + 16)
    for n in range(candidates + pending):
        pool.admit(RunId(f"r{n}"), demand(), 0.0)
    policy = QueuePolicy(max_queue=pending + 16)

    def both() -> None:
        pool.replace(grown, policy, 0.0)
        pool.replace(of, policy, 0.0)

    return best_us(both, 1) / 2


def first_admission_us(candidates: int) -> float:
    """The first demand of a kind after a refresh makes its line."""
    of = catalog(candidates)
    policy = QueuePolicy()
    pool = pool_of(of)

    def replace_only() -> None:
        pool.replace(of, policy, 0.0)

    def replace_and_admit() -> None:
        pool.replace(of, policy, 0.0)
        pool.release(lease_of(pool.admit(RUN, demand(), 0.0)[-1]), 0.0)

    return best_us(replace_and_admit, 3) - best_us(replace_only, 3)


def dispatcher_us() -> float:
    """The same through the dispatcher on a loop: ten candidates, a free slot."""

    async def run() -> float:
        dispatcher = Dispatcher(catalog(10), QueuePolicy())
        dispatcher.node_connected(NODE)
        asked = demand()
        best = float("inf")
        for _ in range(REPEATS):
            began = process_time()
            for _ in range(3000):
                dispatcher.release((await dispatcher.acquire(RUN, asked)).lease)
            best = min(best, process_time() - began)
        return best / 3000 * 1e6

    return asyncio.run(run())


def estimate_us_per_kb() -> float:
    text = "The quick brown fox jumps over the lazy dog, 42 times; isn't that a lot? " * 900
    return best_us(lambda: estimate_tokens([text]), 20) / (len(text) / 1024)


def explanation_us() -> float:
    pool = pool_of(catalog(1000))
    decision = pool.admit(RUN, demand(), 0.0)[-1].decision
    return best_us(decision.explain, 2000)


def measure() -> dict[str, float]:
    figures = {"bare function call": bare_call_us(), "heap push + pop": heap_us()}
    for candidates in CANDIDATES:
        name = f"admit + release, {candidates} candidates"
        figures[name] = admit_and_release_us(catalog(candidates))
    figures["admit + release, 10000 candidates, half full"] = admit_and_release_us(
        catalog(10_000), half_full=True
    )
    figures["admit + release, 10000 candidates, 1000 priorities"] = admit_and_release_us(
        catalog(10_000, priorities=1000)
    )
    figures["acquire + release through the dispatcher, 10"] = dispatcher_us()
    for models in MODELS_SHARING:
        figures[f"admit + release, {models} models, a set of providers each"] = shared_us(models)
    for pending in PENDING:
        figures[f"release to a waiter + queue, {pending} pending"] = release_to_waiter_us(pending)
    figures["replace, 10000 resources"] = replace_us(10_000, 0)
    figures["replace, 10000 resources, 10000 pending"] = replace_us(10_000, 10_000)
    figures["first admission after it"] = first_admission_us(10_000)
    figures["explain, when somebody looks"] = explanation_us()
    figures["token estimate, 1 KB"] = estimate_us_per_kb()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures, indent=2))
        return
    call, heap = figures["bare function call"], figures["heap push + pop"]
    print(f"{'':56}{'µs':>10}{'× call':>10}{'× heap':>10}")
    for name, us in figures.items():
        print(f"{name:56}{us:10.2f}{us / call:10.0f}{us / heap:10.1f}")
    few, many = (figures[f"admit + release, {n} candidates"] for n in (10, 10_000))
    short, long = (figures[f"release to a waiter + queue, {n} pending"] for n in PENDING)
    print(
        f"\n10 to 10,000 candidates: × {many / few:.2f}; 10 to 10,000 pending: × {long / short:.2f}"
    )


if __name__ == "__main__":
    main()
