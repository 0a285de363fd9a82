"""The ledger: one record for each run, in the log, the metrics, the ring and the file."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from iop_edge.config.effective import EffectiveConfig
from iop_edge.pool.catalog import Attribution, Catalog
from iop_edge.pool.demand import Demand
from iop_edge.pool.effects import Refused
from iop_edge.pool.pool import Pool
from iop_edge.runtime import usage
from iop_edge.runtime.usage import FinishedRun, UsageFileError, UsageLedger, UsageRecord
from iop_shared import logs
from iop_shared.ids import ModelId, RunId

FIELDS = [
    "run_id", "request_id", "started_at", "model", "token_ref", "principal_ref", "attribution",
    "provider_id", "node_id", "target", "generation", "input_tokens", "output_tokens",
    "usage_source", "attempts", "repaired", "end", "queue_ms", "first_byte_ms", "duration_ms",
]  # fmt: skip
"""As the interface lists them."""


def finished(number: int, **fields: Any) -> FinishedRun:
    record = UsageRecord(
        run_id=f"run_{number}",
        request_id="req",
        started_at="2026-08-02T10:00:00.000+00:00",
        model="smart",
        token_ref="ci",
        principal_ref="team",
        attribution=Attribution(kind="provider", id="gpu-a"),
        provider_id="gpu-a",
        node_id="a",
        target="served",
        generation=1,
        input_tokens=0,
        output_tokens=3,
        usage_source="reported",
        attempts=1,
        repaired=False,
        end="completed",
        queue_ms=0.0,
        first_byte_ms=1.5,
        duration_ms=2.5,
    )
    return FinishedRun(record=msgspec.structs.replace(record, **fields), decisions=())


def ids(file: Path) -> list[str]:
    return [json.loads(line)["run_id"] for line in file.read_text().splitlines() if line]


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logs._takes_records = False


async def test_a_record_is_the_same_everywhere_and_as_the_interface_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "json")
    observed: list[FinishedRun] = []
    async with UsageLedger(tmp_path / "usage.jsonl", observe=observed.append) as ledger:
        ledger.record(finished(1))
    await asyncio.sleep(0)  # a log line is written at the end of the turn
    line = json.loads((tmp_path / "usage.jsonl").read_text())
    assert list(line) == FIELDS
    assert line["attribution"] == {"kind": "provider", "id": "gpu-a"}
    assert line["input_tokens"] == 0
    [logged] = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert logged["event"] == "run_finished"
    assert {key: logged[key] for key in FIELDS} == line
    assert [one.record for one in observed] == [ledger.latest()[0].run]


@pytest.mark.req("POOL-12")
@pytest.mark.parametrize(("level", "events"), [
    ("debug", ["run_decided", "run_finished"]), ("info", ["run_finished"]),
])  # fmt: skip
async def test_at_level_debug_every_decision_behind_a_run_is_logged(
    capsys: pytest.CaptureFixture[str], level: logs.Level, events: list[str]
) -> None:
    logs.configure(level, "json")
    config = EffectiveConfig()
    pool = Pool(Catalog.from_config(config), config.provider_pool)
    [refused] = pool.admit(RunId("run_1"), Demand(model=ModelId("m"), operation=None), 0.0)
    assert isinstance(refused, Refused)
    run = msgspec.structs.replace(finished(1), decisions=(refused.decision,))
    UsageLedger().record(run)
    await asyncio.sleep(0)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == events
    assert {line["run_id"] for line in lines} == {"run_1"}
    if level == "debug":
        assert lines[0]["decision"]["outcome"] == "model_not_found"


async def test_only_the_latest_runs_are_remembered_the_newest_first() -> None:
    ledger = UsageLedger()
    for number in range(usage.RING_LENGTH + 5):
        ledger.record(finished(number))
    latest = [report.run.run_id for report in ledger.latest()]
    assert (len(latest), latest[0], latest[-1]) == (usage.RING_LENGTH, "run_260", "run_5")
    assert [report.run.run_id for report in ledger.latest(2)] == ["run_260", "run_259"]


async def test_a_line_that_a_killed_process_left_unfinished_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text('{"run_id":"whole"}\n{"run_id":"ha')
    async with UsageLedger(file) as ledger:
        ledger.record(finished(1))
    lines = file.read_text().splitlines()
    assert lines[1] == '{"run_id":"ha'
    assert json.loads(lines[2])["run_id"] == "run_1"
    async with UsageLedger(file) as ledger:
        ledger.record(finished(2))
    assert "" not in file.read_text().splitlines()


async def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "usage.jsonl"
    with pytest.raises(UsageFileError, match=rf"usage.file {file}: no such file or directory"):
        async with UsageLedger(file):
            pass


async def test_a_disk_that_is_full_for_a_while_loses_nothing_and_tears_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "json")
    monkeypatch.setattr(usage, "FLUSH_INTERVAL_S", 0.0)
    write, failures, has_recovered = os.write, [1, 2, 3], asyncio.Event()

    def flaky(descriptor: int, content: bytes) -> int:
        if failures:
            failures.pop()
            write(descriptor, bytes(content[:7]))
            content[:7] = b""  # type: ignore[index]  # the ledger's own buffer
            raise OSError(errno.ENOSPC, "No space left on device")
        has_recovered.set()
        return write(descriptor, content)

    monkeypatch.setattr(usage.os, "write", flaky)
    async with UsageLedger(tmp_path / "usage.jsonl") as ledger:
        ledger.record(finished(1))
        ledger.record(finished(2))
        async with asyncio.timeout(10):
            await has_recovered.wait()
    assert ids(tmp_path / "usage.jsonl") == ["run_1", "run_2"]
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events.count("usage_file_failed") == events.count("usage_file_recovered") == 1


async def test_what_waits_for_a_file_that_cannot_be_written_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(usage, "MAX_UNWRITTEN_BYTES", 2_000)
    monkeypatch.setattr(usage.os, "write", full)
    async with UsageLedger(tmp_path / "usage.jsonl") as ledger:
        for number in range(100):
            ledger.record(finished(number))
        assert len(ledger._unwritten) < 4_000
        assert ledger._lost_records > 80


_WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_usage import finished
from iop_edge.runtime.usage import UsageLedger

async def main():
    async with UsageLedger(Path(sys.argv[1])) as ledger:
        for number in range(50):
            ledger.record(finished(number))
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)  # what may be lost is the last second
        ledger.record(finished(50))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_process_that_is_killed_loses_at_most_the_records_of_its_last_second(
    tmp_path: Path,
) -> None:
    file = tmp_path / "usage.jsonl"
    ran = subprocess.run(
        [sys.executable, "-c", _WRITER, file, Path(__file__).parent],
        capture_output=True,
        timeout=60,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    assert ids(file)[:50] == [f"run_{number}" for number in range(50)]
