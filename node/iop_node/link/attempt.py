"""One attempt as the node sees it: the edge's request coming in, the upstream's answer going out.

It joins frames to the adapter seam: `AttemptResponder` is where an adapter puts its answer, and
`RequestBody` is where it takes a long request body from. Both keep the credit rules, so that
neither direction holds more than a window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from iop.runtime_pb2 import NodeFrame, RunEvent
from iop_node.adapters.base import (
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from iop_node.adapters.base import RunEvent as AdapterEvent
from iop_shared.errors import Code, Fault
from iop_shared.session.flow import (
    MAX_EVENT_BYTES,
    ReceiveWindow,
    SendWindow,
    event_cost,
)

MAX_DELTA_CHARS = 4096
"""A longer delta is cut into several, so that one message never holds more of a run than a
window pays for. A character takes up to four bytes."""


class ResponseLink(Protocol):
    """What an attempt needs of the session that carries it."""

    def send_frame(self, attempt_id: int, frame: NodeFrame, weight: int = ...) -> None: ...
    def send_body(self, attempt_id: int, content: bytes) -> None: ...
    def send_credit(self, attempt_id: int, size: int) -> None: ...


class RequestBody:
    """A long request body, in pieces, as an async iterator. One reader only, which is cancelled
    where the session ends first."""

    def __init__(self, link: ResponseLink, attempt_id: int, window: ReceiveWindow) -> None:
        self._link = link
        self._attempt_id = attempt_id
        self._window = window
        self._pieces: deque[bytes] = deque()
        self._is_complete = False
        self._waiter: asyncio.Future[None] | None = None

    def on_chunk(self, content: bytes, last: bool) -> None:
        """Raises FlowViolation where the edge sends more than it has credit for."""
        self._window.received(len(content))
        if content:
            self._pieces.append(content)
        self._is_complete = self._is_complete or last
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._window.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self._is_complete:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        content = self._pieces.popleft()
        credit = self._window.consumed(len(content))
        if credit:
            self._link.send_credit(self._attempt_id, credit)
        return content


class AttemptResponder:
    """The adapter's `Responder` for one attempt."""

    def __init__(self, link: ResponseLink, attempt_id: int, window: SendWindow) -> None:
        self._link = link
        self._attempt_id = attempt_id
        self._window = window
        self._waiter: asyncio.Future[None] | None = None
        self.has_started = False
        self.has_head = False

    def on_credit(self, size: int) -> None:
        self._window.grant(size)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def started(self) -> None:
        self.has_started = True
        frame = NodeFrame()
        frame.upstream_started.attempt_id = self._attempt_id
        self._link.send_frame(self._attempt_id, frame)

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.has_head = True
        # Filled in its place, a frame costs half of what one made of parts does.
        frame = NodeFrame()
        head = frame.response_head
        head.attempt_id = self._attempt_id
        head.status = status
        for name, value in headers:
            header = head.headers.add()
            header.name, header.value = name, value
        self._link.send_frame(self._attempt_id, frame)

    async def chunk(self, content: bytes) -> None:
        while content:
            allowed = self._window.spend(len(content))
            if not allowed:
                await self._credit()
                continue
            self._link.send_body(self._attempt_id, content[:allowed])
            content = content[allowed:]

    async def event(self, event: AdapterEvent) -> None:
        """Raises Fault(upstream_invalid) for an event that cannot be cut and is too long."""
        for piece in _pieces(event):
            try:
                frame = NodeFrame(run_event=_run_event(self._attempt_id, piece))
            except ValueError:
                raise Fault(
                    Code.UPSTREAM_INVALID,
                    "the upstream sent a number or a text that is out of every bound",
                ) from None
            size = frame.ByteSize()
            if size > MAX_EVENT_BYTES:
                raise Fault(
                    Code.UPSTREAM_INVALID,
                    f"the upstream sent a part of a tool call that is {size} bytes long",
                )
            cost = event_cost(size)
            while not self._window.spend_whole(cost):
                await self._credit()
            self._link.send_frame(self._attempt_id, frame, cost)

    async def _credit(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


def _pieces(event: AdapterEvent) -> Iterator[AdapterEvent]:
    """The same event in pieces of which none is too long for a message."""
    match event:
        case TextDelta() | ReasoningDelta() if len(event.text) > MAX_DELTA_CHARS:
            for start in range(0, len(event.text), MAX_DELTA_CHARS):
                yield type(event)(event.text[start : start + MAX_DELTA_CHARS])
        case ToolCallDelta() if len(event.arguments_json) > MAX_DELTA_CHARS:
            whole = event.arguments_json
            yield ToolCallDelta(
                index=event.index,
                id=event.id,
                name=event.name,
                arguments_json=whole[:MAX_DELTA_CHARS],
            )
            for start in range(MAX_DELTA_CHARS, len(whole), MAX_DELTA_CHARS):
                piece = whole[start : start + MAX_DELTA_CHARS]
                yield ToolCallDelta(index=event.index, arguments_json=piece)
        case _:
            yield event


def _run_event(attempt_id: int, event: AdapterEvent) -> RunEvent:
    frame = RunEvent(attempt_id=attempt_id)
    match event:
        case TextDelta():
            frame.text_delta = event.text
        case ReasoningDelta():
            frame.reasoning_delta = event.text
        case ToolCallDelta():
            call = frame.tool_call_delta
            call.index, call.id, call.name = event.index, event.id, event.name
            call.arguments_json = event.arguments_json
        case Finish():
            frame.finish_reason = event.reason
        case Usage():
            frame.usage.SetInParent()
            for name in event.__struct_fields__:
                value = getattr(event, name)
                if value is not None:
                    setattr(frame.usage, name, value)
    return frame
