"""The run service: every ingress opens its runs here, so that nothing is decided twice.

It decides which runs may begin, whether the gate has a run or not, and when all have ended. What
a run does is its own.
"""

from __future__ import annotations

import asyncio
import secrets

from iop_edge.gate.report import GateReport
from iop_edge.runtime.dispatcher import Dispatcher
from iop_edge.runtime.gated_run import GatedRun, unrepaired
from iop_edge.runtime.node_hub import NodeHub
from iop_edge.runtime.run import Run
from iop_edge.runtime.snapshot import SnapshotStore
from iop_edge.runtime.usage import UsageLedger
from iop_edge.runtime.work import RunSpec
from iop_shared.errors import Code, Fault


class RunService:
    """Opens runs. One of it serves every ingress, so that nothing is decided twice."""

    def __init__(
        self,
        *,
        snapshots: SnapshotStore,
        dispatcher: Dispatcher,
        hub: NodeHub,
        ledger: UsageLedger,
    ) -> None:
        self.snapshots = snapshots
        self.dispatcher = dispatcher
        self.hub = hub
        self.ledger = ledger
        self.fingerprint_key = secrets.token_bytes(32)
        """Makes what filters found comparable within this process, and nowhere else."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._active: set[Run] = set()
        self._is_draining = False

    @property
    def active_runs(self) -> int:
        return len(self._active)

    def open(self, spec: RunSpec) -> Run:
        """The run of this spec, to be entered as an async context.

        Entering waits in the queue and for the head of the upstream's answer, and raises the Fault
        that came instead. Leaving early cancels the run all the way to the upstream.
        """
        if spec.gate is None or spec.gated is None:
            return Run(self, spec)
        reason = unrepaired(spec.gate, spec.gated)
        if reason is not None:
            return Run(self, spec, GateReport(unrepaired=reason))
        return GatedRun(self, spec, spec.gate, spec.gated)

    def stop_admitting(self) -> None:
        """From now on every new run is refused with `draining`."""
        self._is_draining = True

    async def drained(self, deadline_s: float) -> int:
        """Wait until no run is active, at most so long; return how many had to be cut.

        Runs that are cut end with Fault(drain_deadline).
        """
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            cut = len(self._active)
            fault = Fault(Code.DRAIN_DEADLINE, "the edge stopped before this run had ended")
            for run in list(self._active):
                run.cut(fault)
            self.dispatcher.cut_waiting(fault)
            return cut
        return 0

    # -- for runs ------------------------------------------------------------------------------

    def enter(self, run: Run) -> None:
        if self._is_draining:
            raise Fault(Code.DRAINING, "this edge is stopping", retry_after_s=5.0)
        self._active.add(run)
        self._idle.clear()

    def leave(self, run: Run) -> None:
        self._active.discard(run)
        if not self._active:
            self._idle.set()
