"""The load: so many requests in flight over kept connections, for so long, every answer judged.

    python -m bench.speed.load            reads one `Order` a line, answers each with one `Figures`

It runs in a process of its own, so that its cost is in nobody's figures. An answer counts only with
status 200 and whole: the length that is due for a plain one, `[DONE]` at the end of a stream. One
that is anything else ends the order with an error, so that no refusal is ever taken for speed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import cast

import httptools
import msgspec
import uvloop

from bench.speed.answers import CHUNKS, DONE, Kind, plain_answer, request_body
from bench.speed.processes import cpu_s, wait_quiet
from bench.speed.running import CALLER_TOKEN

_LEAST_PLAIN = len(plain_answer()) // 2
"""A proxy may write an answer anew in fewer bytes, never in half of them."""

_GIVE_UP_S = 60.0
_OPENING_AT_ONCE, _OPENING_PAUSE_S = 64, 0.02
"""A listener's backlog is often 100, and one more would wait a second to try again."""


class Order(msgspec.Struct, frozen=True):
    """What to send where, for so long.

    An order counts every answer until the last one in flight has come, and the CPU of `processes`
    over the same time. With `slots` it is for a queue: streams that stay open take that many slots
    until all requests wait, then leave, and only from then on is anything counted; at the end the
    rest is left unanswered.
    """

    port: int
    kind: Kind
    in_flight: int
    seconds: float
    headers: dict[str, str] = {}  # besides those that every caller sends
    processes: dict[str, list[int]] = {}
    slots: int = 0


class Figures(msgspec.Struct, frozen=True):
    """What came: whole answers, and times in milliseconds. `error` tells why there is nothing."""

    requests: int = 0
    cpu_s: dict[str, float] = {}
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    first_byte_p50_ms: float = 0.0
    error: str | None = None


class Wrong(Exception):
    """An answer that is not the one that is due."""


class Course:
    """One order under way: what has come so far, and when it is over."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.until = float("inf")
        self.times: list[tuple[float, float]] = []
        """Seconds to the end and to the first byte, of each whole answer."""

    def begin(self) -> None:
        self.times.clear()
        self.until = perf_counter() + self.order.seconds

    def cpu_s(self) -> dict[str, float]:
        return {name: cpu_s(pids) for name, pids in self.order.processes.items()}


class Caller(asyncio.Protocol):
    """One kept connection that sends its next request as soon as the last is answered."""

    def __init__(self, course: Course, kind: Kind | None = None) -> None:
        order = course.order
        body = request_body(kind or order.kind)
        headers = {
            "Host": f"127.0.0.1:{order.port}",
            "Authorization": f"Bearer {CALLER_TOKEN}",
            "Accept": "*/*",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **order.headers,
        }
        lines = ["POST /v1/chat/completions HTTP/1.1", *map(": ".join, headers.items()), "", ""]
        self._request = "\r\n".join(lines).encode() + body
        self._is_plain = order.kind == "plain"
        self._course = course
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(Wrong(f"the connection was lost ({exc or 'closed'})"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(Wrong(str(error)))

    def _send(self) -> None:
        assert self._transport is not None
        self._pieces: list[bytes] = []
        self._first = 0.0
        self._began = perf_counter()
        self._transport.write(self._request)

    def on_body(self, body: bytes) -> None:
        if not self._pieces:
            self._first = perf_counter()
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        now = perf_counter()
        body = b"".join(self._pieces)
        status = self._parser.get_status_code()
        if status != 200 or not self._is_whole(body):
            self.end(Wrong(f"status {status}, {len(body)} bytes: {body[:200]!r}"))
            return
        self._course.times.append((now - self._began, self._first - self._began))
        if now >= self._course.until:
            self.end()
        elif self._parser.should_keep_alive():
            self._send()
        else:
            self.end(Wrong("the connection is not kept alive"))

    def _is_whole(self, body: bytes) -> bool:
        if self._is_plain:
            return len(body) >= _LEAST_PLAIN
        return body.rstrip().endswith(DONE.rstrip()) and body.count(b"data: ") >= CHUNKS + 2

    def end(self, error: Exception | None = None) -> None:
        assert self._transport is not None
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        self._transport.abort()


async def _open(course: Course, count: int, kind: Kind | None = None) -> list[Caller]:
    """So many callers, each with a request under way."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []
    while len(callers) < count:
        opening = [
            loop.create_connection(lambda: Caller(course, kind), "127.0.0.1", course.order.port)
            for _ in range(min(_OPENING_AT_ONCE, count - len(callers)))
        ]
        callers += [caller for _, caller in await asyncio.gather(*opening)]
        if len(callers) < count:
            await asyncio.sleep(_OPENING_PAUSE_S)
    return callers


async def _queue_up(course: Course) -> list[Caller]:
    """All callers, of whom none has been served when the slots become free."""
    pids = [pid for family in course.order.processes.values() for pid in family]
    held = await _open(course, course.order.slots, "held")
    wait_quiet(pids)
    callers = await _open(course, course.order.in_flight)
    wait_quiet(pids)
    for caller in held:
        caller.end()
    return callers


async def run(order: Order) -> Figures:
    """Carry out one order. Never raises for what the other end does."""
    course = Course(order)
    callers: list[Caller] = []
    before = course.cpu_s()
    try:
        if order.slots:
            callers = await _queue_up(course)
            before = course.cpu_s()
            course.begin()
        else:
            course.begin()
            callers = await _open(course, order.in_flight)
        await asyncio.wait(
            [caller.ended for caller in callers],
            timeout=order.seconds + (0.0 if order.slots else _GIVE_UP_S),
            return_when=asyncio.FIRST_EXCEPTION,
        )
        used = {name: now - before[name] for name, now in course.cpu_s().items()}
    except OSError as error:
        return Figures(error=str(error))
    finally:
        is_over = all(caller.ended.done() for caller in callers)
        for caller in callers:
            caller.end()
    wrong = [caller.ended.exception() for caller in callers]
    if any(wrong):
        return Figures(error=str(next(filter(None, wrong))))
    if not course.times or not (is_over or order.slots):
        return Figures(error=f"an answer did not come within {_GIVE_UP_S:g} s")
    whole, first = (sorted(times) for times in zip(*course.times, strict=True))
    return Figures(
        requests=len(whole),
        cpu_s=used,
        p50_ms=quantile(whole, 0.5) * 1e3,
        p99_ms=quantile(whole, 0.99) * 1e3,
        first_byte_p50_ms=quantile(first, 0.5) * 1e3,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def _main() -> None:
    for line in iter(sys.stdin.buffer.readline, b""):
        figures = await run(msgspec.json.decode(line, type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_main())
