"""One record for each run, whatever its end.

The record goes to the log (event `run_finished`), to the metrics, to a bounded ring that status
reads, and to a JSON-lines file where one is configured. It names ids, counts and durations, and
holds no prompt, completion or token.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from iop_edge.gate.report import GateReport
from iop_edge.pool.catalog import Attribution
from iop_edge.pool.explain import Decision, Explanation
from iop_shared import logs

RING_LENGTH = 256
FLUSH_INTERVAL_S = 0.5
"""A kill -9 loses at most this much of the file."""

MAX_UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Records that wait for a file which cannot be written; what comes on top is lost, and said so."""

UsageSource = Literal["reported", "estimated", "none"]

_log = logs.get("runs")


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one run used, and how it ended (interface, section 4). Times in milliseconds.

    `end` is `completed`, `error:<code>` or `cancelled`. A value that was never known is None.
    `usage_source` is `estimated` where at least one of the two counts is, and `none` where neither
    is known because nothing was generated.
    """

    run_id: str
    request_id: str
    started_at: str
    model: str
    token_ref: str | None
    principal_ref: str | None
    attribution: Attribution | None
    provider_id: str | None
    node_id: str | None
    target: str | None
    generation: int
    input_tokens: int | None
    output_tokens: int | None
    usage_source: UsageSource
    attempts: int
    repaired: bool
    end: str
    queue_ms: float
    first_byte_ms: float | None
    duration_ms: float


_encode = msgspec.json.Encoder().encode
_run_finished = logs.RecordLog("runs", "run_finished", UsageRecord)


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A record and the decisions behind it, not yet put into words.

    `traceparent` is the caller's, empty where there was none; `gate` is None for runs that the gate
    has nothing to do with.
    """

    record: UsageRecord
    decisions: tuple[Decision, ...]
    traceparent: str = ""
    gate: GateReport | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run as `GET /runs` shows it."""

    run: UsageRecord
    decisions: tuple[Explanation, ...]
    gate: GateReport | None = None


class UsageFileError(Exception):
    """The usage file cannot be opened. Names the file and the reason."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"cannot append to usage.file {file}: {reason}")


class UsageLedger:
    """Takes each run's record once. Use as an async context where a file is configured, which
    raises UsageFileError.

    The file is appended to in whole lines, from wherever another edge process left it, and a
    record stands in it at most `FLUSH_INTERVAL_S` after its run has ended.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        observe: Callable[[FinishedRun], None] = lambda finished: None,
        trace: Callable[[FinishedRun], None] | None = None,
    ) -> None:
        self._observe = observe
        self._trace = trace
        self._ring: deque[FinishedRun] = deque(maxlen=RING_LENGTH)
        self._file = file
        self._descriptor: int | None = None
        self._unwritten = bytearray()
        self._lost_records = 0
        self._has_failed = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> UsageLedger:
        if self._file is not None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self._file, flags, 0o640)
            except OSError as error:
                reason = (error.strerror or type(error).__name__).lower()
                raise UsageFileError(self._file, reason) from None
            if _ends_amid_a_line(self._descriptor):
                self._unwritten += b"\n"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def record(self, finished: FinishedRun) -> None:
        record = finished.record
        self._ring.append(finished)
        encoded = _encode(record)
        if logs.shows_debug():
            for decision in finished.decisions:
                explained = msgspec.to_builtins(decision.explain())
                _log.debug("run_decided", decision=explained, run_id=record.run_id)
        _run_finished.write(encoded)
        if finished.gate is not None:
            for recovery in finished.gate.recoveries:
                _log.info("run_recovery", run_id=record.run_id, **msgspec.to_builtins(recovery))
        self._observe(finished)
        if self._trace is not None:
            self._trace(finished)
        if self._descriptor is None:
            return
        if len(self._unwritten) > MAX_UNWRITTEN_BYTES:
            self._lost_records += 1
            return
        self._unwritten += encoded
        self._unwritten += b"\n"
        self._flush_later()

    def latest(self, limit: int = RING_LENGTH) -> list[RunReport]:
        """The latest runs, newest first."""
        newest: Iterable[FinishedRun] = reversed(self._ring)
        return [
            RunReport(
                run=finished.record,
                decisions=tuple(decision.explain() for decision in finished.decisions),
                gate=finished.gate,
            )
            for finished, _ in zip(newest, range(limit), strict=False)
        ]

    def _flush_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._descriptor is None or not self._unwritten:
            return
        try:
            while self._unwritten:
                # A disk that is full may take a part; the rest of the line follows later.
                del self._unwritten[: os.write(self._descriptor, self._unwritten)]
        except OSError as error:
            self._failed(error)
        else:
            self._recovered()

    def _failed(self, error: OSError) -> None:
        self._flush_later()
        if not self._has_failed:
            self._has_failed = True
            _log.error("usage_file_failed", error=error.strerror, text="it is tried again")

    def _recovered(self) -> None:
        if self._has_failed:
            _log.warning("usage_file_recovered", lost_records=self._lost_records)
            self._has_failed = False
            self._lost_records = 0


def _ends_amid_a_line(descriptor: int) -> bool:
    """Whether whoever wrote the file was killed while it did. False for what is no plain file."""
    try:
        size = os.fstat(descriptor).st_size
        return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    except OSError:
        return False
