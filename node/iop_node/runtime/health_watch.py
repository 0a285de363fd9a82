"""Watches the upstreams of the registry that serves: probes them, and hears how calls went.

The judgement is `core.health`; here are the tasks, the timer and the map from adapters to
providers. A reading is no configuration: it changes no registry and bumps no generation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from msgspec import Struct

from iop_node.adapters.base import Adapter
from iop_node.core.health import HEALTHY, Reading, UpstreamHealth
from iop_node.runtime.registry import AdapterRegistry
from iop_shared import logs
from iop_shared.errors import Code
from iop_shared.ids import ProviderId

_log = logs.get("node.health")

_FAST_FAILURES = frozenset(
    {
        Code.UPSTREAM_REFUSED,
        Code.UPSTREAM_CONNECT_TIMEOUT,
        Code.UPSTREAM_CLOSED,
        Code.UPSTREAM_INVALID,
    }
)


class ProviderReading(Struct, frozen=True, kw_only=True):
    """How the upstream of one provider is, where it is worse than healthy."""

    provider_id: ProviderId
    reading: Reading


class HealthWatch:
    """Judges the adapters that it is told to watch. `changed` is called after every change."""

    def __init__(
        self,
        changed: Callable[[], None],
        draw: Callable[[], float] | None = None,
    ) -> None:
        self._changed = changed
        self._draw = draw or random.SystemRandom().random
        self._registry: AdapterRegistry | None = None
        self._healths: dict[Adapter, UpstreamHealth] = {}
        self._probes: dict[Adapter, asyncio.Task[None]] = {}
        self._told: tuple[ProviderReading, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, registry: AdapterRegistry) -> None:
        """Watch the adapters of this registry and no others. One that stays keeps its judgement."""
        self._registry = registry
        staying = set(registry.held)
        self._drop(adapter for adapter in tuple(self._healths) if adapter not in staying)
        for adapter in registry.held:
            if adapter in self._healths:
                continue
            spec = adapter.probe_spec
            self._healths[adapter] = UpstreamHealth(spec.failures if spec else 1, self._draw)
            if spec is not None:
                self._probes[adapter] = asyncio.get_running_loop().create_task(
                    self._probe(adapter, spec.interval_s)
                )
        self._tell()

    async def stop(self) -> None:
        """Stop probing. Returns when no probe is under way."""
        probes = tuple(self._probes.values())
        self._drop(tuple(self._healths))
        if self._timer is not None:
            self._timer.cancel()
        if probes:
            await asyncio.wait(probes)

    def call_ended(self, adapter: Adapter, code: Code | None) -> None:
        """Hear of one call: the code it failed with, None where an answer was complete."""
        health = self._healths.get(adapter)
        if health is None or (code is None and health.is_calm):
            return
        now = self._now()
        before = health.reading(now)
        if code is None:
            health.call_answered()
        elif code in _FAST_FAILURES:
            health.call_failed_fast(now)
        if health.reading(now) != before:
            self._tell()

    def readings(self) -> tuple[ProviderReading, ...]:
        """The providers that are worse than healthy, in the order of the payload."""
        if self._registry is None:
            return ()
        now = self._now()
        adapters = self._registry.adapters
        by_key = {
            key: self._healths[adapter].reading(now)
            for key, adapter in adapters.items()
            if adapter in self._healths
        }
        return tuple(
            ProviderReading(provider_id=provider.id, reading=reading)
            for provider in self._registry.providers.values()
            if (reading := by_key.get(provider.adapter, HEALTHY)) != HEALTHY
        )

    def _drop(self, adapters: Iterable[Adapter]) -> None:
        for adapter in adapters:
            del self._healths[adapter]
            probe = self._probes.pop(adapter, None)
            if probe is not None:
                probe.cancel()

    async def _probe(self, adapter: Adapter, interval_s: float) -> None:
        while True:
            try:
                found = await adapter.probe()
            except Exception:
                # What an upstream does is a reading; this is a bug of ours, and none of its.
                _log.exception("probe_failed", adapter=adapter.key)
            else:
                self._healths[adapter].probed(Reading(found.health, found.reason))
                self._tell()
            # Spread, so that the probes of many adapters do not march in step.
            await asyncio.sleep(interval_s * (0.9 + 0.2 * self._draw()))

    def _tell(self) -> None:
        readings = self.readings()
        if readings != self._told:
            self._told = readings
            _log.info(
                "health_changed",
                providers={one.provider_id: one.reading.health for one in readings},
            )
            self._changed()
        self._arm()

    def _arm(self) -> None:
        now = self._now()
        changes = [
            change
            for health in self._healths.values()
            if (change := health.next_change(now)) is not None
        ]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if changes:
            self._timer = asyncio.get_running_loop().call_at(min(changes) + 0.001, self._tell)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
