"""Readers of one attempt's answer for the gate: bytes or run events in, pieces out.

They satisfy `GatedReader`. The bytes of a run's first attempt are made by the very readers that
serve a caller without a gate, so that what passes the gate untouched is the same to the byte
(GATE-1). Of a later attempt only what it says is kept: an answer goes on, it does not begin again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from iop.runtime_pb2 import RunEvent
from iop_edge.gate.evidence import Piece, Said, joined
from iop_edge.runtime.work import AnswerReader, HeaderPairs, ReportedUsage, RunReader
from iop_edge.serve.dialect.answers import StreamAnswer, WholeAnswer, reader_for
from iop_edge.serve.dialect.errors import Dialect
from iop_edge.serve.dialect.gated.bodies import BodySays
from iop_edge.serve.dialect.gated.listeners import Listener
from iop_edge.serve.dialect.gated.protocols import GatedProtocol
from iop_edge.serve.dialect.gated.sse import END_OF_EVENT, data_of, events_of
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.normalized.result import RunAnswer, RunResult

_LINE_ENDS = b"\r\n"
_TEXT_KEYS = ("content", "text")

Pieces = Sequence[Piece]
Answer = TypeVar("Answer", bound=AnswerReader | RunReader)


def gated_reader_for(
    status: int,
    headers: HeaderPairs,
    *,
    is_first: bool,
    is_stream: bool,
    protocol: GatedProtocol,
    model: str,
    dialect: Dialect,
    request_id: str,
) -> GatedStream | LaterStream | GatedWhole:
    """The reader of a relayed answer that began so; `model` is the name that the caller uses."""
    listener = protocol.listener()
    answer = reader_for(
        status,
        headers,
        is_stream=is_stream,
        observer=listener,
        model=model,
        dialect=dialect,
        request_id=request_id,
    )
    if isinstance(answer, StreamAnswer):
        return GatedStream(answer, listener) if is_first else LaterStream(answer, listener)
    says = protocol.body_says if isinstance(answer, WholeAnswer) else None
    return GatedWhole(answer, says, is_first=is_first)


class _Reading(Generic[Answer]):
    """What all of them tell of the answer as the reader without a gate reads it."""

    def __init__(self, answer: Answer, *, is_first: bool) -> None:
        self._answer = answer
        self._is_first = is_first
        self.headers = answer.headers
        self.generated_tokens = answer.generated_tokens

    @property
    def usage(self) -> ReportedUsage:
        return self._answer.usage

    @property
    def told_end(self) -> str | None:
        return self._answer.told_end


class _Events(Piece, frozen=True, gc=False):
    """Events that came together, with their bytes. `heard` is what one after the other says, and
    `begins` where in it each of them begins that has data."""

    heard: tuple[Said, ...] = ()
    begins: Sequence[int] = ()

    def events(self) -> Iterator[Piece]:
        ends = iter((*self.begins[1:], len(self.heard)))
        begin = 0
        for raw, has_data in events_of(self.raw or b""):
            end = next(ends, len(self.heard)) if has_data else begin
            yield Piece(self.heard[begin:end], raw)
            begin = end


class GatedStream(_Reading[AnswerReader]):
    """The server-sent events of a first attempt. What an arrival brings of them is one piece."""

    def __init__(self, answer: AnswerReader, listener: Listener) -> None:
        super().__init__(answer, is_first=True)
        self._listener = listener

    def feed(self, arrived: bytes) -> Pieces:
        return self._pieces(self._answer.feed(arrived))

    def end(self) -> Pieces:
        return self._pieces(self._answer.end())

    def _pieces(self, released: bytes) -> Pieces:
        if not released:
            return ()
        said, begins = self._listener.heard()
        if len(begins) < 2:
            return (Piece(said, released),)
        return (_Events(joined(said), released, said, begins),)


class LaterStream(_Reading[AnswerReader]):
    """The events of a later attempt: each is a piece.

    An error event keeps its bytes: nothing that the gate knows says the same. An attempt whose text
    came in forms alone that nothing here hears has said something else: it would end as if there
    had been nothing to add.
    """

    def __init__(self, answer: AnswerReader, listener: Listener) -> None:
        super().__init__(answer, is_first=False)
        self._listener = listener
        self._is_between_events = True
        self._has_spoken = False
        self._has_unheard_text = False

    def feed(self, arrived: bytes) -> Pieces:
        """Give the answer's reader one event at a time, so that it releases one at a time."""
        pieces: list[Piece] = []
        at, size = 0, len(arrived)
        while at < size:
            if not self._is_between_events and arrived[at] in _LINE_ENDS:
                # It may be what ends an event that came before.
                after = at + (2 if arrived.startswith(b"\r\n", at) else 1)
            else:
                match = END_OF_EVENT.search(arrived, at)
                after = match.end() if match else size
            released = self._answer.feed(arrived[at:after])
            self._is_between_events = bool(released)
            if released:
                pieces += self._pieces(released)
            at = after
        return pieces

    def end(self) -> Pieces:
        pieces = self._pieces(self._answer.end())
        if self._has_unheard_text and not self._has_spoken:
            return (*pieces, Piece((Said("other", ""),)))
        return pieces

    def _pieces(self, released: bytes) -> Pieces:
        said, _ = self._listener.heard()
        if self._listener.has_failed:
            return (Piece((), released),)
        if not self._has_spoken:
            self._has_spoken = any(one.kind != "finish" for one in said)
            self._has_unheard_text |= any(map(_has_text, data_of(released)))
        return (Piece(said),) if said else ()


def _has_text(payload: bytes) -> bool:
    """Whether an event has text in any of the places where the protocols have a model's."""
    try:
        left = [msgspec.json.decode(payload)]
    except NOT_JSON:
        return False
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        elif isinstance(found, dict):
            if any(isinstance(text := found.get(key), str) and text for key in _TEXT_KEYS):
                return True
            left += found.values()
    return False


class GatedWhole(_Reading[AnswerReader]):
    """A whole body, an upstream's error, or an answer that is none: one piece, at its end.

    `says` hears a body; without it there is nothing to hear, and the body is the caller's as it
    is, whichever attempt it is of.
    """

    def __init__(self, answer: AnswerReader, says: BodySays | None, *, is_first: bool) -> None:
        super().__init__(answer, is_first=is_first)
        self._says = says

    def feed(self, arrived: bytes) -> Pieces:
        self._answer.feed(arrived)
        return ()

    def end(self) -> Pieces:
        body = self._answer.end()
        said = self._says(body) if self._says is not None else ()
        if self._says is not None and not said and not self._is_first:
            # What is told already would be missing in it.
            said = (Said("other", ""),)
        is_raw = self._is_first or not said
        return (Piece(said, body if is_raw else None),)


class GatedRun(_Reading[RunReader]):
    """The events of a normalized run, streamed: each is a piece.

    The finish is said by the last piece, which is the first that the caller sees of it.
    """

    def __init__(self, answer: RunReader, *, is_first: bool) -> None:
        super().__init__(answer, is_first=is_first)
        self._finish = ""

    def feed(self, arrived: RunEvent) -> Pieces:
        released = self._answer.feed(arrived)
        said: tuple[Said, ...] = ()
        kind = arrived.WhichOneof("event")
        if kind == "text_delta":
            if arrived.text_delta:
                said = (Said("content", arrived.text_delta),)
        elif kind == "reasoning_delta":
            if arrived.reasoning_delta:
                said = (Said("reasoning", arrived.reasoning_delta),)
        elif kind == "tool_call_delta":
            call = arrived.tool_call_delta
            said = (Said("tool_call", call.arguments_json, call.index, call.id, call.name),)
        elif kind == "finish_reason":
            self._finish = arrived.finish_reason
        if self._is_first:
            return (Piece(said, released),) if released or said else ()
        return (Piece(said),) if said else ()

    def end(self) -> Pieces:
        released = self._answer.end()
        return (Piece((Said("finish", self._finish),), released if self._is_first else None),)


class GatedRunWhole(_Reading[RunReader]):
    """A normalized run whose answer is told whole: one piece, at its end."""

    def __init__(self, answer: RunReader, run_id: str, *, is_first: bool) -> None:
        super().__init__(answer, is_first=is_first)
        self._result = RunResult(run_id)

    def feed(self, arrived: RunEvent) -> Pieces:
        self._result.add(arrived)
        self._answer.feed(arrived)
        return ()

    def end(self) -> Pieces:
        body = self._answer.end()
        result = self._result
        said = [Said("reasoning", result.reasoning)] if result.reasoning else []
        if result.text:
            said.append(Said("content", result.text))
        said += [
            Said("tool_call", call.arguments, call.index, call.id, call.name)
            for call in result.calls.values()
        ]
        said.append(Said("finish", result.finish_reason))
        return (Piece(tuple(said), body if self._is_first else None),)


class UnheardRun(RunAnswer):
    """Reads a run that the caller is not told: its usage, and whether it came to its end."""

    def __init__(self, headers: HeaderPairs, run_id: str) -> None:
        super().__init__(RunResult(run_id))
        self.headers = headers

    def _tell(self, event: RunEvent) -> bytes:
        if event.WhichOneof("event") in ("usage", "finish_reason"):
            self._result.add(event)
        return b""

    def end(self) -> bytes:
        self._result.require_finish()
        return b""
