"""The refresh transaction, over the edge and its nodes (REF-1…12).

    read once → parse → validate → plan → build everything new     (a thread; nothing live touched)
    → one swap → hub's desired payloads → pump the queue            (one step, no await)
    → push to nodes → collect answers → receipt

A dry run ends after the plan. Refreshes are serialized: the one that waits is judged against what
then runs. A refresh that has begun runs to its end, whoever asked for it and whether or not they
still listen. The reloader opens no socket and knows no HTTP; what a path's change means is
`iop_edge.refresh`'s to say.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple, Protocol

from msgspec import Struct, structs

from iop.runtime_pb2 import NodeConfigPayload
from iop_edge.config.effective import EffectiveConfig, QueuePolicy, SecretRef
from iop_edge.config.load import Loaded, load
from iop_edge.config.problems import ConfigInvalid, Problem
from iop_edge.config.sources import Sources
from iop_edge.pool.catalog import Catalog
from iop_edge.refresh.diff import diff
from iop_edge.refresh.plan import Plan, plan
from iop_edge.refresh.receipt import (
    ErrorReport,
    LastError,
    Mode,
    NodeReport,
    Origin,
    RefreshRecord,
    RefreshResult,
    drafted,
    receipt,
    rejection,
)
from iop_edge.runtime import failpoints
from iop_edge.runtime.node_hub import NodeAnswer, NodeView
from iop_edge.runtime.payload import Payloads, build_payloads, changed_nodes, stamped
from iop_edge.runtime.refresh_report import (
    CANDIDATE_MISMATCH,
    GENERATION_MISMATCH,
    facts,
    failed,
    foreseen,
    interrupted,
    log_receipt,
    log_warnings,
    mismatch,
    problem_report,
    unchanged,
    unheard,
)
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_shared import logs
from iop_shared.ids import Generation, NodeId

PUSH_TIMEOUT_S = 5.0
"""How long a refresh waits for the answers of nodes. A later answer still counts for status.

Shorter than the silence after which a node counts as lost, so that one which never answers has
timed out, and is not merely gone."""

HISTORY_LENGTH = 32

OnNode = Callable[[NodeReport], None]
OnPush = Callable[[RefreshResult, tuple[NodeId, ...]], None]

_log = logs.get("reloader")


class Nodes(Protocol):
    """What a refresh needs of the node hub."""

    def set_desired(self, payloads: Mapping[NodeId, NodeConfigPayload]) -> None: ...
    def push(
        self, payloads: Mapping[NodeId, NodeConfigPayload], timeout_s: float
    ) -> AsyncIterator[NodeAnswer]: ...
    def views(self) -> Sequence[NodeView]: ...


class Admission(Protocol):
    """What a refresh needs of the dispatcher."""

    def replace(self, catalog: Catalog, policy: QueuePolicy) -> None:
        """Judge every pending and every later request by these, at once (POOL-7)."""
        ...


class RefreshRequest(Struct, frozen=True, kw_only=True):
    """What is asked for. An apply may demand what it is based on (REF-10)."""

    mode: Mode
    if_generation: int | None = None
    if_candidate: str | None = None


class _Candidate(NamedTuple):
    """A proved candidate: everything an apply needs, built and not yet in effect."""

    plan: Plan
    draft: RefreshResult
    successor: RuntimeSnapshot
    payloads: Payloads
    warnings: tuple[Problem, ...]


class _Ears(NamedTuple):
    """Who listens to one refresh while it runs."""

    on_push: OnPush
    on_node: OnNode


class Reloader:
    """Owns the transaction. `payloads` are those the nodes are to run with the first snapshot.

    `read_sources` reads the files that the edge was started with, each once. It raises
    ConfigInvalid where one cannot be read, and runs in a thread, as does `build_catalog`. Each
    refresh is done within `undisturbed()`, and told to `observe` when it has ended.
    """

    def __init__(
        self,
        *,
        snapshots: SnapshotStore,
        payloads: Payloads,
        nodes: Nodes,
        admission: Admission,
        read_sources: Callable[[], Sources],
        build_catalog: Callable[[EffectiveConfig], Catalog] = Catalog.from_config,
        push_timeout_s: float = PUSH_TIMEOUT_S,
        observe: Callable[[RefreshRecord], None] = lambda record: None,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._snapshots = snapshots
        self._payloads = payloads
        self._nodes = nodes
        self._admission = admission
        self._read_sources = read_sources
        self._build_catalog = build_catalog
        self._push_timeout_s = push_timeout_s
        self._observe = observe
        self._undisturbed = undisturbed
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[RefreshResult]] = set()
        self._history: deque[RefreshRecord] = deque(maxlen=HISTORY_LENGTH)
        self._pending_restart_paths: tuple[str, ...] = ()
        self._last_error: LastError | None = None

    @property
    def pending_restart_paths(self) -> tuple[str, ...]:
        """What an apply found to need a restart and no later apply took back (REF-12)."""
        return self._pending_restart_paths

    @property
    def last_error(self) -> LastError | None:
        """Why the latest apply was rejected; None once one was not."""
        return self._last_error

    def history(self) -> tuple[RefreshRecord, ...]:
        """The latest refreshes, newest first; at most `HISTORY_LENGTH`."""
        return tuple(reversed(self._history))

    async def refresh(
        self,
        request: RefreshRequest,
        *,
        origin: Origin = "admin",
        on_push: OnPush | None = None,
        on_node: OnNode | None = None,
    ) -> RefreshResult:
        """Do one refresh and return its result. Raises nothing for a bad candidate.

        `on_push` hears of an apply that is about to tell nodes: the receipt so far, and which.
        `on_node` then hears each of these as its outcome is known. A caller that is cancelled
        leaves the refresh running to its end.
        """
        return await asyncio.shield(
            self.start(request, origin=origin, on_push=on_push, on_node=on_node)
        )

    def start(
        self,
        request: RefreshRequest,
        *,
        origin: Origin,
        on_push: OnPush | None = None,
        on_node: OnNode | None = None,
    ) -> asyncio.Task[RefreshResult]:
        """Begin one refresh without waiting for it, as SIGHUP does. The receipt is logged."""
        ears = _Ears(on_push or _hear_nothing, on_node or _hear_nothing)
        task = asyncio.get_running_loop().create_task(
            self._take_turn(request, origin, ears), name="refresh"
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def drain(self) -> None:
        """Return when no refresh runs any more."""
        while self._running:
            await asyncio.wait(self._running)

    # ------------------------------------------------------------------------------------------

    async def _take_turn(
        self, request: RefreshRequest, origin: Origin, ears: _Ears
    ) -> RefreshResult:
        async with self._turn:
            began = time.monotonic()
            with self._undisturbed():
                result = await self._refresh(request, ears)
            took_ms = round((time.monotonic() - began) * 1000, 3)
            result = structs.replace(result, duration_ms=took_ms)
            record = RefreshRecord(at=datetime.now(UTC), origin=origin, result=result)
            self._history.append(record)
            self._observe(record)
            log_receipt(result, origin)
            return result

    async def _refresh(self, request: RefreshRequest, ears: _Ears) -> RefreshResult:
        running = self._snapshots.current
        if request.if_generation not in (None, running.generation):
            return mismatch(
                GENERATION_MISMATCH, request.mode, running.generation, running.generation
            )
        digest = None
        try:
            sources, digest = await asyncio.to_thread(self._read)
            if request.if_candidate not in (None, digest):
                return mismatch(CANDIDATE_MISMATCH, request.mode, running.generation, digest)
            candidate = await asyncio.to_thread(self._prove, sources, running, request.mode)
            failpoints.reach("apply.after_validate")
            if request.mode == "apply":
                failpoints.reach("apply.before_swap")
        except Exception as error:
            return self._rejected(error, request, running, digest)
        if request.mode == "dry_run":
            return self._result(
                candidate, foreseen(self._nodes.views(), candidate.plan.nodes_to_push)
            )
        self._last_error = None
        self._pending_restart_paths = candidate.plan.restart_paths
        if candidate.plan.needs_restart:
            return self._result(candidate, unchanged(self._nodes.views(), but=frozenset()))
        return await self._apply(candidate, ears)

    async def _apply(self, candidate: _Candidate, ears: _Ears) -> RefreshResult:
        log_warnings(candidate.warnings)
        reports = unchanged(self._nodes.views(), but=candidate.plan.nodes_to_push)
        errors = []
        try:
            self._put_in_effect(candidate)
            failpoints.reach("apply.after_swap")
            async for report in self._push(candidate, ears):
                reports.append(report)
            failpoints.reach("apply.after_push")
        except Exception as error:
            # The new generation runs: calling the apply rejected would be a lie.
            _log.error("refresh_interrupted", **facts(error))
            errors.append(interrupted(error))
            reports += unheard(self._nodes.views(), candidate.plan.nodes_to_push, reports)
        return self._result(candidate, reports, errors)

    def _read(self) -> tuple[Sources, str]:
        """The candidate's bytes, once; everything after this judges these (REF-10)."""
        sources = self._read_sources()
        return sources, sources.digest()

    def _prove(self, sources: Sources, running: RuntimeSnapshot, mode: Mode) -> _Candidate:
        """Everything that can fail, in a thread and away from all that is live."""
        loaded: Loaded = load(sources)
        generation = Generation(running.generation + 1)
        payloads = build_payloads(loaded.config, loaded.vault)

        @cache
        def same_secret(reference: SecretRef) -> bool:
            return running.vault.fingerprint(reference) == loaded.vault.fingerprint(reference)

        changes = diff(running.config, loaded.config, same_secret)
        planned = plan(changes, changed_nodes(self._payloads, payloads))
        return _Candidate(
            plan=planned,
            draft=drafted(
                planned, mode=mode, running=running.generation, candidate_digest=loaded.digest
            ),
            successor=RuntimeSnapshot(
                generation=generation,
                config=loaded.config,
                config_digest=loaded.digest,
                vault=loaded.vault,
                catalog=self._build_catalog(loaded.config),
                applied_at=datetime.now(UTC),
                queue_source=loaded.queue_source,
            ),
            payloads=stamped(self._payloads, payloads, generation),
            warnings=loaded.warnings,
        )

    def _put_in_effect(self, candidate: _Candidate) -> None:
        """The one step. No await, so nobody sees a part of it, and nothing in it can fail for a
        reason that lies in the candidate."""
        self._snapshots.swap(candidate.successor)
        self._payloads = candidate.payloads
        self._nodes.set_desired(candidate.payloads)
        successor = candidate.successor
        self._admission.replace(successor.catalog, successor.config.provider_pool)

    async def _push(self, candidate: _Candidate, ears: _Ears) -> AsyncIterator[NodeReport]:
        """Send what changed and give each node's outcome as it is known."""
        waiting = {
            node_id: candidate.payloads[node_id] for node_id in sorted(candidate.plan.nodes_to_push)
        }
        if not waiting:
            return
        so_far = receipt(candidate.draft, after=candidate.successor.generation, nodes=())
        ears.on_push(so_far, tuple(waiting))
        async for answer in self._nodes.push(waiting, self._push_timeout_s):
            report = NodeReport(
                node_id=answer.node_id,
                outcome=answer.outcome,
                generation=answer.generation,
                detail=answer.detail,
            )
            ears.on_node(report)
            yield report

    def _rejected(
        self,
        error: Exception,
        request: RefreshRequest,
        running: RuntimeSnapshot,
        digest: str | None,
    ) -> RefreshResult:
        omitted = 0
        if isinstance(error, ConfigInvalid):
            errors = [
                problem_report(problem) for problem in error.problems if problem.severity == "error"
            ]
            omitted = error.omitted
        else:
            _log.error("refresh_failed", **facts(error))
            errors = [failed(error)]
        result = rejection(
            errors,
            mode=request.mode,
            running=running.generation,
            candidate_digest=digest,
            omitted=omitted,
        )
        if request.mode == "apply":
            self._last_error = LastError(
                at=datetime.now(UTC),
                candidate_digest=digest,
                errors=result.errors,
                omitted=omitted,
            )
        return result

    def _result(
        self,
        candidate: _Candidate,
        nodes: Iterable[NodeReport],
        errors: Iterable[ErrorReport] = (),
    ) -> RefreshResult:
        return receipt(
            candidate.draft, after=self._snapshots.current.generation, nodes=nodes, errors=errors
        )


def _hear_nothing(*_: object) -> None:
    pass
