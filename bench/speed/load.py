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

_LEAST_PLAIN = len(plain_answer()) // 2
"""A proxy may write an answer anew in fewer bytes, never in half of them."""

_GIVE_UP_S = 60.0


class Order(msgspec.Struct, frozen=True):
    """What to send where. It ends after `seconds`, once what is in flight has come."""

    port: int
    kind: Kind
    in_flight: int
    seconds: float
    path: str = "/v1/chat/completions"
    token: str = "bench"  # what a caller shows in `Authorization`


class Figures(msgspec.Struct, frozen=True):
    """What came: whole answers, and times in milliseconds. `error` tells why there is nothing."""

    requests: int
    took_s: float
    p50_ms: float
    p99_ms: float
    first_byte_p50_ms: float
    error: str | None = None


class Wrong(Exception):
    """An answer that is not the one that is due."""


class Caller(asyncio.Protocol):
    """One kept connection that sends its next request as soon as the last is answered."""

    def __init__(self, order: Order, until: float, requests: list[tuple[float, float]]) -> None:
        body = request_body(order.kind)
        self._request = (
            f"POST {order.path} HTTP/1.1\r\nHost: 127.0.0.1:{order.port}\r\n"
            f"Authorization: Bearer {order.token}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._is_plain = order.kind == "plain"
        self._until = until
        self._requests = requests
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
            self._end(Wrong(str(error)))

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
            self._end(Wrong(f"status {status}, {len(body)} bytes: {body[:200]!r}"))
            return
        self._requests.append((now - self._began, self._first - self._began))
        if now >= self._until:
            self._end()
        elif self._parser.should_keep_alive():
            self._send()
        else:
            self._end(Wrong("the connection is not kept alive"))

    def _is_whole(self, body: bytes) -> bool:
        if self._is_plain:
            return len(body) >= _LEAST_PLAIN
        return body.rstrip().endswith(DONE.rstrip()) and body.count(b"data: ") >= CHUNKS

    def _end(self, error: Exception | None = None) -> None:
        assert self._transport is not None
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        self._transport.abort()


async def run(order: Order) -> Figures:
    """Carry out one order. Never raises for what the other end does."""
    loop = asyncio.get_running_loop()
    requests: list[tuple[float, float]] = []
    began = perf_counter()
    callers: list[Caller] = []
    try:
        for _ in range(order.in_flight):
            _, caller = await loop.create_connection(
                lambda: Caller(order, began + order.seconds, requests), "127.0.0.1", order.port
            )
            callers.append(caller)
        async with asyncio.timeout(order.seconds + _GIVE_UP_S):
            await asyncio.gather(*(caller.ended for caller in callers))
    except (OSError, Wrong) as error:
        return Figures(0, 0.0, 0.0, 0.0, 0.0, error=str(error) or type(error).__name__)
    finally:
        for caller in callers:
            caller._end()
    took_s = perf_counter() - began
    whole, first = (sorted(times) for times in zip(*requests, strict=True))
    return Figures(
        requests=len(requests),
        took_s=took_s,
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
