"""Small catalogs, demands, and stories told line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from iop_edge.config.effective import Health, QueuePolicy, UsageAttribution
from iop_edge.pool.catalog import (
    Abilities,
    Attribution,
    Candidate,
    Catalog,
    ModelSpec,
    ResourceSpec,
)
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Effect, Expired, Granted, Lease, Queued
from iop_edge.pool.pool import Pool
from iop_shared.ids import AdapterKey, ModelId, NodeId, ProviderId, Resource, RunId, Target
from iop_shared.profiles import Capability, Operation

TUNNEL = Abilities(
    operations=frozenset({"chat_completions"}),
    capabilities=frozenset({"models", "chat", "streaming", "tool_calling"}),
    runs_normalized=True,
)
"""An OpenAI-compatible upstream: chat as it is, everything else rendered."""

NORMALIZED = Abilities(
    capabilities=frozenset({"models", "chat", "streaming", "tool_calling"}), runs_normalized=True
)
"""Ollama's native API."""

MESSAGES = Abilities(
    operations=frozenset({"messages", "count_tokens"}),
    capabilities=frozenset({"models", "messages", "streaming", "count_tokens"}),
)
"""An Anthropic upstream: nothing but passthrough."""


def spec(
    name: str,
    *,
    node: str = "n",
    capacity: int = 1,
    long_slots: int | None = None,
    priority: int = 0,
    is_enabled: bool = True,
    health: Health = "healthy",
    abilities: Abilities = TUNNEL,
) -> ResourceSpec:
    return ResourceSpec(
        resource=Resource(NodeId(node), ProviderId(name)),
        adapter=AdapterKey(f"adapter-of-{name}"),
        capacity=capacity,
        long_slots=long_slots,
        priority=priority,
        is_enabled=is_enabled,
        health=health,
        abilities=abilities,
    )


def catalog(
    specs: Iterable[ResourceSpec],
    models: Mapping[str, Sequence[str]] | None = None,
    *,
    window: int | None = None,
    threshold: int = 1000,
    usage_attribution: UsageAttribution = "provider",
    gate_needs: Mapping[tuple[str, str], Iterable[Capability]] | None = None,
) -> Catalog:
    """A catalog of these resources. `models` maps a model to provider ids; by default one model
    `m` is served by all. `gate_needs` is by model and provider, and nothing where it is silent."""
    by_id = {one.resource: one for one in sorted(specs, key=lambda one: one.resource)}
    resources = {resource.provider_id: resource for resource in by_id}
    if models is None:
        models = {"m": list(resources)}

    def group(model: str, providers: Sequence[str]) -> ModelSpec:
        chosen = sorted(resources[ProviderId(provider)] for provider in providers)
        return ModelSpec(
            id=ModelId(model),
            candidates=tuple(
                Candidate(
                    resource,
                    Target(f"{model}-on-{resource.provider_id}"),
                    Attribution(
                        usage_attribution,
                        resource.provider_id if usage_attribution == "provider" else model,
                    ),
                    frozenset((gate_needs or {}).get((model, resource.provider_id), ())),
                )
                for resource in chosen
            ),
            context_window_tokens=window,
            usage_attribution=usage_attribution,
            chars_per_token=None,
        )

    return Catalog(
        resources=MappingProxyType(by_id),
        models=MappingProxyType({ModelId(m): group(m, p) for m, p in models.items()}),
        long_context_threshold_tokens=threshold,
        routes=MappingProxyType({}),
        fallback=None,
    )


def demand(
    model: str = "m",
    operation: Operation | None = "chat_completions",
    *,
    capabilities: Iterable[Capability] = (),
    input_tokens: int = 1,
    floor: int = 1,
    output: int | None = None,
) -> Demand:
    return Demand(
        model=ModelId(model),
        operation=operation,
        capabilities=frozenset(capabilities),
        input_tokens=input_tokens,
        input_tokens_floor=floor,
        output_tokens=output,
    )


def policy(max_queue: int = 16, timeout_ms: int = 30_000) -> QueuePolicy:
    return QueuePolicy(max_queue=max_queue, queue_timeout_ms=timeout_ms)


def told(effect: Effect) -> str:
    """An effect as a story tells it."""
    if isinstance(effect, Granted):
        kind = " long" if effect.lease.is_long else ""
        return f"{effect.run_id} gets {effect.lease.resource.provider_id}{kind}"
    if isinstance(effect, Queued):
        return f"{effect.run_id} waits"
    if isinstance(effect, Expired):
        return f"{effect.run_id} expires"
    return f"{effect.run_id} refused {effect.code}"


class Story:
    """Plays lines against a pool and compares what follows.

    A line is `event -> effects`, effects separated by commas; without an arrow nothing follows.
    Events: `at SECONDS`, `RUN asks MODEL [long] [for OPERATION]`, `RUN ends`, `RUN hangs up`,
    `RUN fails` (before its upstream was sent anything: the lease is released and the run asks
    again), `NODE joins`, `NODE is lost`, `PROVIDER probes HEALTH`, `refresh KEY=VALUE …` (keys:
    `PROVIDER.field`, `max_queue`, `timeout_ms`, `threshold`, `MODEL`=providers joined by `+`, or
    `MODEL=gone`), `time passes`.
    """

    def __init__(
        self,
        specs: Iterable[ResourceSpec],
        models: Mapping[str, Sequence[str]] | None = None,
        *,
        max_queue: int = 16,
        timeout_ms: int = 30_000,
        threshold: int = 1000,
    ) -> None:
        self._specs = {one.resource.provider_id: one for one in specs}
        self._models = dict(models) if models is not None else {"m": list(self._specs)}
        self._policy = policy(max_queue, timeout_ms)
        self._threshold = threshold
        self.pool = Pool(self._catalog(), self._policy)
        self.now = 0.0
        self.leases: dict[str, Lease] = {}
        self._demands: dict[str, Demand] = {}

    def tell(self, text: str) -> None:
        expected = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        assert [self._line(line) for line in expected] == expected

    def _line(self, line: str) -> str:
        event, _, _ = line.partition(" -> ")
        effects = self._play(event.split())
        for effect in effects:
            if isinstance(effect, Granted):
                self.leases[effect.run_id] = effect.lease
        return f"{event} -> {', '.join(map(told, effects))}" if effects else event

    def _play(self, words: list[str]) -> list[Effect]:
        pool, now = self.pool, self.now
        match words:
            case ["at", seconds]:
                self.now = float(seconds)
                return []
            case ["time", "passes"]:
                return pool.expire(now)
            case [run, "asks", model, *rest]:
                asked = demand(
                    model,
                    rest[rest.index("for") + 1] if "for" in rest else "chat_completions",
                    input_tokens=self._threshold if "long" in rest else 1,
                )
                self._demands[run] = asked
                return pool.admit(RunId(run), asked, now)
            case [run, "ends"]:
                return pool.release(self.leases.pop(run), now)
            case [run, "hangs", "up"]:
                return pool.cancel(RunId(run), now)
            case [run, "fails"]:
                lease = self.leases.pop(run)
                effects = pool.release(lease, now)
                return effects + pool.admit(RunId(run), self._demands[run], now, retry_of=lease)
            case [node, "joins"]:
                return pool.node_connected(NodeId(node), now)
            case [node, "is", "lost"]:
                return pool.node_lost(NodeId(node), now)
            case [provider, "probes", health]:
                resource = self._specs[ProviderId(provider)].resource
                return pool.probed_health(resource, health, now)
            case ["refresh", *changes]:
                for change in changes:
                    self._change(*change.split("="))
                return pool.replace(self._catalog(), self._policy, now)
        raise ValueError(f"a story has no such line: {' '.join(words)}")

    def _change(self, key: str, value: str) -> None:
        read: dict[str, Any] = {"true": True, "false": False, "none": None}
        parsed = read[value] if value in read else int(value) if value.isdigit() else value
        provider, _, field = key.partition(".")
        if field:
            old = self._specs[ProviderId(provider)]
            self._specs[ProviderId(provider)] = replace(old, **{field: parsed})
        elif key == "max_queue":
            self._policy = replace(self._policy, max_queue=parsed)
        elif key == "timeout_ms":
            self._policy = replace(self._policy, queue_timeout_ms=parsed)
        elif key == "threshold":
            self._threshold = parsed
        elif value == "gone":
            del self._models[key]
        else:
            self._models[key] = value.split("+")

    def _catalog(self) -> Catalog:
        return catalog(self._specs.values(), self._models, threshold=self._threshold)
