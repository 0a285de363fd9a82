from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from iop_edge.runtime.attempt import Attempt as EdgeAttempt
from iop_node.adapters.base import Responder, TunnelCall
from iop_node.runtime.router import Attempt
from iop_shared import logs
from iop_shared.errors import Code, Fault
from iop_shared.session.flow import INITIAL_WINDOW_BYTES, MAX_WINDOW_BYTES

from .conftest import Pair


async def body_of(attempt: Attempt) -> bytes:
    assert isinstance(attempt.work, TunnelCall)
    if isinstance(attempt.work.body, bytes):
        return attempt.work.body
    return b"".join([piece async for piece in attempt.work.body])


async def echo(attempt: Attempt, out: Responder) -> None:
    body = await body_of(attempt)
    out.started()
    out.head(200, [("content-type", "application/json")])
    await out.chunk(body)


async def answer_of(attempt: EdgeAttempt) -> bytes:
    await attempt.head()
    pieces = []
    while (piece := await attempt.next_chunk()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 5 * MAX_WINDOW_BYTES + 7])
async def test_a_request_and_its_answer_cross_whole_whatever_their_size(
    pair: Pair, size: int
) -> None:
    await pair.join(echo)
    body = bytes(index % 251 for index in range(size))
    async with asyncio.timeout(20):
        assert await answer_of(pair.open(body)) == body


async def test_many_answers_at_once_are_never_mixed_up(pair: Pair) -> None:
    await pair.join(echo)
    bodies = [bytes([number]) * (40_000 + number) for number in range(40)]
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*(answer_of(pair.open(body)) for body in bodies))
    assert answers == bodies


@pytest.mark.req("NODE-8")
async def test_a_caller_that_does_not_read_stops_its_own_upstream_and_no_other(pair: Pair) -> None:
    passed = 0

    async def endless(attempt: Attempt, out: Responder) -> None:
        nonlocal passed
        if await body_of(attempt) == b"short":
            await echo(attempt, out)
            return
        out.head(200, [])
        while True:
            await out.chunk(b"x" * 4096)
            passed += 4096

    await pair.join(endless)
    slow = pair.open(b"endless")
    await slow.head()
    async with asyncio.timeout(20):
        # By the time these have crossed, the slow one has had every chance to overrun.
        for _ in range(20):
            assert await answer_of(pair.open(b"short")) == b"short"
    assert passed <= INITIAL_WINDOW_BYTES
    first = await slow.next_chunk()
    assert first is not None
    slow.cancel("caller_gone")


@pytest.mark.req("NODE-7")
async def test_a_cancel_reaches_the_adapter_and_ends_it(pair: Pair) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def silent(attempt: Attempt, out: Responder) -> None:
        out.started()
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    session, _, _ = await pair.join(silent)
    attempt = pair.open()
    async with asyncio.timeout(5):
        await began.wait()
        attempt.cancel("caller_gone")
        await ended.wait()
    assert session.open_attempts == 0


@pytest.mark.req("NODE-7")
async def test_an_attempt_that_was_never_sent_is_cancelled_without_a_word(pair: Pair) -> None:
    opened: list[Attempt] = []

    async def note(attempt: Attempt, out: Responder) -> None:
        opened.append(attempt)
        await echo(attempt, out)

    await pair.join(note)
    pair.open(b"cancelled").cancel("caller_gone")
    async with asyncio.timeout(5):
        assert await answer_of(pair.open(b"kept")) == b"kept"
    assert [await body_of(attempt) for attempt in opened] == [b"kept"]


async def test_a_fault_keeps_its_code_and_says_whether_the_upstream_had_begun(pair: Pair) -> None:
    async def refused(attempt: Attempt, out: Responder) -> None:
        raise Fault(Code.UPSTREAM_REFUSED, "the upstream refused the connection")

    async def cut(attempt: Attempt, out: Responder) -> None:
        out.started()
        raise Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection")

    for execute, code, has_started in (
        (refused, Code.UPSTREAM_REFUSED, False),
        (cut, Code.UPSTREAM_CLOSED, True),
    ):
        await pair.join(execute)
        attempt = pair.open()
        with pytest.raises(Fault) as caught:
            await attempt.head()
        assert caught.value.code is code
        assert attempt.has_upstream_started is has_started


@pytest.mark.req("OPS-3", "SEC-1")
async def test_a_nodes_log_names_the_run_of_each_attempt_and_how_it_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_shows_debug", True)

    async def refused(attempt: Attempt, out: Responder) -> None:
        raise Fault(Code.UPSTREAM_REFUSED, "canary of what an upstream said")

    async def broken(attempt: Attempt, out: Responder) -> None:
        raise ValueError("canary")

    async def endless(attempt: Attempt, out: Responder) -> None:
        out.head(200, [])
        await asyncio.Event().wait()

    ids = {"component": "link", "run_id": "run", "attempt": 1, "generation": 0, "provider_id": ""}
    with capture_logs() as lines:
        await pair.join(echo)
        assert await answer_of(pair.open(b"x")) == b"x"
        for execute in (refused, broken):
            await pair.join(execute)
            with pytest.raises(Fault):
                await pair.open().head()
        await pair.join(endless)
        attempt = pair.open()
        await attempt.head()
        attempt.cancel("caller_gone")
        async with asyncio.timeout(5):
            while lines[-1]["event"] != "attempt_cancelled":
                await asyncio.sleep(0)
    told = [line for line in lines if line["event"].startswith("attempt_")]
    for line in told:
        line.pop("exc_info", None)
    assert told == [
        {**ids, "event": "attempt_completed", "log_level": "debug"},
        {**ids, "event": "attempt_failed", "code": "upstream_refused", "log_level": "info"},
        {**ids, "event": "attempt_failed", "code": "internal", "log_level": "error"},
        {**ids, "event": "attempt_cancelled", "log_level": "debug"},
    ]


async def test_what_came_before_a_fault_is_still_given_to_the_caller(pair: Pair) -> None:
    async def broken(attempt: Attempt, out: Responder) -> None:
        out.head(200, [])
        await out.chunk(b"half of it")
        raise Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection")

    await pair.join(broken)
    attempt = pair.open()
    await attempt.head()
    assert await attempt.next_chunk() == b"half of it"
    with pytest.raises(Fault, match="the upstream closed"):
        await attempt.next_chunk()


async def test_a_bug_in_an_adapter_is_an_internal_fault_and_leaves_the_session_open(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    async def buggy(attempt: Attempt, out: Responder) -> None:
        raise RuntimeError("a detail that no caller may see")

    session, _, _ = await pair.join(buggy)
    with pytest.raises(Fault) as caught:
        await pair.open().head()
    assert caught.value.code is Code.INTERNAL
    assert "detail" not in caught.value.message
    assert session.is_open


@pytest.mark.req("NODE-6")
async def test_when_the_session_is_lost_every_attempt_hears_it_once(pair: Pair) -> None:
    async def silent(attempt: Attempt, out: Responder) -> None:
        await asyncio.Event().wait()

    session, _, _ = await pair.join(silent)
    attempts = [pair.open() for _ in range(3)]
    session.close("the cable was cut")
    for attempt in attempts:
        with pytest.raises(Fault) as caught:
            await attempt.head()
        assert caught.value.code is Code.NODE_LOST
    with pytest.raises(Fault, match="is not connected"):
        pair.open()


async def test_a_request_body_that_nobody_reads_is_held_to_one_window(pair: Pair) -> None:
    taken: list[int] = []
    go_on = asyncio.Event()

    async def lazy(attempt: Attempt, out: Responder) -> None:
        assert isinstance(attempt.work, TunnelCall)
        pieces: AsyncIterator[bytes] = attempt.work.body  # type: ignore[assignment]
        await go_on.wait()
        async for piece in pieces:
            taken.append(len(piece))
        out.head(200, [])

    session, _, _ = await pair.join(lazy)
    size = 4 * INITIAL_WINDOW_BYTES
    attempt = pair.open(b"x" * size)
    other = session.answers_within(5)
    assert await other, "the session itself goes on"
    go_on.set()
    async with asyncio.timeout(10):
        await attempt.head()
    assert sum(taken) == size
