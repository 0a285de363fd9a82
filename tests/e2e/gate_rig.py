"""Upstreams that tell what a test plans, attempt by attempt, in whichever protocol they are asked.

What an upstream does follows from the first word of the first thing that the caller said: the tag
under which a test has planned its attempts. Each request takes the next one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from ingress_upstreams import STREAM_HEAD, Asked, Reader, ScriptedUpstream, Writer, framed, http

from iop_edge.gate.evidence import Said
from iop_edge.runtime.work import Surface
from tests.edge.serve.dialect.gated.rig import call, content, finish, thought, upstream

__all__ = ["PlannedUpstream", "Step", "call", "content", "finish", "says", "tag_of", "thought"]

Step = Said | Literal["cut", "hold"] | int | bytes
"""Something said; the connection cut; a pause until it is released; an error status in the place
of an answer; bytes as they are."""

_SURFACES: dict[str, Surface] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def says(text: str, size: int = 6) -> list[Step]:
    return [content(text[at : at + size]) for at in range(0, len(text), size)]


def tag_of(body: dict[str, Any]) -> str:
    said = body.get("messages") or body.get("input") or ""
    first = said if isinstance(said, str) else said[0]["content"]
    if not isinstance(first, str):
        first = first[0]["text"]
    return str(first.split(" ", 1)[0])


class PlannedUpstream(ScriptedUpstream):
    """See the module. Everything that it was asked is kept, by tag."""

    def __init__(self) -> None:
        super().__init__({})
        self._plans: dict[str, list[Sequence[Step]]] = {}
        self._held: set[int] = set()

    def plan(self, tag: str, *attempts: Sequence[Step]) -> str:
        self._plans[tag] = list(attempts)
        return tag

    def asked_for(self, tag: str) -> list[Asked]:
        return [one for one in self.asked if tag_of(one.body) == tag]

    async def until_held(self, tag: str, attempt: int = 0) -> Asked:
        """The attempt of that number, once it holds its answer."""

        def is_held() -> bool:
            asked = self.asked_for(tag)
            return len(asked) > attempt and asked[attempt].number in self._held

        await asyncio.to_thread(self.wait, is_held, 20.0)
        return self.asked_for(tag)[attempt]

    async def _play(self, asked: Asked, reader: Reader, writer: Writer) -> None:
        if not asked.body:
            # A probe.
            writer.write(http(b"{}"))
            await writer.drain()
            return
        try:
            await self._tell(asked, self._plans[tag_of(asked.body)].pop(0), reader, writer)
        except ConnectionError:
            asked.is_closed.set()
            with self.changed:
                self.changed.notify_all()
            raise

    async def _tell(
        self, asked: Asked, steps: Sequence[Step], reader: Reader, writer: Writer
    ) -> None:
        if steps and isinstance(steps[0], int):
            body = json.dumps({"error": {"message": "no", "type": "server_error"}}).encode()
            writer.write(http(body, f"{steps[0]} No"))
            await writer.drain()
            return
        is_stream = bool(asked.body.get("stream"))
        if is_stream:
            kind = b"x-ndjson" if asked.path == "/api/chat" else b"event-stream"
            writer.write(STREAM_HEAD.replace(b"event-stream", kind))
        spoken: list[Said] = []
        sent = 0
        for step in steps:
            if isinstance(step, Said):
                spoken.append(step)
                continue
            told = _told(asked, spoken) if is_stream else []
            writer.write(b"".join(map(framed, told[sent:])))
            sent = len(told)
            if isinstance(step, bytes):
                writer.write(framed(step))
            await writer.drain()
            if step == "hold":
                await self._hold(asked, reader)
            elif step == "cut":
                writer.close()
                raise ConnectionResetError
        told = _told(asked, spoken)
        if is_stream:
            for event in told[sent:]:
                writer.write(framed(event))
                await writer.drain()
            writer.write(framed(b""))
        else:
            writer.write(http(told[0]))
        await writer.drain()

    async def _hold(self, asked: Asked, reader: Reader) -> None:
        with self.changed:
            self._held.add(asked.number)
            self.changed.notify_all()
        left = asyncio.ensure_future(_has_left(reader))
        released = asyncio.ensure_future(asked.is_released.wait())
        done, waiting = await asyncio.wait({left, released}, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one
        if left in done:
            raise ConnectionResetError


async def _has_left(reader: Reader) -> None:
    with suppress(ConnectionError):
        await reader.read(1)


def _told(asked: Asked, spoken: Sequence[Said]) -> list[bytes]:
    is_stream = bool(asked.body.get("stream"))
    if asked.path == "/api/chat":
        return _ollama(asked, spoken, is_stream)
    return upstream(_SURFACES[asked.path], is_stream, spoken)


def _ollama(asked: Asked, spoken: Sequence[Said], is_stream: bool) -> list[bytes]:
    """Ollama's native chat; a call stands whole in one message."""
    lines: list[dict[str, Any]] = []
    for said in spoken:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        more: dict[str, Any] = {"done": False}
        match said.kind:
            case "content":
                message["content"] = said.text
            case "reasoning":
                message["thinking"] = said.text
            case "tool_call":
                one = {"name": said.name, "arguments": json.loads(said.text)}
                message["tool_calls"] = [{"function": one}]
            case "finish":
                counts = {"prompt_eval_count": 7, "eval_count": 3}
                more = {"done": True, "done_reason": said.text, **counts}
        lines.append({"model": asked.model, "created_at": "2026-08-02T10:00:00Z",
                      "message": message, **more})  # fmt: skip
    if not is_stream:
        texts = [line["message"]["content"] for line in lines]
        last = {**lines[-1], "message": {"role": "assistant", "content": "".join(texts)}}
        return [json.dumps(last).encode()]
    return [json.dumps(line).encode() + b"\n" for line in lines]
