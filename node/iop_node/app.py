"""The composition root of a node: build, wire, run, drain.

Everything that lives is owned here and nowhere else. The order of a stop: no new attempts, the
running ones end (one deadline for all), the session closes, the adapters stop.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from importlib.metadata import version

from iop.runtime_pb2 import (
    DrainingRegistry,
    NodeConfigAnswer,
    NodeConfigPayload,
    NodeReport,
    ProviderHealth,
)
from iop_node.adapters.base import Responder
from iop_node.core.backoff import Backoff
from iop_node.health import RENEWAL_INTERVAL_S, StateFile, state_path
from iop_node.link.dialer import Dialer, TokenRefused
from iop_node.metrics import Execute, NodeMetrics, NodeState
from iop_node.runtime.applier import Applier
from iop_node.runtime.resolve import NodeSources
from iop_node.runtime.router import (
    Attempt,
    RegistryDrainDeadline,
    RegistryInstalled,
    RegistryStopped,
    Router,
    RouterEvent,
)
from iop_node.settings import NodeSettings
from iop_node.tracing import AttemptTraces
from iop_shared import logs
from iop_shared.lifecycle import stop_signals
from iop_shared.otlp import OtlpExporter
from iop_shared.session.flow import WindowBudget
from iop_shared.tracing import can_export

EXIT_DRAINED = 0
EXIT_TOKEN_REFUSED = 6

DEFAULT_DRAIN_DEADLINE_S = 600.0
"""Until a payload brings the edge's own."""

_log = logs.get("node")


class _Wiring:
    """What the session asks of the rest of the node (NodePorts)."""

    def __init__(
        self, router: Router, execute: Execute, applier: Applier, state: StateFile
    ) -> None:
        self._router = router
        self._execute = execute
        self._applier = applier
        self._state = state
        self.is_connected = False
        self.drain_deadline_s = DEFAULT_DRAIN_DEADLINE_S

    async def execute(self, attempt: Attempt, out: Responder) -> None:
        await self._execute(attempt, out)

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        answer = await self._applier.apply(payload, boot_id=boot_id, is_welcome=is_welcome)
        if answer.is_acknowledged and payload.HasField("runtime"):
            self.drain_deadline_s = payload.runtime.drain_deadline_ms / 1000
        return answer

    def report(self) -> NodeReport:
        report = self._router.report()
        return NodeReport(
            active_runs=report.active_runs,
            draining=[
                DrainingRegistry(
                    generation=entry.generation,
                    active_runs=entry.leases,
                    deadline_in_ms=int((entry.deadline_in_s or 0) * 1000),
                )
                for entry in report.draining
            ],
            health=[
                ProviderHealth(
                    provider_id=entry.provider_id,
                    health=entry.reading.health,
                    reason=entry.reading.reason,
                )
                for entry in report.health
            ],
        )

    def connected(self, is_connected: bool) -> None:
        self.is_connected = is_connected
        self._state.write(is_healthy=is_connected)


async def run(settings: NodeSettings) -> int:
    """Run a node until it is told to stop; returns the exit status. Raises SettingsInvalid."""
    tls = settings.tls_context()
    instance_id = secrets.token_hex(16)
    hear: list[Callable[[], None]] = []
    with StateFile(state_path(settings.edge_address, settings.token)) as state:
        async with Router(lambda event: _observe(event, hear)) as router:
            applier = Applier(router, NodeSources(environ=dict(os.environ)))
            metrics = NodeMetrics()
            is_measured = settings.metrics_address is not None
            execute = metrics.observing(router.execute) if is_measured else router.execute
            exporter = _exporter(settings, instance_id)
            if exporter is not None:
                traces = AttemptTraces(
                    exporter, node_id=lambda: dialer.session.node_id if dialer.session else ""
                )
                execute = traces.observing(execute)
            wiring = _Wiring(router, execute, applier, state)
            dialer = Dialer(
                address=settings.edge_address,
                token=settings.token,
                tls=tls,
                instance_id=instance_id,
                version=version("iop"),
                ports=wiring,
                backoff=Backoff(random.SystemRandom().random, cap_s=5.0),
                budget=WindowBudget(),
                effective_generation=lambda: applier.effective_generation,
            )
            hear.append(dialer.report)

            def now() -> NodeState:
                report = router.report()
                return NodeState(
                    is_connected=wiring.is_connected,
                    session=0 if dialer.session is None else dialer.session.epoch,
                    generation=applier.effective_generation,
                    active_runs=report.active_runs,
                    draining_registries=len(report.draining),
                    dropped_frames=dialer.dropped_frames,
                    dropped_spans=0 if exporter is None else exporter.dropped_spans,
                )

            async with (
                _renewing(state),
                exporter or nullcontext(),
                metrics.serving(settings.metrics_address, now),
            ):
                return await _until_stopped(dialer, wiring)


@asynccontextmanager
async def _renewing(state: StateFile) -> AsyncIterator[None]:
    """Within the block the state file says that this loop turns, and not only that it once did."""

    async def renew() -> None:
        while True:
            state.renew()
            await asyncio.sleep(RENEWAL_INTERVAL_S)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()


def _exporter(settings: NodeSettings, instance_id: str) -> OtlpExporter | None:
    """Where spans go; None where none are asked for, or none can be sent."""
    if settings.otlp_endpoint is None:
        return None
    if not can_export():
        _log.warning(
            "not_installed",
            text="IOP_OTLP_ENDPOINT: the extra `iop[otel]` is not installed here, "
            "so no traces are sent",
        )
        return None
    return OtlpExporter(settings.otlp_endpoint, service="iop-node", instance_id=instance_id)


async def _until_stopped(dialer: Dialer, wiring: _Wiring) -> int:
    stop = asyncio.Event()
    with stop_signals(stop.set):
        _log.info("node_started", pid=os.getpid())
        dialling = asyncio.create_task(dialer.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((dialling, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            _log.info("node_draining", deadline_s=wiring.drain_deadline_s)
            await dialer.drain(wiring.drain_deadline_s)
        stopping.cancel()
        try:
            await dialling
        except TokenRefused as refusal:
            _log.error("token_refused", reason=str(refusal))
            return EXIT_TOKEN_REFUSED
        _log.info("node_stopped")
        return EXIT_DRAINED


def _observe(event: RouterEvent, hear: list[Callable[[], None]]) -> None:
    match event:
        case RegistryInstalled(generation):
            _log.info("registry_installed", generation=generation)
        case RegistryDrainDeadline(generation, ended_runs):
            _log.warning("registry_drain_deadline", generation=generation, ended_runs=ended_runs)
        case RegistryStopped(generation, stopped_adapters):
            _log.info(
                "registry_stopped", generation=generation, stopped_adapters=list(stopped_adapters)
            )
    for listener in hear:
        listener()
