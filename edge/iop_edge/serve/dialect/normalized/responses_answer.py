"""The Responses API over a run: the answer, streamed and whole.

A stream tells every output item from its beginning to its end, with numbers that grow by one, and
ends with the whole response; that one is the same as the answer which is not streamed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from iop.runtime_pb2 import RunEvent
from iop_edge.runtime.work import HeaderPairs
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_edge.serve.dialect.normalized.result import Call, RunAnswer, RunResult

_encode = msgspec.json.Encoder().encode

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Item:
    """One output item that is being told: reasoning, a message, or a function call."""

    def __init__(self, kind: str, item_id: str, call: Call | None = None) -> None:
        self.kind = kind
        self.id = item_id
        self.call = call
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def shown(self, status: str) -> dict[str, Any]:
        if self.call is not None:
            return {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.call.id,
                "name": self.call.name,
                "arguments": self.call.arguments if status == "completed" else "",
            }
        content = [self.part(self.text)] if status == "completed" else []
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content}
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class _Response:
    """The response object: its head, and the items that are complete."""

    def __init__(self, model: str, run_id: str, created: int, echoed: dict[str, Any]) -> None:
        self.result = RunResult(run_id)
        self.run_id = run_id
        self.items: list[_Item] = []
        self._head = {
            "id": f"resp_{run_id}",
            "object": "response",
            "created_at": created,
            "model": model,
            **echoed,
        }

    def item_for(self, event: RunEvent, kind: str) -> tuple[_Item, bool]:
        """The item that an event belongs to, and whether it begins with it."""
        call = None
        if kind == "function_call":
            call, _ = self.result.call(event)
            known = next((item for item in self.items if item.call is call), None)
        else:
            known = self.items[-1] if self.items and self.items[-1].kind == kind else None
        if known is not None:
            return known, False
        prefix = {"reasoning": "rs", "message": "msg"}.get(kind, "fc")
        item = _Item(kind, f"{prefix}_{self.run_id}_{len(self.items)}", call)
        self.items.append(item)
        return item, True

    def shown(self, status: str) -> dict[str, Any]:
        reason = _INCOMPLETE.get(self.result.finish_reason)
        is_over = status != "in_progress"
        return {
            **self._head,
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
        self._open: _Item | None = None

    def _tell(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event") or ""
        if kind not in _KINDS:
            self._response.result.add(event)
            return b""
        out = self._begin()
        item, is_new = self._response.item_for(event, _KINDS[kind])
        if is_new:
            out += self._close() + self._add(item)
        place = {"item_id": item.id, "output_index": self._response.items.index(item)}
        if item.call is not None:
            delta = event.tool_call_delta.arguments_json
            if not delta:
                return out
            return out + self._event(
                "response.function_call_arguments.delta", {**place, "delta": delta}
            )
        delta = getattr(event, kind)
        item.pieces.append(delta)
        told = {**place, "content_index": 0, "delta": delta}
        if item.kind == "reasoning":
            return out + self._event("response.reasoning_text.delta", told)
        return out + self._event("response.output_text.delta", {**told, "logprobs": []})

    def end(self) -> bytes:
        response = self._response
        response.result.require_finish()
        status = response.final_status
        out = self._begin() + self._close()
        return out + self._event(f"response.{status}", {"response": response.shown(status)})

    def _begin(self) -> bytes:
        if self._sequence:
            return b""
        shown = {"response": self._response.shown("in_progress")}
        return self._event("response.created", shown) + self._event("response.in_progress", shown)

    def _add(self, item: _Item) -> bytes:
        self._open = item
        index = len(self._response.items) - 1
        added = {"output_index": index, "item": item.shown("in_progress")}
        out = self._event("response.output_item.added", added)
        if item.call is None:
            place = {"item_id": item.id, "output_index": index, "content_index": 0}
            out += self._event("response.content_part.added", {**place, "part": item.part("")})
        return out

    def _close(self) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        index = self._response.items.index(item)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        if item.call is not None:
            told = {**place, "name": item.call.name, "arguments": item.call.arguments}
            out = self._event("response.function_call_arguments.done", told)
        else:
            place["content_index"] = 0
            told = {**place, "text": item.text}
            if item.kind == "reasoning":
                out = self._event("response.reasoning_text.done", told)
            else:
                out = self._event("response.output_text.done", {**told, "logprobs": []})
            out += self._event(
                "response.content_part.done", {**place, "part": item.part(item.text)}
            )
        done = {"output_index": index, "item": item.shown("completed")}
        return out + self._event("response.output_item.done", done)

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
