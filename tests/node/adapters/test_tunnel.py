"""The tunnel of the profile-driven adapters, against upstreams scripted on raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from iop_shared.errors import Code, Fault


def script_of(*parts):
    async def script(conn):
        await conn.request()
        for part in parts:
            await conn.send(part)

    return script


async def fault_of(awaitable) -> Fault:
    with pytest.raises(Fault) as caught:
        await awaitable
    return caught.value


class TestAnAnswer:
    @pytest.mark.req("PROF-5", "PROF-8", "NODE-5")
    async def test_is_relayed_byte_for_byte_from_the_operations_url(
        self, upstream, adapter_on, call, sink
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.answer(b'{"ok":true}', headers="Content-Type: application/json\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(body=b'{"model":"m","x":1}'), sink)
        assert (sink.status, sink.body) == (200, b'{"ok":true}')
        assert sink.headers == [("content-type", "application/json")]
        assert sink.starts == 1
        (received,) = seen
        assert (received.method, received.path) == ("POST", "/v1/chat/completions")
        assert received.body == b'{"model":"m","x":1}'
        assert received.header("accept-encoding") == "identity"

    async def test_of_models_is_asked_for_with_get(self, upstream, adapter_on, call, sink):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.answer(b"{}")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(operation="models", body=b"", headers=()), sink)
        assert (seen[0].method, seen[0].path, seen[0].body) == ("GET", "/v1/models", b"")

    async def test_arrives_chunk_by_chunk_as_the_upstream_sends_it(
        self, upstream, adapter_on, call, sink
    ):
        may_go_on = asyncio.Event()

        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"data: 1\n\n")
            await may_go_on.wait()
            await conn.chunk(b"data: 2\n\n")
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(is_stream=True), sink))
            await sink.has_chunk.wait()
            assert sink.body == b"data: 1\n\n"
            may_go_on.set()
            await task
        assert sink.body == b"data: 1\n\ndata: 2\n\n"

    async def test_that_ends_with_its_connection_is_complete(
        self, upstream, adapter_on, call, sink
    ):
        script = script_of(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(), sink)
        assert sink.body == b"abc"

    @pytest.mark.req("NODE-8")
    @pytest.mark.parametrize(
        "head", ["Connection: close", "Content-Length: 1000000", "Transfer-Encoding: chunked"]
    )
    async def test_is_whole_for_a_slow_caller_although_the_upstream_is_long_gone(
        self, upstream, adapter_on, call, make_sink, head
    ):
        sink = make_sink(gate=asyncio.Event())
        ended = asyncio.Event()

        async def script(conn):
            await conn.request()
            await conn.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
            for number in range(100):
                piece = f"{number:02d}".encode() * 5000
                await (conn.chunk if "chunked" in head else conn.send)(piece)
            if "chunked" in head:
                await conn.send(b"0\r\n\r\n")
            conn.writer.close()
            ended.set()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(), sink))
            await ended.wait()
            sink.gate.set()
            await task
        assert sink.body == b"".join(f"{number:02d}".encode() * 5000 for number in range(100))

    async def test_that_is_an_error_of_the_upstream_is_passed_on(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.answer(b'{"error":{}}', "529 Overloaded", "Retry-After: 7\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(), sink)
        assert (sink.status, sink.body) == (529, b'{"error":{}}')
        assert ("retry-after", "7") in sink.headers

    async def test_of_a_gigantic_event_line_is_relayed_and_never_held_whole(
        self, upstream, adapter_on, call, sink
    ):
        size = 8_000_000

        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"x" * size)
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(), sink)
        assert len(sink.body) == size
        assert max(len(chunk) for chunk in sink.chunks) <= 1_000_000

    async def test_uses_one_pooled_connection_for_calls_in_a_row(
        self, upstream, adapter_on, call, make_sink
    ):
        async def script(conn):
            while True:
                await conn.request()
                await conn.answer(b"ok")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            for _ in range(3):
                await adapter.tunnel(call(), make_sink())
            assert server.connections == 1

    async def test_before_the_request_was_read_whole_ends_the_call(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.head()
            await conn.answer(b"too long", "413 Content Too Large", "Connection: close\r\n")
            await conn.peer_gone()

        async def endless():
            yield b"x" * 1000
            await asyncio.Event().wait()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(body=endless()), sink)
        assert (sink.status, sink.body) == (413, b"too long")


class TestTheRequest:
    @pytest.mark.req("NODE-8")
    async def test_body_in_pieces_reaches_the_upstream_before_the_last_piece_is_there(
        self, upstream, adapter_on, call, sink
    ):
        first_arrived = asyncio.Event()
        seen = []

        async def script(conn):
            await conn.head()
            size = int(await conn.reader.readline(), 16)
            seen.append(await conn.reader.readexactly(size))
            first_arrived.set()
            await conn.reader.readuntil(b"0\r\n\r\n")
            await conn.answer(b"ok")

        async def pieces():
            yield b""
            yield b"one"
            await first_arrived.wait()
            yield b"two"

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(body=pieces()), sink)
        assert seen == [b"one"]
        assert sink.body == b"ok"

    async def test_body_in_pieces_of_known_length_is_sent_with_its_length(
        self, upstream, adapter_on, call, sink
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.answer(b"ok")

        async def pieces():
            yield b"one"
            yield b"two"

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(body=pieces(), content_length=6), sink)
        assert seen[0].body == b"onetwo"
        assert seen[0].header("transfer-encoding") is None

    @pytest.mark.parametrize("declared", [5, 7])
    async def test_body_of_another_length_than_declared_never_looks_whole(
        self, upstream, adapter_on, call, sink, declared
    ):
        gone = asyncio.Event()

        async def script(conn):
            await conn.head()
            await conn.peer_gone()
            gone.set()

        async def pieces():
            yield b"one"
            yield b"two"

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            with pytest.raises(ValueError, match="length"):
                await adapter.tunnel(call(body=pieces(), content_length=declared), sink)
            await gone.wait()

    async def test_body_whose_source_fails_fails_with_what_the_source_raised(
        self, upstream, adapter_on, call, sink
    ):
        gone = asyncio.Event()

        async def script(conn):
            await conn.head()
            await conn.peer_gone()
            gone.set()

        async def pieces():
            yield b"one"
            raise LookupError("the caller is gone")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            with pytest.raises(LookupError, match="the caller is gone"):
                await adapter.tunnel(call(body=pieces()), sink)
            await gone.wait()

    @pytest.mark.req("POOL-13")
    async def test_whose_body_has_not_begun_is_not_started(self, upstream, adapter_on, call, sink):
        asked = asyncio.Event()

        async def script(conn):
            await conn.peer_gone()

        async def pieces():
            asked.set()
            await asyncio.Event().wait()
            yield b""

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(body=pieces()), sink))
            await asked.wait()
            assert sink.starts == 0
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    @pytest.mark.req("OAI-4")
    async def test_carries_the_adapters_own_headers_over_those_passed_on(
        self, upstream, adapter_on, call, sink
    ):
        seen = []

        async def script(conn):
            seen.append(await conn.request())
            await conn.answer(b"ok")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, headers=(("Authorization", "Bearer own"),))
            await adapter.tunnel(
                call(headers=(("authorization", "Bearer caller"), ("x-tag", "1"))), sink
            )
        assert seen[0].all("authorization") == ["Bearer own"]
        assert seen[0].header("x-tag") == "1"

    async def test_of_an_operation_that_the_profile_lacks_is_refused_before_it_starts(
        self, adapter_on, call, sink
    ):
        adapter = await adapter_on("http://127.0.0.1:9")
        fault = await fault_of(adapter.tunnel(call(operation="responses"), sink))
        assert fault.code is Code.UNSUPPORTED_BY_MODEL
        assert sink.starts == 0


class TestAFault:
    @pytest.mark.req("POOL-13", "OAI-5")
    async def test_refused_comes_before_the_start(self, upstream, adapter_on, call, sink):
        async with upstream(script_of()).running() as server:
            url = server.url
        adapter = await adapter_on(url)
        fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_REFUSED
        assert sink.starts == 0
        assert "127.0.0.1" not in fault.message

    async def test_of_a_name_that_does_not_resolve_is_refused(self, adapter_on, call, sink):
        adapter = await adapter_on("http://nowhere.invalid:1")
        fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_REFUSED
        assert "nowhere" not in fault.message

    @pytest.mark.req("SEC-1")
    async def test_of_a_name_that_comes_to_mean_a_link_local_address_is_refused(
        self, adapter_on, call, sink, monkeypatch
    ):
        answer = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [answer])
        adapter = await adapter_on("http://model.example")
        fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_REFUSED
        assert sink.starts == 0

    @pytest.mark.req("OAI-7")
    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(b"", id="before the head"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-", id="in the head"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", id="in the length"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                id="between chunks",
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
                id="inside a chunk",
            ),
        ],
    )
    @pytest.mark.parametrize("way", ["closes", "resets"])
    async def test_of_an_upstream_that_goes_away_is_closed(
        self, upstream, adapter_on, call, sink, answer, way
    ):
        async def script(conn):
            await conn.request()
            await conn.send(answer)
            if way == "resets":
                if b"abc" in answer:
                    await sink.has_chunk.wait()
                conn.reset()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_CLOSED
        assert sink.starts == 1
        assert sink.body == (b"abc" if b"abc" in answer else b"")

    @pytest.mark.req("OAI-7")
    async def test_of_a_reset_body_without_a_length_is_no_clean_end(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
            await sink.has_chunk.wait()
            conn.reset()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_CLOSED

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
            pytest.param(b"HTTP/1.1 200 OK\r\nA" + b"a" * 9000 + b": 1\r\n\r\n", id="long header"),
            pytest.param(b"HTTP/1.1 200 OK\r\n" + b"a: 1\r\n" * 500 + b"\r\n", id="many headers"),
            pytest.param(
                b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n",
                id="redirect",
            ),
            pytest.param(
                b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="upgrade"
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab",
                id="encoded",
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab",
                id="two lengths",
            ),
        ],
    )
    async def test_of_an_answer_that_is_none_is_invalid(
        self, upstream, adapter_on, call, sink, answer
    ):
        async def script(conn):
            await conn.request()
            await conn.send(answer)
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_INVALID
        assert sink.status is None
        assert "10.0.0.1" not in fault.message

    async def test_of_broken_framing_in_the_body_ends_the_call(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"abc")
            await sink.has_chunk.wait()
            await conn.send(b"zz\r\n")
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_INVALID


class TestATimeout:
    """Each clock has a code of its own. The limits are short; nothing asserts how short."""

    async def test_to_connect_comes_before_the_start(self, adapter_on, call, sink, full_backlog):
        adapter = await adapter_on(full_backlog, connect_timeout_s=0.05)
        fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_CONNECT_TIMEOUT
        assert sink.starts == 0

    async def test_for_an_upstream_that_never_answers(self, upstream, adapter_on, call, sink):
        async def script(conn):
            await conn.request()
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, first_byte_timeout_s=0.05)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_FIRST_BYTE_TIMEOUT
        assert sink.starts == 1

    async def test_for_an_upstream_that_takes_no_body(self, upstream, adapter_on, call, sink):
        async def script(conn):
            await conn.writer.drain()
            await asyncio.Event().wait()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, first_byte_timeout_s=0.05)
            fault = await fault_of(adapter.tunnel(call(body=b"x" * 20_000_000), sink))
        assert fault.code is Code.UPSTREAM_FIRST_BYTE_TIMEOUT

    async def test_for_the_first_byte_covers_a_server_that_sends_its_head_early(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, first_byte_timeout_s=0.05, idle_timeout_s=0.001)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_FIRST_BYTE_TIMEOUT
        assert sink.status == 200

    async def test_for_an_upstream_that_stalls_between_chunks(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"abc")
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, idle_timeout_s=0.05)
            fault = await fault_of(adapter.tunnel(call(), sink))
        assert fault.code is Code.UPSTREAM_IDLE_TIMEOUT
        assert sink.body == b"abc"

    @pytest.mark.parametrize("whose", ["adapter", "attempt"])
    async def test_for_the_whole_answer(self, upstream, adapter_on, call, sink, whose):
        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            while True:
                await conn.chunk(b"abc")
                await sink.has_chunk.wait()
                sink.has_chunk.clear()

        async with upstream(script).running() as server:
            limit = {"total_timeout_s": 0.1} if whose == "adapter" else {}
            adapter = await adapter_on(server.url, **limit)
            fault = await fault_of(adapter.tunnel(call(deadline_s=None if limit else 0.1), sink))
        assert fault.code is Code.UPSTREAM_TOTAL_TIMEOUT

    @pytest.mark.req("NODE-8")
    async def test_for_silence_does_not_run_while_the_caller_is_slow(
        self, upstream, adapter_on, call, make_sink
    ):
        sink = make_sink(gate=asyncio.Event())
        sink.gate.set()
        may_go_on = asyncio.Event()

        async def script(conn):
            await conn.request()
            await conn.chunked_head()
            await conn.chunk(b"abc")
            await may_go_on.wait()
            await conn.chunk(b"def")
            await conn.chunk(b"ghi")
            await conn.send(b"0\r\n\r\n")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url, idle_timeout_s=0.05)
            task = asyncio.create_task(adapter.tunnel(call(), sink))
            await sink.has_chunk.wait()
            sink.has_chunk.clear()
            sink.gate.clear()
            may_go_on.set()
            await sink.has_chunk.wait()
            # The caller stays away for several times the limit.
            await asyncio.wait({task}, timeout=0.2)
            sink.gate.set()
            await task
        assert sink.body == b"abcdefghi"


class TestHangingUp:
    @pytest.mark.req("NODE-7")
    @pytest.mark.parametrize("moment", ["before the head", "in the body"])
    async def test_closes_the_upstream_connection(self, upstream, adapter_on, call, sink, moment):
        gone = asyncio.Event()

        async def script(conn):
            await conn.request()
            if moment == "in the body":
                await conn.chunked_head()
                await conn.chunk(b"abc")
            await conn.peer_gone()
            gone.set()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(), sink))
            await (sink.has_chunk if moment == "in the body" else sink.has_started).wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()

    @pytest.mark.req("NODE-7")
    async def test_sends_nothing_more_of_a_long_body(self, upstream, adapter_on, call, sink):
        hung_up, gone = asyncio.Event(), asyncio.Event()
        size, received = 50_000_000, 0

        async def script(conn):
            nonlocal received
            await hung_up.wait()
            with contextlib.suppress(ConnectionError):
                while content := await conn.reader.read(65536):
                    received += len(content)
            gone.set()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(body=b"x" * size), sink))
            await sink.has_started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hung_up.set()
            await gone.wait()
        assert received < size, "what the kernel had not taken yet was never sent"

    @pytest.mark.req("NODE-8")
    async def test_and_slowness_reach_the_upstream_as_backpressure(
        self, upstream, adapter_on, call, make_sink
    ):
        sink = make_sink(gate=asyncio.Event())
        blocked = asyncio.Event()
        sent = 0
        total = 64 * 1_048_576

        async def script(conn):
            nonlocal sent
            await conn.request()
            await conn.send(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
            while sent < total:
                conn.writer.write(b"x" * 65536)
                sent += 65536
                drain = asyncio.ensure_future(conn.writer.drain())
                if not (await asyncio.wait({drain}, timeout=0.2))[0]:
                    blocked.set()
                await drain

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(), sink))
            await blocked.wait()
            assert sent < total
            sink.gate.set()
            await task
        assert sum(map(len, sink.chunks)) == total

    @pytest.mark.req("NODE-7")
    async def test_harms_nobody_who_has_the_connection_by_now(
        self, upstream, adapter_on, call, make_sink
    ):
        """An answer that has arrived whole leaves its connection while its caller still reads."""
        slow, other = make_sink(gate=asyncio.Event()), make_sink()
        first_hung_up = asyncio.Event()

        async def script(conn):
            await conn.request()
            await conn.answer(b"first")
            await conn.request()
            await first_hung_up.wait()
            await conn.answer(b"second")

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            first = asyncio.create_task(adapter.tunnel(call(), slow))
            await slow.has_chunk.wait()
            second = asyncio.create_task(adapter.tunnel(call(), other))
            await other.has_started.wait()
            assert server.connections == 1
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            first_hung_up.set()
            await second
        assert other.body == b"second"

    async def test_of_the_upstream_on_the_next_request_does_not_spoil_an_answer_that_was_whole(
        self, upstream, adapter_on, call, make_sink
    ):
        slow, other = make_sink(gate=asyncio.Event()), make_sink()

        async def script(conn):
            await conn.request()
            await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            await slow.has_head.wait()
            await conn.send(b"first")
            await conn.request()
            conn.reset()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            first = asyncio.create_task(adapter.tunnel(call(), slow))
            await slow.has_chunk.wait()
            assert (await fault_of(adapter.tunnel(call(), other))).code is Code.UPSTREAM_CLOSED
            assert server.connections == 1
            slow.gate.set()
            await first
        assert slow.body == b"first"

    async def test_of_the_adapter_itself_ends_calls_under_way(
        self, upstream, adapter_on, call, sink
    ):
        async def script(conn):
            await conn.request()
            await conn.peer_gone()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            task = asyncio.create_task(adapter.tunnel(call(), sink))
            await sink.has_started.wait()
            await adapter.stop()
            fault = await fault_of(task)
        assert fault.code is Code.UPSTREAM_CLOSED


class TestAPooledConnectionThatEnded:
    @pytest.mark.req("POOL-13")
    async def test_is_left_for_a_fresh_one_because_nothing_was_written(
        self, upstream, adapter_on, call, make_sink
    ):
        async def once(conn):
            await conn.request()
            await conn.answer(b"first")

        async def again(conn):
            await conn.request()
            await conn.answer(b"second")

        async with upstream(once, again).running() as server:
            adapter = await adapter_on(server.url)
            first, second = make_sink(), make_sink()
            await adapter.tunnel(call(), first)
            await adapter.tunnel(call(), second)
        assert (first.body, second.body) == (b"first", b"second")
        assert second.starts == 1

    @pytest.mark.req("POOL-13")
    async def test_while_the_loop_was_busy_is_not_written_to(self, adapter_on, call, make_sink):
        """The end lies in the socket, and the loop will come round to it only after the write."""
        may_close, is_closed = threading.Event(), threading.Event()

        def answer(peer: socket.socket, body: bytes) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        def serve(listener: socket.socket) -> None:
            with listener.accept()[0] as peer:
                answer(peer, b"first")
                may_close.wait()
            is_closed.set()
            with listener.accept()[0] as peer:
                answer(peer, b"second")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = threading.Thread(target=serve, args=[listener])
            server.start()
            adapter = await adapter_on(f"http://127.0.0.1:{listener.getsockname()[1]}")
            first, second = make_sink(), make_sink()
            await adapter.tunnel(call(), first)
            may_close.set()
            is_closed.wait()
            await adapter.tunnel(call(), second)
            server.join()
        assert (first.body, second.body, second.starts) == (b"first", b"second", 1)

    @pytest.mark.req("POOL-13")
    async def test_a_moment_after_a_stream_although_it_promised_not_to_is_not_written_to(
        self, upstream, adapter_on, call, make_sink
    ):
        """As some model servers do: the end comes when the next request may be on its way."""
        next_is_there = asyncio.Event()

        async def closing(conn):
            await conn.request()
            await conn.send(
                b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            await conn.chunk(b"stream")
            await conn.send(b"0\r\n\r\n")
            await next_is_there.wait()

        async def plain(conn):
            await conn.request()
            next_is_there.set()
            await conn.answer(b"next")

        async with upstream(closing, plain).running() as server:
            adapter = await adapter_on(server.url)
            first, second = make_sink(), make_sink()
            await adapter.tunnel(call(), first)
            await adapter.tunnel(call(), second)
            assert server.connections == 2
        assert (first.body, second.body, second.starts) == (b"stream", b"next", 1)

    @pytest.mark.req("POOL-13")
    async def test_after_the_request_was_written_is_closed_and_may_have_started(
        self, upstream, adapter_on, call, make_sink
    ):
        async def script(conn):
            await conn.request()
            await conn.answer(b"first")
            await conn.request()

        async with upstream(script).running() as server:
            adapter = await adapter_on(server.url)
            await adapter.tunnel(call(), make_sink())
            second = make_sink()
            fault = await fault_of(adapter.tunnel(call(), second))
            assert server.connections == 1
        assert fault.code is Code.UPSTREAM_CLOSED
        assert second.starts == 1
