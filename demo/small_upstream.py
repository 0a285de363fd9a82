"""A small upstream that speaks OpenAI's chat completions: no model, the same words every time.

It stands in where the model package cannot be had, and it is the upstream of tests that need exact
bytes or exact moments. `python -m demo.small_upstream` prints one JSON line like the model server's
and ends with its parent or on SIGTERM.

What an answer says follows from the prompt alone (`words_for`), so every caller knows its own
answer and a mixed-up byte shows. What it *does* can be planned by tests: a prompt that begins with
`[tag] ` follows the plan put under that tag, so tests that share one upstream do not meet.

    PUT  /control/plans/{tag}      a Plan as JSON
    POST /control/release/{tag}    lets everything go on that is held under the tag, now and later
    GET  /control/events           ?after=SEQ&tag=TAG&kind=KIND&timeout_ms=N: waits for an event
    GET  /control/state            {"open": requests being answered, "most_open": …, "total": …}

An event is {"seq", "tag", "request", "kind"}: `opened` (with the `model` that was named and the
digest of the `x-api-key` that came), `held`, `completed`, or `closed` (the other side went away
before the answer was complete).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from demo.tether import end_with_parent

MODEL_NAME = "small-upstream"
_TAG = re.compile(r"\A\[([\w.-]+)\] ")
_VOCABULARY = """
    amber basin cedar delta ember fjord grove harbour inlet juniper kelp lagoon meadow north
    orchard pebble quarry river summit tundra upland valley willow zephyr über naïve 강 山
"""
_WORDS = _VOCABULARY.split()


@dataclass(frozen=True)
class Plan:
    """How requests under one tag are answered. The default answers at once and completely."""

    tokens: int = 24
    """Length of an answer where the caller sets no lower `max_tokens`."""
    pace_ms: float = 0.0
    """Pause before each token."""
    hold_before_head: bool = False
    """Say nothing, not even a status, until released."""
    hold_after: int | None = None
    """Stop after so many tokens until released."""
    cut_after: int | None = None
    """Break the connection after so many tokens."""
    stop_after: int | None = None
    """End the body cleanly after so many tokens, without a finish reason or `[DONE]`."""
    status: int = 200
    """Another status is answered with an error body in OpenAI's shape."""


def words_for(prompt: str, count: int) -> list[str]:
    """The answer to a prompt, as its tokens: the same for the same prompt, at any length."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return [
        _WORDS[(digest[i % 32] + i * (1 + digest[(i // 32) % 32] % 7)) % len(_WORDS)]
        + (". " if i % 12 == 11 else " ")
        for i in range(count)
    ]


@dataclass
class Log:
    """What happened, in order, for anybody who waits to see it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    open: int = 0
    most_open: int = 0
    total: int = 0

    async def add(self, **facts: Any) -> None:
        async with self.changed:
            self.events.append({"seq": len(self.events) + 1, **facts})
            self.changed.notify_all()

    async def wait(
        self, after: int, tag: str | None, kind: str | None, timeout_s: float
    ) -> list[dict[str, Any]]:
        """Matching events later than `after`: at least one, or none if the time is up."""

        def matching() -> list[dict[str, Any]]:
            return [
                event
                for event in self.events[after:]
                if tag in (None, event["tag"]) and kind in (None, event["kind"])
            ]

        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self.changed:
                await self.changed.wait_for(matching)
        return matching()


class SmallUpstream:
    """The application: answers, plans, gates and the log of what was seen."""

    def __init__(self, default: Plan) -> None:
        self._default = default
        self._plans: dict[str, Plan] = {}
        self._released: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._log = Log()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_put("/control/plans/{tag}", self._put_plan)
        app.router.add_post("/control/release/{tag}", self._release)
        app.router.add_get("/control/events", self._events)
        app.router.add_get("/control/state", self._state)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "iop"}
        return web.json_response({"object": "list", "data": [model]})

    async def _put_plan(self, request: web.Request) -> web.Response:
        self._plans[request.match_info["tag"]] = Plan(**await request.json())
        return web.Response(status=204)

    async def _release(self, request: web.Request) -> web.Response:
        self._released[request.match_info["tag"]].set()
        return web.Response(status=204)

    async def _events(self, request: web.Request) -> web.Response:
        query = request.query
        found = await self._log.wait(
            after=int(query.get("after", "0")),
            tag=query.get("tag"),
            kind=query.get("kind"),
            timeout_s=int(query.get("timeout_ms", "0")) / 1000,
        )
        return web.json_response(found)

    async def _state(self, _: web.Request) -> web.Response:
        log = self._log
        return web.json_response({"open": log.open, "most_open": log.most_open, "total": log.total})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = str(body["messages"][-1]["content"])
        found = _TAG.match(prompt)
        tag = found[1] if found else ""
        plan = self._plans.get(tag, self._default)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        is_endless = body.get("ignore_eos", False)
        count = (
            plan.tokens if wanted is None else wanted if is_endless else min(plan.tokens, wanted)
        )
        answer = _Answer(body, words_for(prompt, count), cut_short=count < plan.tokens)
        async with self._observed(tag, request, body) as number:
            if plan.hold_before_head:
                await self._hold(tag, number)
            if plan.status != 200:
                return web.json_response(answer.error(plan.status), status=plan.status)
            if body.get("stream"):
                return await self._stream(request, plan, tag, number, answer)
            for index in range(count):
                if index == plan.hold_after:
                    await self._hold(tag, number)
                if plan.pace_ms:
                    await asyncio.sleep(plan.pace_ms / 1000)
            return web.json_response(answer.whole())

    async def _stream(
        self, request: web.Request, plan: Plan, tag: str, number: int, answer: _Answer
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(answer.chunk({"role": "assistant", "content": ""}))
        for index, word in enumerate(answer.words):
            if index == plan.hold_after:
                await self._hold(tag, number)
            if index == plan.cut_after and request.transport is not None:
                request.transport.abort()
                return response
            if index == plan.stop_after:
                return response
            if plan.pace_ms:
                await asyncio.sleep(plan.pace_ms / 1000)
            await response.write(answer.chunk({"content": word}))
        await response.write(answer.tail())
        await response.write_eof()
        return response

    async def _hold(self, tag: str, number: int) -> None:
        await self._log.add(tag=tag, request=number, kind="held")
        await self._released[tag].wait()

    @asynccontextmanager
    async def _observed(
        self, tag: str, request: web.Request, body: dict[str, Any]
    ) -> AsyncIterator[int]:
        """One request in the log, from `opened` to `completed` or `closed`."""
        log = self._log
        log.total += 1
        log.open += 1
        log.most_open = max(log.most_open, log.open)
        number, kind = log.total, "closed"
        key = request.headers.get("x-api-key", "").encode()
        await log.add(
            tag=tag,
            request=number,
            kind="opened",
            model=body.get("model"),
            api_key_sha256=hashlib.sha256(key).hexdigest(),
        )
        try:
            yield number
            kind = "completed"
        finally:
            log.open -= 1
            await asyncio.shield(log.add(tag=tag, request=number, kind=kind))


class _Answer:
    """One answer's bytes. Nothing in them depends on when it is asked for."""

    def __init__(self, body: dict[str, Any], words: list[str], cut_short: bool) -> None:
        self.words = words
        self._finish_reason = "length" if cut_short else "stop"
        self._sends_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        input_tokens = sum(len(str(message["content"]).split()) for message in body["messages"])
        self._usage = {
            "prompt_tokens": input_tokens,
            "completion_tokens": len(words),
            "total_tokens": input_tokens + len(words),
        }
        identity = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:24]
        self._common = {"id": f"chatcmpl-{identity}", "created": 0, "model": MODEL_NAME}

    def _event(self, **fields: Any) -> bytes:
        content = {**self._common, "object": "chat.completion.chunk", **fields}
        return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        return self._event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    def tail(self) -> bytes:
        usage = self._event(choices=[], usage=self._usage) if self._sends_usage else b""
        return self.chunk({}, self._finish_reason) + usage + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(self.words)}
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage,
        }

    def error(self, status: int) -> dict[str, Any]:
        return {"error": {"message": f"planned {status}", "type": "planned", "code": None}}


async def _serve(host: str, port: int, default: Plan) -> None:
    started = time.monotonic()
    runner = web.AppRunner(
        SmallUpstream(default).application(),
        handler_cancellation=True,  # a caller that goes away is seen at once
        access_log=None,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    ready = {
        "listening": f"http://{host}:{runner.addresses[0][1]}",
        "model": MODEL_NAME,
        "started_in_ms": round((time.monotonic() - started) * 1000),
    }
    print(json.dumps(ready), flush=True)
    await ended.wait()
    await runner.cleanup()


def main() -> None:
    arguments = argparse.ArgumentParser(description="A small OpenAI-compatible upstream")
    arguments.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    arguments.add_argument("--port", type=int, default=0, help="0: any free one")
    arguments.add_argument("--tokens", type=int, default=Plan.tokens, help="length of an answer")
    arguments.add_argument("--pace-ms", type=float, default=0.0, help="pause before each token")
    arguments.add_argument("--stay", action="store_true", help="outlive the parent process")
    options = arguments.parse_args()
    if not options.stay:
        end_with_parent()
    default = Plan(tokens=options.tokens, pace_ms=options.pace_ms)
    asyncio.run(_serve(options.host, options.port, default))


if __name__ == "__main__":
    main()
