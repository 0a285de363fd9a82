"""Answers to several callers are written at the end of a turn: what happens within that turn."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import Request

Run = Callable[[Awaitable[Any]], Any]
RUNS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
GET = b"GET /%b HTTP/1.1\r\nHost: here\r\n\r\n"
CLOSING = b"GET /%b HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


async def greet(request: Request) -> None:
    await request.respond(200, b"hello " + request.path.encode())


def connected(listener: HttpListener) -> socket.socket:
    host, _, port = listener.address.rpartition(":")
    caller = socket.create_connection((host, int(port)))
    caller.setblocking(False)
    return caller


async def told(caller: socket.socket, end: bytes) -> bytes:
    """What a caller reads up to this end, or until there is no more."""
    loop, read = asyncio.get_running_loop(), b""
    async with asyncio.timeout(10):
        while not read.endswith(end) and (more := await loop.sock_recv(caller, 65_536)):
            read += more
    return read


class Together:
    """A handler whose answers are all due in the turn in which `now` is called."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self.waiting = 0
        self.is_full = asyncio.Event()

    async def __call__(self, request: Request) -> None:
        if request.path.startswith("/wait"):
            self.waiting += 1
            if self.waiting == 4:
                self.is_full.set()
            await self._due.wait()
        await greet(request)

    def now(self, _: bytes) -> None:
        self._due.set()


class Signal(asyncio.Protocol):
    """Calls this with what arrives on its connection."""

    def __init__(self, act: Callable[[bytes], None]) -> None:
        self._act = act

    def data_received(self, data: bytes) -> None:
        self._act(data)


@RUNS
@pytest.mark.parametrize("leaves", ["with a reset", "with an end"])
def test_a_caller_that_leaves_as_all_are_answered_takes_nobodys_answer(
    run: Run, leaves: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        wrong: list[Any] = []
        loop.set_exception_handler(lambda _, context: wrong.append(context))
        handler = Together()
        signals = await loop.create_server(lambda: Signal(handler.now), "127.0.0.1", 0)
        async with signals, HttpListener(handler, "127.0.0.1:0") as listener:
            callers = [connected(listener) for _ in range(4)]
            for caller in callers:
                await loop.sock_sendall(caller, GET % b"wait")
            await handler.is_full.wait()
            leaver, *others = callers
            signal = socket.create_connection(signals.sockets[0].getsockname())
            # One poll finds both: what lets all be answered, and that one of them has gone.
            signal.sendall(b"now")
            if leaves == "with a reset":
                leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.close()
            for caller in others:
                assert (await told(caller, b"/wait")).endswith(b"hello /wait")
                await loop.sock_sendall(caller, GET % b"again")
                assert (await told(caller, b"/again")).endswith(b"hello /again")
                caller.close()
            signal.close()
        assert wrong == []

    run(main())


@RUNS
def test_a_caller_that_ends_its_side_at_once_has_its_answer_beside_others(run: Run) -> None:
    async def main() -> None:
        async with HttpListener(greet, "127.0.0.1:0") as listener:
            others = [connected(listener) for _ in range(2)]
            for _ in range(20):
                caller = connected(listener)
                caller.setblocking(True)
                caller.sendall(GET % b"half")
                caller.shutdown(socket.SHUT_WR)
                caller.setblocking(False)
                assert (await told(caller, b"/half")).endswith(b"hello /half")
                caller.close()
            for other in others:
                other.close()

    run(main())


@RUNS
def test_an_answer_that_closes_is_whole_beside_others(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with HttpListener(greet, "127.0.0.1:0") as listener:
            callers = [connected(listener) for _ in range(5)]
            for caller in callers:
                await loop.sock_sendall(caller, CLOSING % b"last")
            for caller in callers:
                answer = await told(caller, b"\0")
                assert answer.endswith(b"hello /last")
                caller.close()

    run(main())


@RUNS
def test_whole_answers_reach_a_caller_whose_last_request_fails_in_the_same_turn(run: Run) -> None:
    async def fail_late(request: Request) -> None:
        if request.path == "/fail":
            await request.start(200, [(b"content-type", b"text/plain")])
            await request.write(b"part")
            raise RuntimeError
        await greet(request)

    async def main() -> None:
        async with HttpListener(fail_late, "127.0.0.1:0") as listener:
            other, caller = connected(listener), connected(listener)
            caller.setblocking(True)
            caller.sendall(GET % b"one" + GET % b"two" + GET % b"fail")
            caller.setblocking(False)
            answers = b""
            try:
                answers = await told(caller, b"\0")
            except ConnectionResetError:
                pytest.fail("nothing of the answers before it has come")
            assert b"hello /one" in answers
            assert b"hello /two" in answers
            assert not answers.endswith(b"0\r\n\r\n")
            other.close()
            caller.close()

    run(main())
