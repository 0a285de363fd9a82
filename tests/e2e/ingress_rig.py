"""A site for the ingress as its callers see it: one edge and one node before the upstreams that the
tests play, a tee in front of the real model, and official clients."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anthropic
import openai
import yaml
from e2e_harness import CALLER_TOKEN, PROMPT_CANARY, Config, running_site
from ingress_upstreams import Script, ScriptedUpstream, Tee

from demo.site import Site

SECOND_TOKEN = "iop_caller_11111111_second-caller-canary-second-caller-canary"
PROVIDER_TOKEN = "provider-token-canary-provider-token-canary"
CANARIES = (SECOND_TOKEN, CALLER_TOKEN, PROVIDER_TOKEN, PROMPT_CANARY, "heron-completion-canary")

SHORT_MS = 400
"""First byte, idle and connect timeout of the adapters whose upstreams are bad."""


OPTIONS: dict[str, Any] = {"max_retries": 0, "timeout": 60}
"""No retries of a client's own to hide anything; reading the system's certificates costs more than
a test."""


def openai_client(root_url: str, token: str = CALLER_TOKEN, **more: Any) -> openai.AsyncOpenAI:
    http_client = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(
        base_url=f"{root_url}/v1", api_key=token, http_client=http_client, **OPTIONS, **more
    )


def anthropic_client(
    root_url: str, token: str = CALLER_TOKEN, **more: Any
) -> anthropic.AsyncAnthropic:
    http_client = anthropic.DefaultAsyncHttpxClient(verify=False)
    return anthropic.AsyncAnthropic(
        base_url=root_url, api_key=token, http_client=http_client, **OPTIONS, **more
    )


class Rig:
    """What stands behind the edge, and where the edge is."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.upstream = ScriptedUpstream({})
        self.tee: Tee | None = None
        self.config: Config = {}

    @property
    def root_url(self) -> str:
        return self.site.openai_url.removesuffix("/v1")

    async def records(self, *request_ids: str) -> list[dict[str, Any]]:
        """The usage records of these requests, once every one of them has its one."""
        file = self.site.group.folder / "usage.jsonl"
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while len(found) < len(request_ids):
                await asyncio.sleep(0.02)  # offered for what a file shows
                lines = file.read_text().split("\n")[:-1] if file.exists() else []
                found = [
                    record
                    for line in lines
                    if (record := json.loads(line))["request_id"] in request_ids
                ]
        by_id = {record["request_id"]: record for record in found}
        assert len(by_id) == len(found), "a run has more than one record"
        return [by_id[request_id] for request_id in request_ids]


def adapter(key: str, url: str, kind: str = "openai_compat", **more: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "base_url": url, **more}


def provider(
    provider_id: str, adapter_key: str, *served: str, kind: str = "llama_cpp", **more: Any
) -> dict[str, Any]:
    fixed = {"category": "local_inference", "capacity": 64}
    named = {"id": provider_id, "type": kind, "adapter": adapter_key, "models": list(served)}
    return {**named, **fixed, **more}


def principal(token: str, ref: str) -> dict[str, str]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"token_ref": ref, "token_hash_sha256": digest, "principal_ref": f"team-{ref}"}


@contextmanager
def upstream_loop() -> Iterator[Callable[[Coroutine[Any, Any, asyncio.Server]], None]]:
    """A loop in a thread of its own, for servers; at its end nothing of it is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers: list[asyncio.Server] = []

    def start(starting: Coroutine[Any, Any, asyncio.Server]) -> None:
        servers.append(asyncio.run_coroutine_threadsafe(starting, loop).result(10))

    async def end() -> None:
        for server in servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    try:
        yield start
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def full_backlog() -> Iterator[str]:
    """An address where a connection is begun and never made: nobody accepts, and it is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(listener.getsockname())
            waiting.append(client)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for client in waiting:
                client.close()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def write(site: Site, config: Config) -> None:
    site.config.write_text(yaml.safe_dump(config, sort_keys=False))


@contextmanager
def ingress_rig(
    folder: Path, scripts: dict[str, Script], real_model: dict[str, Any] | None
) -> Iterator[Rig]:
    with upstream_loop() as start, full_backlog() as unreachable, running_site(folder) as site:
        rig = Rig(site)
        rig.upstream = ScriptedUpstream(scripts)
        start(rig.upstream.start())
        if real_model is not None:
            rig.tee = Tee(real_model["listening"])
            start(rig.tee.start())
        rig.config = ingress_config(rig, unreachable, real_model)
        write(site, rig.config)
        site.start_edge()
        site.start_node("a")
        site.wait_connected("a")
        yield rig


SHORT: dict[str, Any] = {
    "first_byte_timeout_ms": SHORT_MS,
    "idle_timeout_ms": SHORT_MS,
    "connect_timeout_ms": SHORT_MS,
}


def ingress_config(rig: Rig, unreachable: str, real_model: dict[str, Any] | None) -> Config:
    site, up = rig.site, rig.upstream.url
    config: Config = {"edge": {"id": "ingress"}, **site.listeners()}
    config["usage"] = {"file": str(site.group.folder / "usage.jsonl")}
    config["logging"] = {"level": "debug"}
    config["long_context_threshold_tokens"] = 50_000
    config["openai"] |= {
        "principal_tokens": [principal(CALLER_TOKEN, "first"), principal(SECOND_TOKEN, "second")],
        "provider_auth": {"enabled": True, "required": False},
        "provider_id": "lab",
        "adapter": "direct",
        "target": "fine-fallback",
        "model_routes": [
            {"id": "r1", "model": "routed", "adapter": "direct", "target": "fine-route",
             "provider_id": "lab-routed"},
            {"id": "r2", "model": "routed-plain", "adapter": "direct", "target": "fine-route"},
        ],
    }  # fmt: skip
    bad = [name for name in rig.upstream.scripts if name.startswith("bad-")]
    config["protocol_profiles"] = {
        "all_openai": {
            "base": "llama_cpp",
            "operations": {"responses": "/v1/responses"},
            "capabilities": ["models", "chat", "responses", "streaming", "tool_calling"],
        }
    }
    config["models"] = [
        *({"id": name, "providers": {"p-bad": name}} for name in bad),
        *({"id": f"claude-{name}", "providers": {"p-bad-claude": name}} for name in bad),
        {"id": "refused", "providers": {"p-refused": "fine"}},
        {"id": "unreachable", "providers": {"p-unreachable": "fine"}},
        {"id": "endless", "providers": {"p-endless": "trickle"}},
        {"id": "elsewhere", "providers": {"p-refused": "fine", "p-fine": "fine"}},
        {"id": "silent", "providers": {"p-silent-1": "silent-1", "p-silent-2": "silent-2"}},
        {"id": "pair", "providers": {"p-silent-1": "fine-1", "p-silent-2": "fine-2"}},
        {"id": "fine", "providers": {"p-fine": "fine"}},
        {"id": "claude-fine", "providers": {"p-claude": "fine"}},
        {"id": "window-8k", "providers": {"p-fine": "fine"}, "context_window_tokens": 8_192},
        {"id": "window-128k", "providers": {"p-long": "held"}, "context_window_tokens": 131_072},
        {"id": "one", "providers": {"p-one": "held"}},
        {"id": "both", "providers": {"p-relays": "held", "p-ollama": "held"}},
    ]
    config["nodes"] = [
        {
            "id": "a",
            "token": {"sha256": site.token_sha256("a")},
            "adapters": [
                adapter("bad", up, **SHORT),
                adapter("bad-claude", up, "anthropic", **SHORT),
                adapter("refused", closed_port()),
                adapter("unreachable", unreachable, **SHORT),
                adapter("endless", up, request_timeout_ms=3 * SHORT_MS),
                adapter("scripted", up),
                adapter("direct", up),
                adapter("claude", up, "anthropic"),
                adapter("ollama", up, "ollama"),
            ],
            "providers": [
                provider("p-bad", "bad", *bad),
                provider("p-bad-claude", "bad-claude", *bad, kind="anthropic", category="api"),
                provider("p-refused", "refused", "fine", kind="llama_cpp"),
                provider("p-unreachable", "unreachable", "fine"),
                provider("p-endless", "endless", "trickle"),
                provider("p-silent-1", "scripted", "silent-1", "fine-1", capacity=100),
                provider("p-silent-2", "scripted", "silent-2", "fine-2", capacity=100),
                provider("p-fine", "scripted", "fine", priority=1),
                provider("p-long", "scripted", "held", long_context_capacity=1),
                provider("p-claude", "claude", "fine", kind="anthropic", category="api"),
                provider("p-one", "scripted", "held", capacity=1),
                provider("p-relays", "scripted", "held", capacity=1),
                provider("p-ollama", "ollama", "held", kind="ollama", capacity=1, priority=10),
            ],
        }
    ]
    if real_model is not None and rig.tee is not None:
        name = real_model["model"]
        node = config["nodes"][0]
        node["adapters"] += [
            adapter("tee", rig.tee.url),
            adapter("tee-plain", rig.tee.url),
            adapter("tee-claude", rig.tee.url, "anthropic"),
        ]
        node["providers"] += [
            provider("p-real", "tee", name, profile="all_openai"),
            provider("p-plain", "tee-plain", name),
            provider("p-real-claude", "tee-claude", name, kind="anthropic", category="api"),
        ]
        config["models"] += [
            {"id": "real", "providers": {"p-real": name}},
            {"id": "real-plain", "providers": {"p-plain": name}},
            {"id": "real-claude", "providers": {"p-real-claude": name}},
        ]
    return config
