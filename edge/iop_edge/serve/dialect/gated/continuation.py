"""A caller's request with what was said appended to it, and what the model is to do with it.

The caller's own messages stay as they were written, to the byte: what is appended is put behind
the last of them (GATE-5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from iop.runtime_pb2 import ContentPart, RunRequest
from iop_edge.gate.evidence import Recorded
from iop_edge.runtime.work import Surface
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members, whole_number

_encode = msgspec.json.Encoder().encode


class Continuation(Struct, frozen=True):
    """What is appended. Its repr tells lengths, as the recorder's own does."""

    recorded: Recorded
    directive: str

    def __repr__(self) -> str:
        return f"Continuation({self.recorded!r})"

    @property
    def texts(self) -> list[str]:
        """All that the model is given to read beside the caller's own request."""
        text = assistant_text(self.recorded)
        return [text, self.directive] if text else [self.directive]


def assistant_text(recorded: Recorded) -> str:
    """What the assistant said, as one text; empty where there is nothing but white space.

    No protocol takes reasoning back from any upstream, so it stands as open models write it.
    """
    content = recorded.content if recorded.content.strip() else ""
    if not recorded.reasoning.strip():
        return content
    thought = f"<think>\n{recorded.reasoning.strip()}\n</think>"
    return f"{thought}\n\n{content}" if content else thought


def members_with(members: Members, surface: Surface, continuation: Continuation) -> Members:
    """The request's members with both messages behind the caller's own, each in its place."""
    if surface == "responses":
        return {
            **members,
            "input": _appended(_as_items(members.get("input")), _items(continuation)),
        }
    return {**members, "messages": _appended(members["messages"], _messages(surface, continuation))}


def add_to_run(run: RunRequest, continuation: Continuation) -> None:
    """The same for a run, in which reasoning has a place of its own."""
    recorded = continuation.recorded
    content = recorded.content if recorded.content.strip() else ""
    if content or recorded.reasoning.strip():
        run.messages.add(
            role="assistant",
            parts=[ContentPart(text=content)] if content else [],
            reasoning=recorded.reasoning,
        )
    run.messages.add(role="user", parts=[ContentPart(text=continuation.directive)])


class _Thinking(Struct):
    type: str = ""
    budget_tokens: int | None = None


def thinking_budget(members: Members) -> int | None:
    """The tokens that Anthropic's `thinking` may take where it is on (0 where it does not say how
    many); None where it is off, or is malformed and so the upstream's to refuse."""
    raw = members.get("thinking")
    if raw is None:
        return None
    try:
        thinking = msgspec.json.decode(raw, type=_Thinking)
    except NOT_JSON:
        return None
    return None if thinking.type == "disabled" else max(0, thinking.budget_tokens or 0)


def bounded_limit(
    members: Members, limit_fields: Sequence[str], default_field: str, tokens: int
) -> Mapping[str, bytes]:
    """The literals that lower every output limit to at most so many tokens, or set one."""
    given = {name: whole_number(members, name) for name in limit_fields}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    if not limits:
        return {default_field: b"%d" % tokens}
    return {name: b"%d" % tokens for name, limit in limits.items() if limit > tokens}


def _messages(surface: Surface, continuation: Continuation) -> list[dict[str, Any]]:
    def content(text: str) -> str | list[dict[str, str]]:
        return [{"type": "text", "text": text}] if surface == "messages" else text

    *said, directive = continuation.texts
    return [
        *({"role": "assistant", "content": content(text)} for text in said),
        {"role": "user", "content": content(directive)},
    ]


def _items(continuation: Continuation) -> list[dict[str, Any]]:
    return [{"type": "message", **message} for message in _messages("responses", continuation)]


def _as_items(given: Raw | None) -> bytes:
    """The caller's input as a list of items."""
    if given is None:
        return b"[]"
    literal = bytes(given)
    if literal.startswith(b"["):
        return literal
    return b'[{"type":"message","role":"user","content":' + literal + b"}]"


def _appended(items: bytes | Raw, more: list[dict[str, Any]]) -> Raw:
    """A list, as it is written, with more items at its end."""
    begun = bytes(items).rstrip()[:-1].rstrip()
    comma = b"" if begun == b"[" else b","
    return Raw(begun + comma + _encode(more)[1:])
