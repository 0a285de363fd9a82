"""A run in IOP's own terms as a chat of Ollama's native API, there and back. Pure.

An answer is one JSON value a line, the last with `done: true`; a whole answer is that one line.
The request says that neither the prompt nor the answer may be shortened silently: a prompt over
`num_ctx` is an error of the upstream, and an answer that reaches it ends with `length`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from iop.runtime_pb2 import ChatMessage, RunRequest
from iop_node.adapters.base import (
    Finish,
    ReasoningDelta,
    RunEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from iop_node.adapters.openai_chat import raw_json
from iop_shared.errors import Code, Fault

# Ollama's name for each of ours.
_OPTIONS = {
    "max_tokens": "num_predict",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
}


def chat_request(request: RunRequest, context_size: int) -> bytes:
    """The body for /api/chat. `context_size` is sent as num_ctx, 0 leaves it to the upstream.

    Raises Fault(unsupported_field) for a tool choice that Ollama cannot be told, and
    Fault(invalid_value) for JSON inside the request that is none.
    """
    options: dict[str, Any] = {}
    if context_size:
        options["num_ctx"] = context_size
    for ours, theirs in _OPTIONS.items():
        if request.options.HasField(ours):  # type: ignore[arg-type]  # the names of the fields
            options[theirs] = getattr(request.options, ours)
    if request.options.stop:
        options["stop"] = list(request.options.stop)
    body: dict[str, Any] = {
        "model": request.target,
        "messages": list(_messages(request)),
        "stream": request.is_stream,
        "truncate": False,
        "shift": False,
    }
    if options:
        body["options"] = options
    if tools := _tools(request):
        body["tools"] = tools
    wanted = request.response_format
    if wanted.kind == "json_object":
        body["format"] = "json"
    elif wanted.kind == "json_schema":
        body["format"] = raw_json(wanted.schema_json, "response_format")
    asked = request.options
    if asked.HasField("thinking_token_budget") and not asked.thinking_token_budget:
        # There is no budget, only thinking or none. Asking a model to think that cannot is an
        # error, and one that can does so unasked: so only "none" is ever said.
        body["think"] = False
    return msgspec.json.encode(body)


def _tools(request: RunRequest) -> list[dict[str, Any]]:
    if not request.tools:
        return []
    mode = request.tool_choice.mode
    if mode == "none":
        return []
    if mode not in ("", "auto"):
        raise Fault(
            Code.UNSUPPORTED_FIELD,
            "this model's provider cannot be made to call a tool; write tool_choice: auto",
            param="tool_choice",
        )
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": raw_json(tool.parameters_json or '{"type":"object"}', "tools"),
            },
        }
        for tool in request.tools
    ]


def _messages(request: RunRequest) -> Iterator[dict[str, Any]]:
    # Ollama names the tool in a tool's answer; we are told the call that it answers.
    tool_of_call = {
        call.id: call.name for message in request.messages for call in message.tool_calls
    }
    for message in request.messages:
        rendered: dict[str, Any] = {"role": message.role, "content": _text(message)}
        images = [
            base64.b64encode(part.image.content).decode()
            for part in message.parts
            if part.WhichOneof("part") == "image"
        ]
        if images:
            rendered["images"] = images
        if message.reasoning:
            rendered["thinking"] = message.reasoning
        if message.tool_calls:
            rendered["tool_calls"] = [
                {
                    "function": {
                        "name": call.name,
                        "arguments": raw_json(call.arguments_json or "{}", "messages"),
                    }
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            rendered["tool_name"] = message.name or tool_of_call.get(message.tool_call_id, "")
        yield rendered


def _text(message: ChatMessage) -> str:
    return "".join(part.text for part in message.parts if part.WhichOneof("part") == "text")


# --- the answer ----------------------------------------------------------------------------------


class _Function(Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _ToolCall(Struct):
    function: _Function
    id: str = ""


class _Message(Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Answer(Struct):
    message: _Message = field(default_factory=_Message)
    done: bool | None = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


class ChatReader:
    """Reads one answer, line by line."""

    def __init__(self) -> None:
        self._tool_calls = 0
        self._finish: Finish | None = None

    @property
    def is_done(self) -> bool:
        return self._finish is not None

    def read(self, line: bytes) -> Iterator[RunEvent]:
        """The events in one line. Raises Fault(upstream_invalid)."""
        if not line.strip():
            return
        try:
            answer = _decode_answer(line)
        except msgspec.MsgspecError:
            raise Fault(
                Code.UPSTREAM_INVALID, "the upstream sent what is no chat answer of Ollama"
            ) from None
        if answer.error is not None:
            raise Fault(
                Code.UPSTREAM_INVALID, "the upstream reported an error in the middle of its answer"
            )
        if answer.message.thinking:
            yield ReasoningDelta(answer.message.thinking)
        if answer.message.content:
            yield TextDelta(answer.message.content)
        for call in answer.message.tool_calls or ():
            yield ToolCallDelta(
                index=self._tool_calls,
                # Older servers name no id, and callers must have one to answer to.
                id=call.id or f"call_{secrets.token_hex(12)}",
                name=call.function.name,
                arguments_json=bytes(call.function.arguments).decode(),
            )
            self._tool_calls += 1
        if answer.done:
            yield Usage(input_tokens=answer.prompt_eval_count, output_tokens=answer.eval_count)
            if answer.done_reason == "length":
                self._finish = Finish("length")
            else:
                self._finish = Finish("tool_calls" if self._tool_calls else "stop")

    def end(self) -> Finish:
        """The answer is over. Raises Fault(upstream_closed) where nothing said so (OAI-7)."""
        if self._finish is None:
            raise Fault(Code.UPSTREAM_CLOSED, "the upstream's answer stopped without an end")
        return self._finish
