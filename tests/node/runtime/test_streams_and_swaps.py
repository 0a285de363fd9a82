"""The whole node below its link, with real adapters and streams on real sockets."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from iop.runtime_pb2 import NodeConfigPayload
from iop_node.adapters.base import TunnelCall
from iop_node.runtime.applier import Applier
from iop_node.runtime.resolve import NodeSources
from iop_node.runtime.router import Attempt, RegistryStopped, Router


class StreamingUpstream:
    """Begins a stream with every request, goes on when it is told to, and knows who left."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.all_gone = asyncio.Event()
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.all_gone.clear()
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    writer.write(b"5\r\nfirst\r\n")
                    await self.may_end.wait()
                    writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        finally:
            self.open -= 1
            if not self.open:
                self.all_gone.set()
            writer.close()


class Sink:
    def __init__(self) -> None:
        self.body = b""
        self.begun = asyncio.Event()

    def started(self) -> None: ...

    def head(self, status: int, headers: list[tuple[str, str]]) -> None: ...

    async def chunk(self, content: bytes) -> None:
        self.body += content
        self.begun.set()


def payload_of(generation: int, **urls: tuple[str, int]) -> NodeConfigPayload:
    payload = NodeConfigPayload(generation=generation)
    for key, (url, idle_ms) in urls.items():
        adapter = payload.adapters.add(key=key).openai_compat
        adapter.upstream.base_url = url
        adapter.upstream.idle_timeout_ms = idle_ms
        adapter.profile.operation_urls["chat_completions"] = f"{url}/v1/chat/completions"
        payload.providers.add(id=f"p-{key}", adapter=key, models=["m"], capacity=8)
    return payload


@pytest.mark.req("NODE-3", "NODE-4", "REF-8")
async def test_a_change_of_one_adapter_spares_the_streams_of_both():
    upstreams = {"a": StreamingUpstream(), "b": StreamingUpstream()}
    stopped = asyncio.Event()
    events = []

    def observe(event) -> None:
        events.append(event)
        if isinstance(event, RegistryStopped):
            stopped.set()

    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for key, upstream in upstreams.items():
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            urls[key] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        router = await stack.enter_async_context(Router(observe))
        applier = Applier(router, NodeSources(environ={}))

        async def run(key: str) -> tuple[asyncio.Task[None], Sink]:
            work = TunnelCall(adapter=key, target="m", operation="chat_completions")
            sink = Sink()
            attempt = Attempt(work=work, provider_id=f"p-{key}", generation=9)
            task = asyncio.create_task(router.execute(attempt, sink))
            await sink.begun.wait()
            return task, sink

        first = payload_of(1, a=(urls["a"], 60_000), b=(urls["b"], 60_000))
        await applier.apply(first, boot_id="boot", is_welcome=True)
        before = router.current.adapters
        old_a, old_b = await run("a"), await run("b")

        second = payload_of(2, a=(urls["a"], 60_000), b=(urls["b"], 50_000))
        answer = await applier.apply(second, boot_id="boot", is_welcome=False)
        assert answer.effective_generation == 2
        after = router.current.adapters
        assert after["a"] is before["a"]
        assert after["b"] is not before["b"]
        new_b = await run("b")
        assert not stopped.is_set(), "the old registry has runs"

        for upstream in upstreams.values():
            upstream.may_end.set()
        for task, sink in (old_a, old_b, new_b):
            await task
            assert sink.body == b"firstlast"
        await stopped.wait()
        assert events[-1] == RegistryStopped(1, ("b",))


@pytest.mark.req("NODE-4", "NODE-7")
async def test_a_stopped_registry_leaves_no_connection_open():
    upstream = StreamingUpstream()
    upstream.may_end.set()
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Router() as router:
            applier = Applier(router, NodeSources(environ={}))
            payload = payload_of(1, a=(url, 60_000))
            await applier.apply(payload, boot_id="boot", is_welcome=True)
            work = TunnelCall(adapter="a", target="m", operation="chat_completions")
            await router.execute(Attempt(work=work), Sink())
            assert upstream.open == 1, "the pool keeps it"
            payload = payload_of(2, b=(url, 60_000))
            await applier.apply(payload, boot_id="boot", is_welcome=False)
            await upstream.all_gone.wait()
