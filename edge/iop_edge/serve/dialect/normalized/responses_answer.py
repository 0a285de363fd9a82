"""The Responses API over a run: the answer, streamed and whole.

A stream tells every output item from its beginning to its end, with numbers that grow by one, and
ends with the whole response; that one is the same as the answer which is not streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from iop.runtime_pb2 import RunEvent
from iop_edge.runtime.work import HeaderPairs
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_edge.serve.dialect.normalized.output_item import OutputItem, Told
from iop_edge.serve.dialect.normalized.result import RunAnswer, RunResult

_encode = msgspec.json.Encoder().encode

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Response:
    """The response object: its head, and its items."""

    def __init__(self, model: str, run_id: str, created: int, echoed: dict[str, Any]) -> None:
        self.result = RunResult(run_id)
        self.run_id = run_id
        self.items: list[OutputItem] = []
        self.head: Mapping[str, Any] = {
            "id": f"resp_{run_id}",
            "object": "response",
            "created_at": created,
            "model": model,
            **echoed,
        }

    def item_for(self, event: RunEvent, kind: str) -> tuple[OutputItem, bool]:
        """The item that an event belongs to, and whether it begins with it."""
        call = None
        last = self.items[-1] if self.items else None
        if kind == "function_call":
            call, _ = self.result.call(event)
            known = next((item for item in self.items if item.call is call), None)
        else:
            known = last if last is not None and last.goes_on_with(kind) else None
        if known is not None:
            return known, False
        prefix = {"reasoning": "rs", "message": "msg"}.get(kind, "fc")
        index = 0 if last is None else last.index + 1
        item = OutputItem(kind, f"{prefix}_{self.run_id}_{index}", index, call)
        self.items.append(item)
        return item, True

    def shown(self, status: str) -> dict[str, Any]:
        reason = _INCOMPLETE.get(self.result.finish_reason)
        is_over = status != "in_progress"
        return {
            **self.head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason and is_over else None,
            "output": [item.shown("completed") for item in self.items] if is_over else [],
            "usage": _usage(self.result) if is_over else None,
        }

    @property
    def final_status(self) -> str:
        return "incomplete" if self.result.finish_reason in _INCOMPLETE else "completed"


_KINDS = {
    "text_delta": "message",
    "reasoning_delta": "reasoning",
    "tool_call_delta": "function_call",
}


class ResponseWhole(RunAnswer):
    """A run as one response."""

    headers: HeaderPairs = JSON_HEADERS

    def __init__(self, *, model: str, run_id: str, created: int, echoed: dict[str, Any]) -> None:
        self._response = _Response(model, run_id, created, echoed)
        super().__init__(self._response.result)

    def _tell(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event") or ""
        if kind not in _KINDS:
            self._response.result.add(event)
            return b""
        item, _ = self._response.item_for(event, _KINDS[kind])
        if item.call is None:
            item.pieces.append(getattr(event, kind))
        return b""

    def end(self) -> bytes:
        self._response.result.require_finish()
        return _encode(self._response.shown(self._response.final_status))


class ResponseStream(RunAnswer):
    """A run as the events of a response."""

    headers: HeaderPairs = STREAM_HEADERS

    def __init__(self, *, model: str, run_id: str, created: int, echoed: dict[str, Any]) -> None:
        self._response = _Response(model, run_id, created, echoed)
        super().__init__(self._response.result)
        self._sequence = 0
        self._open: OutputItem | None = None

    def go_on(self, head: Mapping[str, Any], items: list[OutputItem], sequence: int) -> None:
        """Be the rest of a response that has begun: what it says of itself, what it has told so
        far, and the number of its next event. Of its items only the last may be open."""
        self._response.head = head or self._response.head
        self._response.items = items
        self._sequence = sequence
        self._open = items[-1] if items and items[-1].stage != "done" else None

    def _tell(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event") or ""
        if kind not in _KINDS:
            self._response.result.add(event)
            return b""
        begun = self._begin()
        item, is_new = self._response.item_for(event, _KINDS[kind])
        told: list[Told] = []
        if is_new:
            told = self._close() + item.begin()
            self._open = item
        if item.call is None:
            told += item.add(getattr(event, kind))
        elif event.tool_call_delta.arguments_json:
            told.append(item.fragment(event.tool_call_delta.arguments_json))
        return begun + self._events(told)

    def end(self) -> bytes:
        response = self._response
        response.result.require_finish()
        status = response.final_status
        out = self._begin() + self._events(self._close())
        return out + self._event(f"response.{status}", {"response": response.shown(status)})

    def tail(self) -> bytes:
        """What follows the finish: it is the last event of all."""
        return b""

    def _begin(self) -> bytes:
        if self._sequence:
            return b""
        shown = {"response": self._response.shown("in_progress")}
        return self._event("response.created", shown) + self._event("response.in_progress", shown)

    def _close(self) -> list[Told]:
        item, self._open = self._open, None
        return [] if item is None else item.close()

    def _events(self, told: list[Told]) -> bytes:
        return b"".join([self._event(kind, fields) for kind, fields in told])

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        body = _encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), body)


def _usage(result: RunResult) -> dict[str, Any] | None:
    tokens = result.tokens
    if tokens is None:
        return None
    return {
        "input_tokens": tokens.input_tokens,
        "input_tokens_details": {"cached_tokens": tokens.cached_input_tokens},
        "output_tokens": tokens.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens},
        "total_tokens": tokens.input_tokens + tokens.output_tokens,
    }
