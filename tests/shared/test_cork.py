from __future__ import annotations

import asyncio
from typing import Any

import pytest

from iop_shared.cork import MAX_HELD_BYTES, Cork, CorkedTransport

MANY = range(2)


class _Transport(asyncio.Transport):
    """Keeps what is done to it."""

    def __init__(self) -> None:
        super().__init__({"socket": "the socket"})
        self.done: list[Any] = []
        self.buffered_bytes = 5

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(data)

    def write_eof(self) -> None:
        self.done.append("eof")

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return "close" in self.done

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes


def _corked() -> tuple[_Transport, CorkedTransport, Cork]:
    cork = Cork(MANY)
    transport = _Transport()
    return transport, CorkedTransport(transport, cork), cork


async def test_what_a_turn_writes_leaves_at_its_end_in_one_piece() -> None:
    transport, corked, _ = _corked()
    for piece in (b"one ", bytearray(b"two "), memoryview(b"three")):
        corked.write(piece)
    assert transport.done == []
    await asyncio.sleep(0)
    assert transport.done == [b"one two three"]
    corked.write(b"next")
    await asyncio.sleep(0)
    assert transport.done == [b"one two three", b"next"]


async def test_all_connections_of_a_cork_write_in_the_same_turn_and_in_their_order() -> None:
    cork = Cork(MANY)
    order: list[str] = []

    class Named(_Transport):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def write(self, data: bytes | bytearray | memoryview) -> None:
            order.append(self._name)

    names = ["first", "second", "third"]
    corked = [CorkedTransport(Named(name), cork) for name in names]
    for each in corked:
        each.write(b"x")
    corked[0].write(b"y")
    await asyncio.sleep(0)
    assert order == names


async def test_what_is_written_in_the_turn_of_a_flush_waits_for_the_next() -> None:
    cork = Cork(MANY)
    transport = _Transport()
    later = CorkedTransport(transport, cork)

    class Answering(_Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            later.write(b"later")

    CorkedTransport(Answering(), cork).write(b"now")
    await asyncio.sleep(0)
    assert transport.done == []
    await asyncio.sleep(0)
    assert transport.done == [b"later"]


@pytest.mark.parametrize("act", ["write_eof", "close"])
async def test_an_end_comes_after_what_was_written_before_it(act: str) -> None:
    transport, corked, _ = _corked()
    corked.write(b"last words")
    getattr(corked, act)()
    assert transport.done == [b"last words", act.removeprefix("write_")]
    await asyncio.sleep(0)
    assert len(transport.done) == 2


async def test_a_connection_that_is_alone_waits_for_nobody() -> None:
    connections = {"one"}
    cork, transport = Cork(connections), _Transport()
    corked = CorkedTransport(transport, cork)
    corked.write(b"at once")
    assert transport.done == [b"at once"]
    connections.add("two")
    corked.write(b"later")
    connections.remove("two")
    corked.write(b" on")
    assert transport.done == [b"at once"]
    await asyncio.sleep(0)
    assert transport.done == [b"at once", b"later on"]


async def test_an_abort_comes_after_what_was_written_before_it() -> None:
    transport, corked, _ = _corked()
    corked.write(b"a whole answer")
    corked.abort()
    await asyncio.sleep(0)
    assert transport.done == [b"a whole answer", "abort"]


async def test_what_waits_is_forgotten_once_nobody_is_there() -> None:
    transport, corked, _ = _corked()
    corked.write(b"never")
    corked.drop()
    await asyncio.sleep(0)
    assert transport.done == []
    assert corked.get_write_buffer_size() == transport.buffered_bytes


async def test_what_waits_of_a_transport_that_has_closed_itself_goes_nowhere() -> None:
    transport, corked, _ = _corked()
    corked.write(b"too late")
    transport.close()
    await asyncio.sleep(0)
    assert transport.done == ["close"]


@pytest.mark.parametrize("end", ["write_eof", "close"])
async def test_what_is_written_after_the_end_is_the_transport_s_to_refuse(end: str) -> None:
    transport, corked, _ = _corked()
    getattr(corked, end)()
    corked.write(b"more")
    assert transport.done == [end.removeprefix("write_"), b"more"]


async def test_a_transport_that_takes_no_write_takes_nobody_elses() -> None:
    class Broken(_Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            raise RuntimeError("no")

    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    cork, broken, transport = Cork(MANY), Broken(), _Transport()
    for each in (broken, transport):
        CorkedTransport(each, cork).write(b"answer")
    await asyncio.sleep(0)
    assert transport.done == [b"answer"]
    assert broken.done == ["abort"]
    [context] = wrong
    assert str(context["exception"]) == "no"


async def test_no_more_is_held_than_the_limit() -> None:
    transport, corked, _ = _corked()
    corked.write(b"x" * MAX_HELD_BYTES)
    assert transport.done == []
    assert corked.get_write_buffer_size() == MAX_HELD_BYTES + transport.buffered_bytes
    corked.write(b"y")
    assert [len(each) for each in transport.done] == [MAX_HELD_BYTES + 1]
    assert corked.get_write_buffer_size() == transport.buffered_bytes
    await asyncio.sleep(0)
    assert len(transport.done) == 1


async def test_all_else_is_the_transport_s_own() -> None:
    transport, corked, _ = _corked()
    corked.pause_reading()
    corked.resume_reading()
    assert transport.done == ["pause", "resume"]
    assert corked.can_write_eof()
    assert not corked.is_closing()
    corked.close()
    assert corked.is_closing()
    assert corked.get_extra_info("socket") == "the socket"
    assert corked.get_extra_info("nothing", "given") == "given"


async def test_its_repr_tells_sizes_and_never_what_is_written() -> None:
    _, corked, cork = _corked()
    corked.write(b"sk-secret")
    assert "held=9" in repr(corked)
    assert "1 connections" in repr(cork)
    assert "secret" not in repr(corked) + repr(cork)
