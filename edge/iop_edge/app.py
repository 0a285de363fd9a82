"""The composition root of an edge: build, wire, run, drain.

Everything that lives in the process is owned here and nowhere else. Listeners start last, the
callers' one after all others, and stop in the opposite order. A stop has one deadline for all of
it, and says what it still waits for.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.load import Loaded, load
from iop_edge.pool.catalog import Catalog
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.node_hub import NodeHub, NodeView
from iop_edge.runtime.payload import build_payloads, stamped
from iop_edge.runtime.reloader import RefreshRequest, Reloader
from iop_edge.runtime.runs import RunService
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_edge.runtime.sources import read_sources
from iop_edge.runtime.tracing import RunTraces, TracedNodeHub
from iop_edge.runtime.undisturbed import interpreter, settle
from iop_edge.runtime.usage import UsageLedger
from iop_edge.serve.admin.shapes import EdgeStatus, Readiness
from iop_edge.serve.admin.status import edge_status
from iop_edge.serve.admin.surface import ADMIN_LIMITS, AdminSurface
from iop_edge.serve.bootstrap.surface import (
    BOOTSTRAP_LIMITS,
    BootstrapSurface,
    render_plain,
)
from iop_edge.serve.grpc_listener import GrpcListener
from iop_edge.serve.http.address import ListenError
from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.metrics import EdgeMetrics
from iop_edge.serve.node_link import SERVICE_NAME as NODE_LINK
from iop_edge.serve.node_link import NodeLink, NodeTokens
from iop_edge.serve.openai.ingress import Ingress
from iop_edge.serve.submit_run import SERVICE_NAME as RUN_INGRESS
from iop_edge.serve.submit_run import SubmitRun
from iop_shared import logs
from iop_shared.ids import Generation, NodeId
from iop_shared.lifecycle import stop_signals
from iop_shared.otlp import OtlpExporter
from iop_shared.session.flow import WindowBudget
from iop_shared.tracing import can_export

FIRST_GENERATION = Generation(1)

DRAIN_REPORT_INTERVAL_S = 5.0

_log = logs.get("edge")


class Edge:
    """One edge process. `serving` holds it up; `drain` brings it down without harm."""

    def __init__(self, loaded: Loaded, paths: Sequence[Path], fingerprint_key: bytes) -> None:
        config = loaded.config
        self._config = config
        self._started_at = datetime.now(UTC)
        self._is_ready = False
        self._is_draining = False
        first = RuntimeSnapshot(
            generation=FIRST_GENERATION,
            config=config,
            config_digest=loaded.digest,
            vault=loaded.vault,
            catalog=Catalog.from_config(config),
            applied_at=self._started_at,
            queue_source=loaded.queue_source,
        )
        payloads = stamped({}, build_payloads(config, loaded.vault), FIRST_GENERATION)
        self.snapshots = SnapshotStore(first)
        self.dispatcher = Dispatcher(first.catalog, config.provider_pool)
        self._exporter = _exporter(config)
        traces = None
        hub_of: Callable[..., NodeHub] = NodeHub
        if self._exporter is not None:
            traces = RunTraces(self._exporter, has_model=self.has_model)
            hub_of = partial(TracedNodeHub, traces)
        self.hub = hub_of(
            boot_id=secrets.token_hex(16),
            version=version("iop"),
            pool=self.dispatcher,
            budget=WindowBudget(),
        )
        self.hub.set_desired(payloads)
        self.metrics = EdgeMetrics(self)
        self.ledger = UsageLedger(
            Path(config.usage.file) if config.usage.file else None,
            observe=self.metrics.observe,
            trace=None if traces is None else traces.finished,
        )
        self.runs = RunService(
            snapshots=self.snapshots,
            dispatcher=self.dispatcher,
            hub=self.hub,
            ledger=self.ledger,
        )
        self.reloader = Reloader(
            snapshots=self.snapshots,
            payloads=payloads,
            nodes=self.hub,
            admission=self.dispatcher,
            # A refresh that waited for a pipe would hold up every later one, and the drain.
            read_sources=partial(
                read_sources, paths, fingerprint_key=fingerprint_key, takes_pipes=False
            ),
            build_catalog=Catalog.from_config,
            observe=self.metrics.observe_refresh,
            undisturbed=interpreter.undisturbed,
        )
        self._link = NodeLink(
            self.hub,
            NodeTokens(
                {NodeId(node.id): loaded.vault.node_token_sha256(node.id) for node in config.nodes}
            ),
            binds_certificates=config.server.tls is not None
            and config.server.tls.client_ca_file is not None,
        )
        submit_run = SubmitRun(
            config.openai.principal_tokens,
            snapshots=self.snapshots,
            runs=self.runs,
            provider_auth=config.openai.provider_auth,
            limits=config.openai.limits,
        )
        self._grpc = GrpcListener(config.server, {NODE_LINK: self._link, RUN_INGRESS: submit_run})
        self._admin = AdminSurface(
            reloader=self.reloader,
            snapshots=self.snapshots,
            nodes=self.hub,
            pool=self.dispatcher,
            runs=self.ledger,
            readiness=self.readiness,
            started_at=self._started_at,
            is_unix=config.admin.listen.startswith("unix:"),
        )
        self._bootstrap = BootstrapSurface(config)
        self._ingress: HttpListener | None = None

    # -- what it says of itself ----------------------------------------------------------------

    def readiness(self) -> Readiness:
        waiting_for = []
        if not self._is_ready:
            waiting_for.append("listeners")
        if self._is_draining:
            waiting_for.append("drain")
        return Readiness(ready=not waiting_for, waiting_for=tuple(waiting_for))

    def status(self) -> EdgeStatus:
        return edge_status(
            self.snapshots.current,
            started_at=self._started_at,
            last_error=self.reloader.last_error,
            pending_restart_paths=self.reloader.pending_restart_paths,
            nodes=self.hub.views(),
            pool=self.dispatcher,
        )

    def node_views(self) -> Sequence[NodeView]:
        return self.hub.views()

    def active_runs(self) -> int:
        return self.runs.active_runs

    def has_model(self, name: str) -> bool:
        catalog = self.snapshots.current.catalog
        return name in catalog.models or name in catalog.routes

    def dropped_spans(self) -> int:
        return 0 if self._exporter is None else self._exporter.dropped_spans

    # -- life ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """All listeners are up within the block, and nothing of the edge is left after it.

        Raises ListenError, which names the address, with nothing left listening.
        """
        config = self._config
        async with AsyncExitStack() as stack:
            if self._exporter is not None:
                await stack.enter_async_context(self._exporter)
            await stack.enter_async_context(self.ledger)
            server = await stack.enter_async_context(self._grpc)
            stack.callback(self.hub.close_all, "the edge has stopped")
            addresses = {"server": server.address}
            for name, listener in self._http_listeners().items():
                try:
                    await stack.enter_async_context(listener)
                except ListenError as error:
                    address = f"{error.address} ({name}.listen)"
                    raise ListenError(address, error.reason) from None
                addresses[name] = listener.address
            self._bootstrap.server_listens = addresses["server"]
            self._bootstrap.bootstrap_listens = addresses["bootstrap"]
            self._is_ready = True
            self._grpc.set_serving(True)
            _log.info(
                "edge_ready",
                pid=os.getpid(),
                edge_id=config.edge.id,
                generation=self.snapshots.current.generation,
                nodes=len(config.nodes),
                models=len(config.models),
                listening=addresses,
            )
            _say_what_is_missing(config)
            yield

    def _http_listeners(self) -> dict[str, HttpListener]:
        """By their section of the config, in the order in which they start."""
        config = self._config
        listeners = {
            "metrics": HttpListener(
                self.metrics.router(), config.metrics.listen, limits=ADMIN_LIMITS
            ),
            "admin": HttpListener(
                self._admin,
                config.admin.listen,
                limits=ADMIN_LIMITS,
                cancels_when_caller_leaves=False,
                render=self._admin.render,
            ),
            "bootstrap": HttpListener(
                self._bootstrap.router(),
                config.bootstrap.listen,
                limits=BOOTSTRAP_LIMITS,
                tls=config.bootstrap.tls,
                render=render_plain,
            ),
        }
        if config.openai.enabled:
            ingress = Ingress(
                config.openai,
                snapshots=self.snapshots,
                runs=self.runs,
                count_refusal=self.metrics.observe_refusal,
            )
            self._ingress = listeners["openai"] = HttpListener(
                ingress.router(),
                config.openai.listen,
                limits=config.openai.limits,
                tls=config.openai.tls,
            )
        return listeners

    async def drain(self) -> None:
        """Not ready, no new runs, the running ones end, within `server.drain_deadline_ms`."""
        deadline_s = self._config.server.drain_deadline_ms / 1000
        self._is_draining = True
        self._link.is_draining = True
        self._grpc.set_serving(False)
        self.runs.stop_admitting()
        _log.info("edge_draining", active_runs=self.runs.active_runs, deadline_s=deadline_s)
        telling = asyncio.create_task(self._tell_what_remains(deadline_s))
        try:
            cut = await self.runs.drained(deadline_s)
            if self._ingress is not None:
                # What has ended is still being written to its caller.
                limit_ms = self._config.openai.limits.write_timeout_ms
                await self._ingress.stop(grace_s=min(limit_ms / 1000, deadline_s))
            await self.reloader.drain()
        finally:
            telling.cancel()
        self.hub.say_goodbye("the edge stops", 0)
        _log.info("edge_drained", cut_runs=cut)

    def refresh_on_hangup(self) -> None:
        self.reloader.start(RefreshRequest(mode="apply"), origin="sighup")

    async def _tell_what_remains(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while True:
            await asyncio.sleep(DRAIN_REPORT_INTERVAL_S)
            _log.info(
                "edge_still_draining",
                active_runs=self.runs.active_runs,
                left_s=round(deadline - loop.time()),
            )


async def serve(paths: Sequence[Path]) -> None:
    """Run an edge on these files until it is told to stop, then drain it.

    Raises ConfigInvalid, OSError for a file that cannot be read, and ListenError.
    """
    fingerprint_key = secrets.token_bytes(32)
    loaded = load(read_sources(paths, fingerprint_key=fingerprint_key))
    logs.configure(loaded.config.logging.level, loaded.config.logging.format)
    for warning in loaded.warnings:
        _log.warning("config_warning", code=warning.code, path=warning.path, text=warning.message)
    edge = Edge(loaded, paths, fingerprint_key)
    stop = asyncio.Event()
    settle()
    async with edge.serving():
        with stop_signals(stop.set, on_hangup=edge.refresh_on_hangup):
            await stop.wait()
            await edge.drain()
    _log.info("edge_stopped")


def _exporter(config: EffectiveConfig) -> OtlpExporter | None:
    """Where spans go. None where none are asked for, or none can be sent: a warning says so."""
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is None or not can_export():
        return None
    return OtlpExporter(endpoint, service="iop-edge", instance_id=config.edge.id)


def _say_what_is_missing(config: EffectiveConfig) -> None:
    missing = [
        what for what, there in (("models", config.models), ("nodes", config.nodes)) if not there
    ]
    if missing:
        _log.warning("edge_serves_nothing", text=f"the config has no {' and no '.join(missing)}")
