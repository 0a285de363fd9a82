"""The four things a caller can ask for, each in one table.

What their fields have to be, where the output limit stands, which observer reads the answer, and
which of the caller's headers may go to the upstream. Nothing of a caller's goes there unless it
is named here: a header may be a credential.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from msgspec import Struct

from iop_edge.runtime.work import Surface
from iop_edge.serve.dialect import request as kind
from iop_edge.serve.dialect.errors import Dialect
from iop_edge.serve.dialect.observers import (
    AnswerObserver,
    ChatObserver,
    MessagesObserver,
    ResponsesObserver,
)
from iop_edge.serve.dialect.request import Field, Fields
from iop_shared.profiles import Operation


class CallerProtocol(Struct, frozen=True, kw_only=True):
    """One operation as callers speak it.

    `limit_fields` hold the output limit; the first that is given counts, and a policy's default is
    written to `default_limit_field`. Empty where there is no such thing. `requires_limit` means
    that a request without one, and without a default, is refused. `has_thinking_budget`: the
    protocol has a field for a thinking budget in tokens (OAI-2).
    """

    surface: Surface
    operation: Operation
    path: str
    dialect: Dialect
    observer: Callable[[], AnswerObserver]
    fields: Fields
    required: tuple[str, ...] = ()
    limit_fields: tuple[str, ...] = ()
    default_limit_field: str = ""
    requires_limit: bool = False
    can_stream: bool = True
    has_thinking_budget: bool = False
    forwarded_headers: tuple[str, ...] = ()


_SAMPLING: dict[str, Field] = {
    "stream": kind.BOOLEAN,
    "temperature": kind.NOT_NEGATIVE,
    "top_p": kind.NOT_NEGATIVE,
    "tools": kind.LIST,
    "metadata": kind.OBJECT,
}
_ANTHROPIC_HEADERS = ("anthropic-version", "anthropic-beta")

CHAT = CallerProtocol(
    surface="chat",
    operation="chat_completions",
    required=("messages",),
    path="/v1/chat/completions",
    dialect=Dialect.OPENAI,
    observer=ChatObserver,
    limit_fields=("max_completion_tokens", "max_tokens"),
    default_limit_field="max_tokens",
    fields=MappingProxyType(
        {
            **_SAMPLING,
            "messages": kind.MESSAGES,
            "max_tokens": kind.TOKENS,
            "max_completion_tokens": kind.TOKENS,
            "n": kind.CHOICES,
            "stream_options": kind.OBJECT,
            "stop": kind.TEXT_OR_LIST,
            "frequency_penalty": kind.NUMBER,
            "presence_penalty": kind.NUMBER,
            "logit_bias": kind.OBJECT,
            "logprobs": kind.BOOLEAN,
            "top_logprobs": kind.TOP_LOGPROBS,
            "top_k": kind.TOP_K,
            "seed": kind.WHOLE,
            "tool_choice": kind.TEXT_OR_OBJECT,
            "parallel_tool_calls": kind.BOOLEAN,
            "functions": kind.LIST,
            "response_format": kind.OBJECT,
            "reasoning_effort": kind.TEXT,
            "user": kind.TEXT,
        }
    ),
)

RESPONSES = CallerProtocol(
    surface="responses",
    operation="responses",
    path="/v1/responses",
    dialect=Dialect.OPENAI,
    observer=ResponsesObserver,
    limit_fields=("max_output_tokens",),
    default_limit_field="max_output_tokens",
    fields=MappingProxyType(
        {
            **_SAMPLING,
            "input": kind.TEXT_OR_LIST,
            "max_output_tokens": kind.TOKENS,
            "instructions": kind.TEXT_OR_LIST,
            "tool_choice": kind.TEXT_OR_OBJECT,
            "parallel_tool_calls": kind.BOOLEAN,
            "reasoning": kind.OBJECT,
            "text": kind.OBJECT,
            "store": kind.BOOLEAN,
            "top_logprobs": kind.TOP_LOGPROBS,
            "previous_response_id": kind.TEXT,
            "user": kind.TEXT,
        }
    ),
)

MESSAGES = CallerProtocol(
    surface="messages",
    operation="messages",
    required=("messages",),
    path="/v1/messages",
    dialect=Dialect.ANTHROPIC,
    observer=MessagesObserver,
    limit_fields=("max_tokens",),
    default_limit_field="max_tokens",
    requires_limit=True,
    has_thinking_budget=True,
    forwarded_headers=_ANTHROPIC_HEADERS,
    fields=MappingProxyType(
        {
            **_SAMPLING,
            "messages": kind.MESSAGES,
            "max_tokens": kind.TOKENS,
            "system": kind.TEXT_OR_LIST,
            "stop_sequences": kind.LIST,
            "top_k": kind.TOP_K,
            "thinking": kind.OBJECT,
            "tool_choice": kind.OBJECT,
        }
    ),
)

COUNT_TOKENS = CallerProtocol(
    surface="count_tokens",
    operation="count_tokens",
    required=("messages",),
    path="/v1/messages/count_tokens",
    dialect=Dialect.ANTHROPIC,
    observer=MessagesObserver,
    can_stream=False,
    forwarded_headers=_ANTHROPIC_HEADERS,
    fields=MappingProxyType(
        {
            "messages": kind.MESSAGES,
            "system": kind.TEXT_OR_LIST,
            "tools": kind.LIST,
            "thinking": kind.OBJECT,
            "tool_choice": kind.OBJECT,
        }
    ),
)

CALLER_PROTOCOLS = (CHAT, RESPONSES, MESSAGES, COUNT_TOKENS)
