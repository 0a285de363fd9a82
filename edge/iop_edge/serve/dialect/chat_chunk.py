"""A chunk of a chat completion in the form in which nearly all of a stream comes.

Its type says what it may have, so that nobody has to ask: whatever has more (another choice, tool
calls, usage, an error, a form of its own) is no plain chunk, and is read with care elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct


class PlainDelta(Struct, gc=False):
    """A piece of text. Some servers name reasoning one way, some the other, some both ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    tool_calls: Annotated[list[Raw], Meta(max_length=0)] | None = None
    function_call: None = None
    audio: None = None


class PlainChoice(Struct, gc=False):
    delta: PlainDelta
    index: Literal[0] = 0
    finish_reason: str | None = None


class PlainChunk(Struct, gc=False):
    choices: Annotated[list[PlainChoice], Meta(min_length=1, max_length=1)]
    model: Raw = Raw()
    usage: None = None
    error: None = None


plain_chunk = msgspec.json.Decoder(PlainChunk).decode
"""Raises ValidationError, or another of NOT_JSON, for anything else."""
