"""One record for each run, whatever its end.

The record goes to the log (event `run_finished`), to a bounded ring that status reads, and to a
JSON-lines file where one is configured. It names ids, counts and durations, and holds no prompt,
completion or token.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from iop_edge.pool.catalog import Attribution
from iop_edge.pool.explain import Decision, Explanation
from iop_shared import logs

RING_LENGTH = 256
FLUSH_INTERVAL_S = 0.5
"""A kill -9 loses at most this much of the file."""

UsageSource = Literal["reported", "estimated", "none"]

_log = logs.get("runs")


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one run used, and how it ended (interface, section 4). Times in milliseconds.

    `end` is `completed`, `error:<code>` or `cancelled`. A value that was never known is None.
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


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A record and the decisions behind it, not yet put into words."""

    record: UsageRecord
    decisions: tuple[Decision, ...]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run as `GET /runs` shows it."""

    run: UsageRecord
    decisions: tuple[Explanation, ...]


class UsageLedger:
    """Takes each run's record once. Use as an async context where a file is configured."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        observe: Callable[[UsageRecord], None] = lambda record: None,
    ) -> None:
        self._observe = observe
        self._ring: deque[FinishedRun] = deque(maxlen=RING_LENGTH)
        self._file = file
        self._descriptor: int | None = None
        self._unwritten: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> UsageLedger:
        if self._file is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._file, flags, 0o640)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def record(self, finished: FinishedRun) -> None:
        self._ring.append(finished)
        record = finished.record
        self._observe(record)
        _log.info("run_finished", **msgspec.to_builtins(record))
        if self._descriptor is not None:
            self._unwritten.append(msgspec.json.encode(record) + b"\n")
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(FLUSH_INTERVAL_S, self._flush)

    def latest(self, limit: int = RING_LENGTH) -> list[RunReport]:
        """The latest runs, newest first."""
        newest: Iterable[FinishedRun] = reversed(self._ring)
        return [
            RunReport(
                run=finished.record,
                decisions=tuple(decision.explain() for decision in finished.decisions),
            )
            for finished, _ in zip(newest, range(limit), strict=False)
        ]

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._descriptor is None or not self._unwritten:
            return
        lines, self._unwritten = self._unwritten, []
        try:
            # O_APPEND: whole lines go in at the end, whoever else writes the file.
            os.write(self._descriptor, b"".join(lines))
        except OSError as error:
            _log.error("usage_file_failed", error=error.strerror, lost_records=len(lines))
