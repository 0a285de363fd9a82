"""Anthropic's messages over a run: the answer, streamed and whole.

Blocks are told in the order in which they came; one is open at a time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from iop.runtime_pb2 import RunEvent
from iop_edge.runtime.work import HeaderPairs
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_edge.serve.dialect.normalized import reading
from iop_edge.serve.dialect.normalized.result import RunAnswer, RunResult

_encode = msgspec.json.Encoder().encode

_STOP_REASONS = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use",
    "content_filter": "refusal",
}  # fmt: skip


class MessageStream(RunAnswer):
    """A run as the events of a message: blocks in the order in which they came."""

    headers: HeaderPairs = STREAM_HEADERS

    def __init__(self, *, model: str, run_id: str) -> None:
        super().__init__(RunResult(run_id))
        self._model = model
        self._run_id = run_id
        self._open: tuple[str, int] | None = None
        self._blocks = 0
        self._has_begun = False

    def go_on(self, blocks: int, open_kind: str | None) -> None:
        """Be the rest of a message that has begun and has so many blocks that are closed.

        `open_kind` is the type of the block that is open after them: text goes on in a text block,
        thinking in a thinking block.
        """
        self._has_begun = True
        self._blocks = blocks
        is_mine = open_kind in ("text", "thinking")
        self._open = None if open_kind is None else (open_kind, 0 if is_mine else -1)

    def _tell(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event")
        if kind == "text_delta":
            begin = self._block("text", 0, {"type": "text", "text": ""})
            return begin + self._delta({"type": "text_delta", "text": event.text_delta})
        if kind == "reasoning_delta":
            begin = self._block(
                "thinking", 0, {"type": "thinking", "thinking": "", "signature": ""}
            )
            delta = {"type": "thinking_delta", "thinking": event.reasoning_delta}
            return begin + self._delta(delta)
        if kind == "tool_call_delta":
            call, _ = self._result.call(event)
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            begin = self._block("tool_use", call.index, block)
            fragment = event.tool_call_delta.arguments_json
            if not fragment:
                return begin
            return begin + self._delta({"type": "input_json_delta", "partial_json": fragment})
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        result = self._result
        result.require_finish()
        reason = _STOP_REASONS.get(result.finish_reason, "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        return b"".join(
            (
                self._begin(),
                self._close_block(),
                _event("message_delta", {"delta": delta, "usage": _usage(result)}),
                self.tail(),
            )
        )

    def tail(self) -> bytes:
        """What follows the finish."""
        return _event("message_stop", {})

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = _message(self._model, self._run_id, [], None, _usage(self._result))
        return _event("message_start", {"message": message})

    def _block(self, kind: str, index: int, block: dict[str, Any]) -> bytes:
        """Begin a block, unless the one that is open is the same."""
        begin = self._begin()
        if self._open == (kind, index):
            return begin
        closed = self._close_block()
        self._open = (kind, index)
        started = {"index": self._blocks, "content_block": block}
        return begin + closed + _event("content_block_start", started)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._blocks += 1
        return _event("content_block_stop", {"index": self._blocks - 1})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks, "delta": delta})


class MessageWhole(RunAnswer):
    """A run as one message."""

    headers: HeaderPairs = JSON_HEADERS

    def __init__(self, *, model: str, run_id: str) -> None:
        super().__init__(RunResult(run_id))
        self._model = model
        self._run_id = run_id

    def _tell(self, event: RunEvent) -> bytes:
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        result = self._result
        result.require_finish()
        content: list[dict[str, Any]] = []
        if result.reasoning:
            content.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
        if result.text:
            content.append({"type": "text", "text": result.text})
        content += (
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": reading.object_of(call.arguments),
            }
            for call in result.calls.values()
        )
        reason = _STOP_REASONS.get(result.finish_reason, "end_turn")
        return _encode(_message(self._model, self._run_id, content, reason, _usage(result)))


def _message(
    model: str,
    run_id: str,
    content: list[dict[str, Any]],
    reason: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": f"msg_{run_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(result: RunResult) -> dict[str, Any]:
    """Anthropic counts what was read from a cache apart from the rest of the input."""
    tokens = result.tokens
    counted = tokens.input_tokens if tokens else 0
    cached = min(tokens.cached_input_tokens, counted) if tokens else 0
    return {
        "input_tokens": counted - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens.output_tokens if tokens else 0,
    }


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
