"""What the end-to-end tests do with real processes: configure, call, hang up, look, and check.

A site here is the demo's `Site` with a config of its own kind. At its end `check` fails if a
process is left, an exit status is wrong, or a log holds a traceback or one of the canaries.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from demo.processes import Group
from demo.site import Site

PROMPT_CANARY = "quokka-prompt-canary"
CALLER_TOKEN = "iop_caller_00000000_caller-token-canary-caller-token-canary"
UPSTREAM_KEY = "upstream-key-canary-upstream-key-canary"
COMPLETION_CANARIES = ("juniper", "quarry", "zephyr")  # words of the small upstream's answers
HANG_UP_DEADLINE_S = 1.0

Config = dict[str, Any]

_TROUBLE = re.compile(
    r"Traceback|\"exc_type\"|Task exception was never retrieved|was never awaited"
    r"|Task was destroyed|Unclosed"
)


def prompt(tag: str, more: str = "") -> str:
    """A prompt that follows the plan under `tag` and can be recognized wherever it leaks."""
    return f"[{tag}] {PROMPT_CANARY} {more}"


def chat(model: str, content: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


def site_config(site: Site, upstream: str, *, real_model: dict[str, Any] | None = None) -> Config:
    """Two nodes, a and b. Models: `pair` on both with room, `one` on a with a single slot, and
    `real` on both where there is a real model. Served names tell the nodes apart."""
    config: Config = {"edge": {"id": "e2e"}, **site.listeners()}
    config["server"]["drain_deadline_ms"] = 20_000
    config["usage"] = {"file": str(site.group.folder / "usage.jsonl")}
    config["logging"] = {"level": "debug"}
    digest = hashlib.sha256(CALLER_TOKEN.encode()).hexdigest()
    config["openai"]["principal_tokens"] = [
        {"token_ref": "e2e", "token_hash_sha256": digest, "principal_ref": "tests"}
    ]
    config["models"] = [
        {"id": "pair", "providers": {"a-pair": "small-a", "b-pair": "small-b"}},
        {"id": "one", "providers": {"a-one": "small-one"}},
    ]
    config["nodes"] = [_node(site, "a", upstream), _node(site, "b", upstream)]
    config["nodes"][0]["providers"].append(_provider("a-one", "small", "small-one", 1))
    if real_model is not None:
        name = real_model["model"]
        config["models"].append({"id": "real", "providers": {"a-real": name, "b-real": name}})
        for node in config["nodes"]:
            adapter = {
                "key": "llama",
                "type": "openai_compat",
                "base_url": real_model["listening"],
            }
            node["adapters"].append(adapter)
            node["providers"].append(_provider(f"{node['id']}-real", "llama", name, 2))
    return config


def _node(site: Site, node_id: str, upstream: str) -> Config:
    adapter = {
        "key": "small",
        "type": "openai_compat",
        "base_url": upstream,
        "headers": {"x-api-key": {"node_env": "E2E_UPSTREAM_KEY"}},
    }
    return {
        "id": node_id,
        "token": {"sha256": site.token_sha256(node_id)},
        "adapters": [adapter],
        "providers": [_provider(f"{node_id}-pair", "small", f"small-{node_id}", 32)],
    }


def _provider(provider_id: str, adapter: str, served: str, capacity: int) -> Config:
    return {
        "id": provider_id,
        "type": "llama_cpp",
        "category": "local_inference",
        "adapter": adapter,
        "models": [served],
        "capacity": capacity,
    }


def provider_of(config: Config, provider_id: str) -> Config:
    return next(
        provider
        for node in config["nodes"]
        for provider in node["providers"]
        if provider["id"] == provider_id
    )


def with_provider(config: Config, provider_id: str, **fields: Any) -> Config:
    """A copy of a config in which one provider's fields are changed."""
    copied = copy.deepcopy(config)
    provider_of(copied, provider_id).update(fields)
    return copied


def write(site: Site, config: Config) -> None:
    """Replace the site's file in one step, as an editor does."""
    new = site.config.with_suffix(".new")
    new.write_text(yaml.safe_dump(config, sort_keys=False))
    new.replace(site.config)


def start_nodes(site: Site, *node_ids: str) -> None:
    for node_id in node_ids:
        site.start_node(node_id, env={"E2E_UPSTREAM_KEY": UPSTREAM_KEY})
    site.wait_connected(*node_ids)


@contextmanager
def running_site(folder: Path, expected: dict[str, set[int]] | None = None) -> Iterator[Site]:
    """A site that is stopped and checked at the end of the block.

    `expected` names processes that may end with other statuses than 0.
    """
    site = Site(Group(folder))
    try:
        yield site
    finally:
        statuses = site.group.stop()
        left = [process for process in site.group.processes if _has_members(process.pid)]
        site.group.kill()
    assert not left, f"left behind: {left}"
    allowed = expected or {}
    wrong = {
        name: status for name, status in statuses.items() if status not in allowed.get(name, {0})
    }
    assert not wrong, f"exit statuses {wrong}\n{_ends_of_logs(site)}"
    assert not trouble_in_logs(site), trouble_in_logs(site)
    assert not leaks(site), leaks(site)


def trouble_in_logs(site: Site) -> list[str]:
    """Lines of any log that tell of a bug."""
    return [
        f"{path.name}: {line[:2000]}"
        for path in sorted(site.group.folder.glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if _TROUBLE.search(line)
    ]


def canaries(site: Site) -> tuple[str, ...]:
    """Everything that nobody may find in what the system writes."""
    tokens = [site.token(node_id) for node_id in ("a", "b")]
    return (*tokens, CALLER_TOKEN, UPSTREAM_KEY, PROMPT_CANARY, *COMPLETION_CANARIES)


def leaks(site: Site) -> list[str]:
    """Where a canary stands in a file that the system wrote."""
    written = [*site.group.folder.glob("*.log"), *site.group.folder.glob("*.jsonl")]
    return [
        f"{path.name}:{number}: {canary}"
        for path in sorted(written)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for canary in canaries(site)
        if canary in line
    ]


def _has_members(group_id: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group_id, 0)
        return True
    return False


def _ends_of_logs(site: Site) -> str:
    return "\n".join(
        f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-8:])
        for path in sorted(site.group.folder.glob("*.log"))
    )


class Upstream:
    """The test's hand on the small upstream."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def plan(self, tag: str, **plan: Any) -> None:
        async with self._http.put(f"/control/plans/{tag}", json=plan) as answer:
            assert answer.status == 204

    async def release(self, tag: str) -> None:
        async with self._http.post(f"/control/release/{tag}") as answer:
            assert answer.status == 204

    async def seen(
        self, tag: str, kind: str, *, count: int = 1, within_s: float = 10.0
    ) -> list[dict[str, Any]]:
        """The first `count` events of that kind under the tag. AssertionError if not in time."""
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(within_s + 5):
            while len(events) < count:
                after = events[-1]["seq"] if events else 0
                more = await self._events(tag, kind, after, within_s)
                assert more, f"{len(events)} of {count} × {kind} under {tag} within {within_s} s"
                events += more
        return events

    async def seen_so_far(self, tag: str, kind: str) -> list[dict[str, Any]]:
        return await self._events(tag, kind, 0, 0)

    async def _events(self, tag: str, kind: str, after: int, wait_s: float) -> list[dict[str, Any]]:
        params: dict[str, str | int] = {
            "tag": tag,
            "kind": kind,
            "after": after,
            "timeout_ms": int(wait_s * 1000),
        }
        async with self._http.get("/control/events", params=params) as answer:
            events: list[dict[str, Any]] = await answer.json()
            return events


class Edge:
    """The test's view of a running edge: its callers' side and its operators' side."""

    def __init__(self, site: Site, http: aiohttp.ClientSession) -> None:
        self.site = site
        self.http = http

    async def refresh(self, mode: str = "apply", **demands: Any) -> tuple[int, dict[str, Any]]:
        """POST /refresh: the HTTP status and the result."""
        async with self.http.post(
            f"{self.site.admin_url}/refresh", json={"mode": mode, **demands}
        ) as answer:
            return answer.status, await answer.json()

    async def apply(self, config: Config) -> dict[str, Any]:
        """Write and apply; fails unless it was applied."""
        write(self.site, config)
        status, result = await self.refresh()
        assert (status, result["status"]) == (200, "applied"), result
        return result

    async def admin(self, path: str) -> Any:
        async with self.http.get(f"{self.site.admin_url}{path}") as answer:
            return json.loads(await answer.text())

    async def status(self) -> Any:
        return await self.admin("/status")

    async def provider(self, provider_id: str) -> dict[str, Any]:
        providers = (await self.status())["providers"]
        found: dict[str, Any] = next(p for p in providers if p["provider_id"] == provider_id)
        return found

    async def node(self, node_id: str) -> dict[str, Any]:
        nodes = (await self.status())["nodes"]
        found: dict[str, Any] = next(n for n in nodes if n["node_id"] == node_id)
        return found

    async def until(self, claim: Callable[[Any], object], *, within_s: float = 10.0) -> Any:
        """The first status for which the claim holds. TimeoutError with the last one if none."""
        status: Any = None
        try:
            async with asyncio.timeout(within_s):
                while not claim(status := await self.status()):
                    await asyncio.sleep(0.02)  # offered for what status shows
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {status}") from None
        return status

    async def until_idle(self, *, within_s: float = 10.0) -> None:
        await self.until(is_idle, within_s=within_s)

    @asynccontextmanager
    async def call(
        self, body: dict[str, Any], path: str = "chat/completions"
    ) -> AsyncIterator[RawCall]:
        """A call whose connection is in the test's own hands; closed at the end of the block."""
        call = await RawCall.start(f"{self.site.openai_url}/{path}", body)
        try:
            yield call
        finally:
            call.hang_up()


def is_idle(status: Any) -> bool:
    is_free = all(provider["in_flight"] == 0 for provider in status["providers"])
    return is_free and status["queue"]["pending"] == 0


class RawCall:
    """One HTTP/1.1 request on a connection of its own, to be read byte by byte or dropped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.received = b""

    @classmethod
    async def start(cls, url: str, body: dict[str, Any]) -> RawCall:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        content = json.dumps(body).encode()
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {CALLER_TOKEN}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + content)
        return cls(reader, writer)

    async def until(self, marker: bytes, *, within_s: float = 10.0) -> None:
        """Read until the marker has been received."""
        async with asyncio.timeout(within_s):
            while marker not in self.received:
                piece = await self._reader.read(65536)
                assert piece, f"ended before {marker!r}: {self.received!r}"
                self.received += piece

    async def rest(self, *, within_s: float = 20.0) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(within_s):
            with suppress(ConnectionResetError):
                while piece := await self._reader.read(65536):
                    self.received += piece
        return self.received

    def hang_up(self) -> None:
        self._writer.close()
