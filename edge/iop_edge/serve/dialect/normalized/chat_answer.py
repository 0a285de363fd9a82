"""Chat completions over a run: the answer, streamed and whole."""

from __future__ import annotations

from typing import Any

import msgspec

from iop.runtime_pb2 import RunEvent
from iop_edge.runtime.work import HeaderPairs
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_edge.serve.dialect.normalized.result import RunAnswer, RunResult

_encode = msgspec.json.Encoder().encode


class ChatStream(RunAnswer):
    """A run as the events of a chat completion. Text is released as it comes."""

    headers: HeaderPairs = STREAM_HEADERS

    def __init__(self, *, model: str, run_id: str, created: int, includes_usage: bool) -> None:
        super().__init__(RunResult(run_id))
        self._model = model
        self._includes_usage = includes_usage
        self._usage_field = b',"usage":null' if includes_usage else b""
        self._run_id = run_id
        self.go_on(None, created, has_begun=False)

    def go_on(self, answer_id: str | None, created: int, *, has_begun: bool) -> None:
        """Be the rest of an answer, which may have an id. `has_begun`: its role has been told."""
        head = {
            "id": answer_id or f"chatcmpl-{self._run_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": self._model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._has_begun = has_begun

    def _tell(self, event: RunEvent) -> bytes:
        kind = event.WhichOneof("event")
        if kind == "text_delta":
            return self._chunk({"content": event.text_delta})
        if kind == "reasoning_delta":
            return self._chunk({"reasoning_content": event.reasoning_delta})
        if kind == "tool_call_delta":
            return self._chunk({"tool_calls": [self._call(event)]})
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        self._result.require_finish()
        return self._chunk({}, self._result.finish_reason) + self.tail()

    def tail(self) -> bytes:
        """What follows the finish."""
        done = b"data: [DONE]\n\n"
        if not self._includes_usage:
            return done
        usage = _encode(_usage(self._result))
        return b"".join((self._head, b',"choices":[],"usage":', usage, b"}\n\n", done))

    def _call(self, event: RunEvent) -> dict[str, Any]:
        delta = event.tool_call_delta
        call, is_first = self._result.call(event)
        piece: dict[str, Any] = {"index": delta.index}
        if not is_first:
            return {**piece, "function": {"arguments": delta.arguments_json}}
        function = {"name": call.name, "arguments": delta.arguments_json}
        return {**piece, "id": call.id, "type": "function", "function": function}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            delta = {"role": "assistant", "content": "", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return b"".join(
            (self._head, b',"choices":[', _encode(choice), b"]", self._usage_field, b"}\n\n")
        )


class ChatWhole(RunAnswer):
    """A run as one chat completion."""

    headers: HeaderPairs = JSON_HEADERS

    def __init__(self, *, model: str, run_id: str, created: int) -> None:
        super().__init__(RunResult(run_id))
        self._head = {
            "id": f"chatcmpl-{run_id}",
            "object": "chat.completion",
            "created": created,
            "model": model,
        }

    def _tell(self, event: RunEvent) -> bytes:
        self._result.add(event)
        return b""

    def end(self) -> bytes:
        result = self._result
        result.require_finish()
        calls = list(result.calls.values())
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not result.text else result.text,
            "refusal": None,
        }
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": result.finish_reason,
        }
        return _encode({**self._head, "choices": [choice], "usage": _usage(result)})


def _usage(result: RunResult) -> dict[str, Any] | None:
    tokens = result.tokens
    if tokens is None:
        return None
    return {
        "prompt_tokens": tokens.input_tokens,
        "completion_tokens": tokens.output_tokens,
        "total_tokens": tokens.input_tokens + tokens.output_tokens,
        "prompt_tokens_details": {"cached_tokens": tokens.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens},
    }
