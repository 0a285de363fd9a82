"""IOP itself, as its users run it: `iop-edge serve` and `iop-node run` with everything on.

The config says no more than it must: where to listen, one caller's token, where usage goes, two
providers of one model. All else, the log's level and the metrics among it, is as it comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from bench.speed.answers import MODEL
from bench.speed.running import CALLER_TOKEN, Running
from demo.processes import Group
from demo.site import Site

CAPACITY = 256
"""Of each provider: more than any load here has in flight, so that nothing waits for a slot."""


def config(
    site: Site,
    upstream: int,
    *,
    providers: int = 2,
    capacity: int = CAPACITY,
    pending: int | None = None,
    gate: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A document of one node with so many providers, all of which serve the bench's model."""
    named = [f"p{number}" for number in range(providers)]
    listeners = site.listeners()
    listeners["openai"]["principal_tokens"] = [
        {
            "token_ref": "bench",
            "token_hash_sha256": hashlib.sha256(CALLER_TOKEN.encode()).hexdigest(),
            "principal_ref": "bench",
        }
    ]
    document = {
        **listeners,
        "usage": {"file": str(site.group.folder / "usage.jsonl")},
        "models": [{"id": MODEL, "providers": dict.fromkeys(named, MODEL)}],
        "nodes": [
            {
                "id": "a",
                "token": {"sha256": site.token_sha256("a")},
                "adapters": [
                    {
                        "key": "vllm",
                        "type": "openai_compat",
                        "base_url": f"http://127.0.0.1:{upstream}",
                    }
                ],
                "providers": [
                    {
                        "id": provider,
                        "type": "vllm",
                        "category": "local_inference",
                        "adapter": "vllm",
                        "models": [MODEL],
                        "capacity": capacity,
                    }
                    for provider in named
                ],
            }
        ],
    }
    if gate is not None:
        listeners["openai"]["stream_evidence_gate"] = gate
    if pending is not None:
        document["provider_pool"] = {"max_queue": pending, "queue_timeout_ms": 0}
    return document


def start(group: Group, upstream: int, **of_config: Any) -> Running:
    """One edge and one node before the upstream, connected. Raises StartFailed."""
    site = Site(group)
    site.config.write_text(yaml.safe_dump(config(site, upstream, **of_config)))
    edge = site.start_edge()
    node = site.start_node("a")
    site.wait_connected("a")
    return Running(site.ports.openai, {"edge": edge.pid, "node": node.pid})


@contextmanager
def running(group: Group, upstream: int, **of_config: Any) -> Iterator[Running]:
    """The same, until the block ends."""
    try:
        yield start(group, upstream, **of_config)
    finally:
        group.stop()
