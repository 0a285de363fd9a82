import asyncio
import json
import logging
import warnings
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from iop_shared import logs
from iop_shared.errors import Code, Fault

HOSTILE = "a\nb\x1b[31mred\x9b31m\u202edloh\x07"


class Seen(msgspec.Struct):
    model: str
    token_ref: str
    input_tokens: int | None = None


class Secretive(msgspec.Struct):
    password: str


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logs._takes_records = False


def raise_with(message: str) -> None:
    try:
        try:
            raise KeyError(message)
        except KeyError as cause:
            raise ValueError(message) from cause
    except ValueError:
        logs.get("test").exception("it_failed")


@pytest.mark.req("SEC-1", "OPS-3")
def test_a_record_is_logged_in_the_shape_of_any_other_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "json")
    record = Seen(model="m", token_ref="ci", input_tokens=None)
    logs.RecordLog("test", "seen", Seen).write(msgspec.json.encode(record))
    logs.get("test").info("seen", **msgspec.structs.asdict(record))
    fast, slow = map(json.loads, capsys.readouterr().err.splitlines())
    assert list(fast) == list(slow)
    assert len(fast.pop("timestamp")) == len(slow.pop("timestamp"))
    assert fast == slow


@pytest.mark.req("SEC-1")
def test_a_record_with_a_field_that_would_be_redacted_is_refused() -> None:
    with pytest.raises(ValueError, match="password"):
        logs.RecordLog("test", "seen", Secretive)


@pytest.mark.parametrize(("level", "shown"), [("debug", 1), ("info", 1), ("warning", 0)])
@pytest.mark.parametrize("output", ["json", "console"])
def test_records_are_logged_at_level_info(
    capsys: pytest.CaptureFixture[str], level: logs.Level, output: logs.Format, shown: int
) -> None:
    logs.configure(level, output)
    logs.RecordLog("test", "seen", Seen).write(b'{"model":"m"}')
    assert len(capsys.readouterr().err.splitlines()) == shown


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("output", ["json", "console"])
def test_nothing_of_a_callers_is_raw_in_a_line(
    capsys: pytest.CaptureFixture[str], output: logs.Format
) -> None:
    logs.configure("info", output)
    logs.get("test").info("seen", model=HOSTILE, nested={"inner": [HOSTILE]})
    logs.RecordLog("test", "seen", Seen).write(msgspec.json.encode(Seen(HOSTILE, "ci")))
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert all("red" in line for line in lines[:2])


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("output", ["json", "console"])
def test_an_exception_is_told_without_its_message(
    capsys: pytest.CaptureFixture[str], output: logs.Format
) -> None:
    logs.configure("debug", output)
    raise_with("the prompt \x1b[31m")
    told = capsys.readouterr().err
    assert "prompt" not in told
    assert "\x1b" not in told
    for word in ("it_failed", "ValueError", "KeyError", "raise_with", "test_logs.py"):
        assert word in told


def test_a_fault_is_told_by_its_code_and_an_os_error_by_its_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("debug", "json")
    for error in (Fault(Code.QUEUE_FULL, "message"), FileNotFoundError(2, "message", "/secret")):
        logs.get("test").error("failed", exc_info=error)
    kinds = [
        json.loads(line)["exception"][0]["exc_type"]
        for line in capsys.readouterr().err.splitlines()
    ]
    assert kinds == ["Fault(queue_full)", "FileNotFoundError(ENOENT)"]


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("output", ["json", "console"])
def test_what_a_library_says_is_a_line_like_any_other_without_what_it_quotes(
    capsys: pytest.CaptureFixture[str], output: logs.Format
) -> None:
    logs.configure("info", output)

    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda prompt: [][0], "the prompt")
        loop.call_exception_handler(
            {"message": "Task exception was never retrieved", "exception": ValueError("prompt")}
        )
        await asyncio.sleep(0)

    asyncio.run(fail())
    logging.getLogger("some.library").warning("odd: %r\nsecond line", "the prompt")
    logging.getLogger("some.library").info("not heard")
    told = capsys.readouterr().err
    assert "prompt" not in told.replace("lambda prompt", "")
    for words in ("Task exception was never retrieved", "Exception in callback", "IndexError"):
        assert words in told
    if output == "json":
        lines = [json.loads(line) for line in told.splitlines()]
        assert [line["library"] for line in lines] == ["asyncio", "asyncio", "some.library"]
        assert {line["level"] for line in lines} == {"error", "warning"}


@pytest.mark.req("SEC-1")
def test_values_under_names_of_secrets_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logs.get("test").info("seen", provider_token="x", Authorization="x", token_ref="ci")
    line = json.loads(capsys.readouterr().err)
    assert (line["provider_token"], line["Authorization"]) == ("[redacted]", "[redacted]")
    assert line["token_ref"] == "ci"


@pytest.mark.req("OPS-3")
async def test_records_of_one_turn_of_the_loop_are_written_at_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[list[str]] = []

    class Stream:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            if told := [json.loads(line) for line in text.splitlines() if line]:
                written.append([line.get("model", line["event"]) for line in told])
            return len(text)

        def flush(self) -> None: ...

    monkeypatch.setattr("sys.stderr", Stream())
    logs.configure("info", "json")
    record = logs.RecordLog("test", "seen", Seen).write
    record(b'{"model":"a"}')
    record(b'{"model":"b"}')
    assert written == []
    await asyncio.sleep(0)
    assert written == [["a", "b"]]
    record(b'{"model":"c"}')
    logs.get("test").info("between")
    record(b'{"model":"d"}')
    await asyncio.sleep(0)
    assert written == [["a", "b"], ["c"], ["between"], ["d"]]


def test_a_record_is_no_fault_of_the_run_where_nobody_reads_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

    logs.configure("info", "json")
    monkeypatch.setattr("sys.stderr", Closed())
    with warnings.catch_warnings():
        logs.RecordLog("test", "seen", Seen).write(b'{"model":"m"}')
