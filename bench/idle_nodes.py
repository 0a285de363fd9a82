"""Many node sessions in one process: each with a channel of its own, done with all it is sent.

    python -m bench.idle_nodes NODES PORT        holds them until its standard input ends

What is measured beside it is the edge and the wire, and not how long a thousand machines take to
build registries on one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from iop.runtime_pb2 import NodeConfigAnswer, NodeConfigPayload, NodeReport
from iop_node.adapters.base import Responder
from iop_node.core.backoff import Backoff
from iop_node.link.dialer import Dialer
from iop_node.runtime.router import Attempt
from iop_shared import logs
from iop_shared.session.flow import WindowBudget

STARTING_AT_ONCE = 50


def token_of(number: int) -> str:
    return f"iop_node_{number:08x}_{'b' * 32}"


def config(
    listeners: dict[str, Any], nodes: int, *, capacity: int = 1, providers: int = 1
) -> bytes:
    """Every node with one adapter, so that a change of `capacity` changes every payload."""
    document = {
        **listeners,
        "models": [{"id": "m", "providers": {"p0.0": "served"}}],
        "nodes": [
            {
                "id": f"n{number}",
                "token": {"sha256": hashlib.sha256(token_of(number).encode()).hexdigest()},
                "adapters": [
                    {"key": "main", "type": "openai_compat", "base_url": "http://127.0.0.1:9"}
                ],
                "providers": [
                    {
                        "id": f"p{number}.{one}",
                        "type": "vllm",
                        "category": "local_inference",
                        "adapter": "main",
                        "models": ["served"],
                        "capacity": capacity,
                    }
                    for one in range(providers)
                ],
            }
            for number in range(nodes)
        ],
    }
    return json.dumps(document).encode()


class Ports:
    """A node that is done with every payload at once."""

    async def execute(self, attempt: Attempt, out: Responder) -> None:
        raise NotImplementedError

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        return NodeConfigAnswer(
            generation=payload.generation,
            is_acknowledged=True,
            effective_generation=payload.generation,
        )

    def report(self) -> NodeReport:
        return NodeReport()

    def connected(self, is_connected: bool) -> None:
        pass


async def hold(nodes: int, port: int) -> None:
    """Hold all sessions until the standard input ends."""
    logs.configure("error", "json")
    dialers = [
        Dialer(
            address=f"127.0.0.1:{port}",
            token=token_of(number),
            tls=None,
            instance_id=f"holder-{number}",
            version="bench",
            ports=Ports(),
            backoff=Backoff(random.random, cap_s=2.0),
            budget=WindowBudget(),
            effective_generation=lambda: 0,
        )
        for number in range(nodes)
    ]
    running = []
    for number, dialer in enumerate(dialers):
        running.append(asyncio.create_task(dialer.run()))
        if number % STARTING_AT_ONCE == 0:
            await asyncio.sleep(0.1)
    await asyncio.to_thread(sys.stdin.read)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def command(nodes: int, port: int) -> list[str]:
    """What holds so many sessions with the edge at this port."""
    return [sys.executable, "-m", "bench.idle_nodes", str(nodes), str(port)]


@contextmanager
def holding(nodes: int, port: int) -> Iterator[None]:
    """A process that holds them until the block ends."""
    with subprocess.Popen(command(nodes, port), stdin=subprocess.PIPE):
        yield


if __name__ == "__main__":
    uvloop.run(hold(int(sys.argv[1]), int(sys.argv[2])))
