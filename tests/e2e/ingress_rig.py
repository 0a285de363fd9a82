"""A site for the ingress as its callers see it: scripted upstreams on raw sockets, a tee in front
of the real model, and a stub of Ollama.

Everything that plays an upstream runs on one loop in a thread of its own, so that tests of any
loop, and official clients that have none, share it. What an upstream does follows from the served
name that it is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import yaml
from e2e_harness import CALLER_TOKEN, PROMPT_CANARY, Config, running_site

from demo.site import Site

SECOND_TOKEN = "iop_caller_11111111_second-caller-canary-second-caller-canary"
PROVIDER_TOKEN = "provider-token-canary-provider-token-canary"
COMPLETION = "The heron-completion-canary stands still."
CANARIES = (SECOND_TOKEN, CALLER_TOKEN, PROVIDER_TOKEN, PROMPT_CANARY, "heron-completion-canary")

SHORT_MS = 400
"""First byte, idle and connect timeout of the adapters whose upstreams are bad."""

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


@dataclass
class Asked:
    """One request as an upstream got it."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    is_closed: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let an upstream that holds its answer give it. From any thread."""
        self.loop.call_soon_threadsafe(self.is_released.set)

    @property
    def model(self) -> str:
        return str(self.body.get("model"))


Script = Callable[[Asked, Reader, Writer], Awaitable[None]]


class ScriptedUpstream:
    """Raw sockets under scripts, by served name. A request whose caller leaves `is_closed`."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.asked: list[Asked] = []
        self.changed = threading.Condition()
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                asked = Asked(
                    len(self.asked), lines[0].split(" ")[1], headers, json.loads(body or b"{}")
                )
                with self.changed:
                    self.asked.append(asked)
                    self.changed.notify_all()
                await self._play(asked, reader, writer)
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async def _play(self, asked: Asked, reader: Reader, writer: Writer) -> None:
        try:
            await self.scripts[asked.model](asked, reader, writer)
        except ConnectionError:
            asked.is_closed.set()
            with self.changed:
                self.changed.notify_all()
            raise

    def of(self, *models: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.model in models]

    def wait(self, claim: Callable[[], bool], within_s: float) -> None:
        with self.changed:
            assert self.changed.wait_for(claim, within_s), f"not so within {within_s} s"

    async def until_asked(self, count: int, *models: str, within_s: float = 20.0) -> list[Asked]:
        await asyncio.to_thread(self.wait, lambda: len(self.of(*models)) >= count, within_s)
        return self.of(*models)

    async def until_closed(self, asked: list[Asked], within_s: float) -> None:
        def all_closed() -> bool:
            return all(each.is_closed.is_set() for each in asked)

        await asyncio.to_thread(self.wait, all_closed, within_s)


class Tee:
    """Passes every byte between a node and the model server, and keeps what the server said."""

    def __init__(self, target: str) -> None:
        self._host, port = target.removeprefix("http://").rsplit(":", 1)
        self._port = int(port)
        self.said = bytearray()
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pass(reader, up_writer, None), self._pass(up_reader, writer, self.said)
        )

    @staticmethod
    async def _pass(reader: Reader, writer: Writer, kept: bytearray | None) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                if kept is not None:
                    kept += piece
                writer.write(piece)
                await writer.drain()
        with suppress(ConnectionError):
            writer.close()


# -- what upstreams say ----------------------------------------------------------------------------


def http(
    body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode("latin-1") + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def framed(content: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def event(payload: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=False)}\n\n".encode()


def chat_chunk(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    return event({**head, "choices": [choice]})


def chat_stream(model: str, text: str = COMPLETION) -> list[bytes]:
    return [
        chat_chunk(model, {"role": "assistant", "content": ""}),
        *(chat_chunk(model, {"content": word + " "}) for word in text.split()),
        chat_chunk(model, {}, "stop"),
        b"data: [DONE]\n\n",
    ]


def chat_whole(model: str, text: str = COMPLETION) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7},
        }
    ).encode()


def messages_whole(model: str, text: str = COMPLETION) -> bytes:
    return json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 5},
        }
    ).encode()


async def fine(asked: Asked, reader: Reader, writer: Writer) -> None:
    """A well-behaved upstream of all protocols that are spoken here."""
    if asked.path == "/api/chat":
        await _ollama(asked, writer)
    elif asked.path == "/v1/messages/count_tokens":
        writer.write(http(b'{"input_tokens":7}'))
    elif asked.path == "/v1/messages":
        writer.write(http(messages_whole(asked.model)))
    elif asked.body.get("stream"):
        writer.write(STREAM_HEAD + b"".join(map(framed, chat_stream(asked.model))) + framed(b""))
    else:
        writer.write(http(chat_whole(asked.model)))
    await writer.drain()


async def _ollama(asked: Asked, writer: Writer) -> None:
    """Ollama's native chat: JSON lines as its API document has them."""
    words = COMPLETION.split()
    common = {"model": asked.model, "created_at": "2026-08-02T10:00:00.000000Z"}

    def line(content: str, **more: Any) -> bytes:
        message = {"role": "assistant", "content": content}
        return json.dumps({**common, "message": message, "done": False, **more}).encode()

    end: dict[str, Any] = {
        "done": True,
        "done_reason": "stop",
        "total_duration": 5_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 1_000_000,
        "eval_count": len(words),
        "eval_duration": 3_000_000,
    }
    if not asked.body.get("stream", True):
        writer.write(http(line(COMPLETION, **end)))
        return
    lines = [line(word + " ") for word in words] + [line("", **end)]
    head = STREAM_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
    writer.write(head + b"".join(framed(each + b"\n") for each in lines) + framed(b""))


async def silent(asked: Asked, reader: Reader, writer: Writer) -> None:
    """Says nothing until its caller leaves."""
    await reader.read(1)
    raise ConnectionResetError


async def held(asked: Asked, reader: Reader, writer: Writer) -> None:
    """Answers once it is released."""
    await asked.is_released.wait()
    await fine(asked, reader, writer)


# -- the site --------------------------------------------------------------------------------------


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
