"""Upstreams that the tests play: scripted raw sockets, a tee before a real server, good answers.

All of them run on one loop in a thread of its own, so that tests of any loop, and official clients
that have none, share them. What an upstream does follows from the served name it is asked for.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

COMPLETION = "The heron-completion-canary stands still."

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


def response_whole(model: str, text: str = COMPLETION) -> bytes:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    return json.dumps(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": model,
            "output": [item],
            "usage": {"input_tokens": 7, "output_tokens": 0, "total_tokens": 7},
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
    elif asked.path == "/v1/responses":
        writer.write(http(response_whole(asked.model)))
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
