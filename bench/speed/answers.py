"""The answers of the bench: what the mock upstream sends, and what the load expects of it.

Both ends take them from here, so that neither can drift from the other. A request names the answer
it wants in its one message, which every proxy relays. The shapes are those of vLLM and its like.
"""

from __future__ import annotations

import json
from typing import Literal, get_args

Kind = Literal["plain", "burst", "paced", "held", "large"]
"""A completion; a stream at once; one a piece at a time; one that stays open after its first piece;
one of very many bytes, as fast as they are read."""

KINDS: tuple[Kind, ...] = get_args(Kind)

MODEL = "bench"
CHUNKS = 50
"""Pieces of content in a stream; the pieces with usage and `[DONE]` come after them."""

PACE_S = 0.005
"""Between two pieces of a paced stream."""

DONE = b"data: [DONE]\n\n"
LARGE_EVENT_BYTES = 16 * 1024
_WORDS = (
    "Before the harbour woke, Marta had carried nine crates of oranges up the narrow stairs, "
    "past sleeping cats and a barber who swept yesterday's hair into small grey hills. She "
    "counted her coins twice, kept one for bread, hid another inside a blue shoe, and gave "
    "whatever remained to her brother, whose boat needed tar, rope, fresh sails, perhaps even"
    " a new name. Rain came from the west about noon; it smelled of iron, wet wool, cut "
    "grass. Nobody spoke during lunch. Then Uncle Jorge unfolded his map, pointed at some "
    "island without trees, laughed, coughed, and told them which winds would bring any sailor"
    " home alive. Outside, children chased paper ships along gutters until evening turned "
    "every window gold, while bells answered each other across roofs."
)
"""Prose that repeats nothing, as most answers are."""

_PROMPT = "Please go on with this story, and leave nothing out. " * 8
_ID = {"id": "chatcmpl-0123456789abcdef", "created": 1_700_000_000, "model": MODEL}
_USAGE = {"prompt_tokens": 96, "completion_tokens": CHUNKS, "total_tokens": 96 + CHUNKS}


def request_body(kind: Kind, large_bytes: int = 0) -> bytes:
    """A chat request of about half a kilobyte that the mock upstream answers in this way."""
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"[{kind}] {large_bytes} {_PROMPT}"}],
        "max_tokens": 256,
        "temperature": 0.7,
    }
    if kind != "plain":
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(asked).encode()


def kind_of(body: bytes) -> Kind:
    """The answer that a request asks for. Raises ValueError for a request of nobody here."""
    for kind in KINDS:
        if b"[%b]" % kind.encode() in body:
            return kind
    raise ValueError("the request names none of the bench's answers")


def large_bytes_of(body: bytes) -> int:
    return int(body.partition(b"[large] ")[2].split(b" ", 1)[0])


def plain_answer() -> bytes:
    """A completion of about a kilobyte, as JSON."""
    return json.dumps(
        {
            **_ID,
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": _WORDS[:740]},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": _USAGE,
        }
    ).encode()


def stream_pieces() -> list[bytes]:
    """The server-sent events of a stream, one an entry; usage and `[DONE]` stand in the last."""
    words = _WORDS.split()
    pieces = []
    for number in range(CHUNKS):
        delta = {"content": words[number % len(words)] + " "}
        if number == 0:
            delta["role"] = "assistant"
        finish = "stop" if number == CHUNKS - 1 else None
        pieces.append(
            _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])
        )
    pieces.append(_event([], usage=_USAGE) + DONE)
    return pieces


def large_piece() -> bytes:
    """One of the events that a large answer is made of."""
    return _event([{"index": 0, "delta": {"content": "x" * LARGE_EVENT_BYTES}}])


def _event(choices: list[dict[str, object]], **more: object) -> bytes:
    data = {**_ID, "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
