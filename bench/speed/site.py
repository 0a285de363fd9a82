"""IOP itself, as its users run it: `iop-edge serve` and `iop-node run` with everything on.

The config says no more than it must: where to listen, one caller's token, where usage goes, two
providers of one model. All else, the log's level and the metrics among it, is as it comes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import yaml

from bench.speed.answers import MODEL
from bench.speed.running import CALLER_TOKEN
from demo.processes import Group
from demo.site import Site

CAPACITY = 256
"""Of each provider: more than any load here has in flight, so that nothing waits for a slot."""


def config(site: Site, upstream: int, *, providers: int = 2) -> dict[str, Any]:
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
    adapter = {
        "key": "vllm",
        "type": "openai_compat",
        "base_url": f"http://127.0.0.1:{upstream}",
    }
    return {
        **listeners,
        "usage": {"file": str(site.group.folder / "usage.jsonl")},
        "models": [{"id": MODEL, "providers": dict.fromkeys(named, MODEL)}],
        "nodes": [
            {
                "id": "a",
                "token": {"sha256": site.token_sha256("a")},
                "adapters": [adapter],
                "providers": [
                    {
                        "id": provider,
                        "type": "vllm",
                        "category": "local_inference",
                        "adapter": "vllm",
                        "models": [MODEL],
                        "capacity": CAPACITY,
                    }
                    for provider in named
                ],
            }
        ],
    }


def start(group: Group, upstream: int, *, providers: int = 2) -> Site:
    """One edge and one node before the upstream, connected. Raises StartFailed."""
    site = Site(group)
    site.config.write_text(yaml.safe_dump(config(site, upstream, providers=providers)))
    site.start_edge()
    site.start_node("a")
    site.wait_connected("a")
    return site
