"""Swap after swap under load. `IOP_SWAPS` sets how many; each makes one adapter of two anew."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from iop.runtime_pb2 import NodeConfigPayload
from iop_node.adapters.base import TunnelCall
from iop_node.runtime.applier import Applier
from iop_node.runtime.registry import AdapterRegistry
from iop_node.runtime.resolve import NodeSources
from iop_node.runtime.router import Attempt, RegistryStopped, Router

SWAPS = int(os.environ.get("IOP_SWAPS", "300"))
CALLERS = 8
PAGE_BYTES = resource.getpagesize()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request in three pieces, a turn of the loop apart."""
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(b"4\r\nlast\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class Sink:
    def __init__(self) -> None:
        self.body = b""

    def started(self) -> None: ...

    def head(self, status: int, headers: list[tuple[str, str]]) -> None: ...

    async def chunk(self, content: bytes) -> None:
        self.body += content


def payload_of(generation: int, url: str) -> NodeConfigPayload:
    payload = NodeConfigPayload(generation=generation)
    for key, timeout_ms in (("kept", 60_000), ("changed", 60_000 + generation)):
        adapter = payload.adapters.add(key=key).openai_compat
        adapter.upstream.base_url = url
        adapter.upstream.idle_timeout_ms = timeout_ms
        adapter.profile.operation_urls["chat_completions"] = f"{url}/v1/chat/completions"
        payload.providers.add(id=f"p-{key}", adapter=key, models=["m"], capacity=CALLERS)
    return payload


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def living_registries() -> int:
    gc.collect()
    return sum(isinstance(thing, AdapterRegistry) for thing in gc.get_objects())


@pytest.mark.req("NODE-3", "NODE-4")
async def test_no_run_is_lost_over_many_swaps_and_every_old_registry_stops():
    stopped: list[RegistryStopped] = []
    asked = {"kept": 0, "changed": 0}
    resident: list[int] = []
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        router = await stack.enter_async_context(
            Router(lambda event: stopped.append(event) if is_stop(event) else None)
        )
        applier = Applier(router, NodeSources(environ={}))
        await applier.apply(payload_of(1, url), boot_id="boot", is_welcome=True)
        kept = router.current.adapters["kept"]
        is_over = False

        async def caller(key: str) -> None:
            while not is_over:
                work = TunnelCall(adapter=key, target="m", operation="chat_completions")
                sink = Sink()
                # Of the newest generation, so that the capacity of the node is judged too.
                attempt = Attempt(work=work, provider_id=f"p-{key}", generation=2**60)
                await router.execute(attempt, sink)
                assert sink.body == b"firstlast"
                asked[key] += 1

        callers = [
            asyncio.create_task(caller(key)) for key in asked for _ in range(CALLERS // len(asked))
        ]
        for generation in range(2, SWAPS + 2):
            answer = await applier.apply(
                payload_of(generation, url), boot_id="boot", is_welcome=False
            )
            assert answer.effective_generation == generation
            if generation % max(1, SWAPS // 10) == 0:
                resident.append(resident_bytes())
        is_over = True
        await asyncio.gather(*callers)
        await router.wait_idle()
        assert router.current.adapters["kept"] is kept
        assert router.alive == (router.current,)
        while len(stopped) < SWAPS:
            await asyncio.sleep(0)
        # The current one, and what the loop's last callbacks may still hold.
        assert living_registries() <= 3
    print(f"{SWAPS} swaps, {asked} runs, resident {[round(n / 2**20, 1) for n in resident]} MiB")
    assert sorted(event.generation for event in stopped) == list(range(1, SWAPS + 2))
    in_time = [event.stopped_adapters for event in stopped[:SWAPS]]
    assert in_time == [("changed",)] * SWAPS
    assert min(asked.values()) > 0


def is_stop(event: object) -> bool:
    return isinstance(event, RegistryStopped)
