"""One answer out of one or more attempts: the caller sees that it goes on, not that it was mended.

What an attempt's bytes say passes as it is. Once something is to be said that has no bytes of its
own, the rest of the answer is rendered as a normalized run is, under the ids, indexes and numbers
that the caller has been told so far (`told`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from iop.runtime_pb2 import RunEvent, TokenUsage, ToolCall
from iop_edge.gate.evidence import Piece, Said
from iop_edge.runtime.work import HeaderPairs, ReportedUsage
from iop_edge.serve.dialect.answers import JSON_HEADERS, STREAM_HEADERS
from iop_shared.errors import Code, Fault

_MAX_INDEX = 2**32 - 1


class RunRenderer(Protocol):
    """What tells a whole run in one of the caller protocols."""

    def feed(self, event: RunEvent) -> bytes: ...
    def end(self) -> bytes: ...


class RestRenderer(RunRenderer, Protocol):
    """What tells the rest of an answer, too."""

    def tail(self) -> bytes: ...


class Told(Protocol):
    """What a caller has been told so far, as far as an answer has to go on from it."""

    is_settled: bool
    """What follows changes nothing any more."""

    def note(self, piece: Piece) -> None:
        """Take note of events that passed as they were."""
        ...

    def renderer(self) -> RestRenderer:
        """What tells the rest. Asked for once."""
        ...


class StreamStitch:
    """A stream of events."""

    headers: HeaderPairs = STREAM_HEADERS

    def __init__(self, told: Told) -> None:
        self._told = told
        self._renderer: RestRenderer | None = None
        self._has_finished = False
        self._is_told_raw = True

    def go_on(self) -> None:
        self._rest()

    def write(self, piece: Piece) -> bytes:
        raw = piece.raw
        if raw is not None:
            self._is_told_raw = True
            if self._renderer is None:
                if not self._told.is_settled:
                    self._told.note(piece)
                if piece.said:
                    # Text that follows a finish says that it was none.
                    self._has_finished = piece.said[-1].kind == "finish"
            return raw
        if not piece.said:
            return b""
        renderer = self._rest()
        if self._has_finished:
            # The answer is whole, whatever its upstream failed to send after that.
            return b""
        return b"".join([renderer.feed(run_event(said)) for said in piece.said])

    def _rest(self) -> RestRenderer:
        """What tells the rest, from now on."""
        self._is_told_raw = False
        if self._renderer is None:
            self._renderer = self._told.renderer()
        return self._renderer

    def end(self, usage: ReportedUsage) -> bytes:
        """Raises Fault(upstream_closed) where no piece has said a finish."""
        renderer = self._renderer
        if renderer is None or self._is_told_raw:
            return b""
        tell_usage(renderer, usage)
        return renderer.tail() if self._has_finished else renderer.end()


class WholeStitch:
    """A whole body. `renderer` makes one where no attempt's own is all that there is to say."""

    headers: HeaderPairs = JSON_HEADERS

    def __init__(self, renderer: Callable[[], RunRenderer]) -> None:
        self._new_renderer = renderer
        self._pieces: list[Piece] = []

    def go_on(self) -> None:
        """A body is told at its end, whoever said it."""

    def write(self, piece: Piece) -> bytes:
        self._pieces.append(piece)
        return b""

    def end(self, usage: ReportedUsage) -> bytes:
        """Raises Fault(upstream_closed) where no piece has said a finish."""
        pieces = self._pieces
        last = pieces[-1] if pieces else Piece((), b"")
        if last.raw is not None and (len(pieces) < 2 or not last.said):
            return last.raw
        renderer = self._new_renderer()
        for piece in pieces:
            for said in piece.said:
                renderer.feed(run_event(said))
        tell_usage(renderer, usage)
        return renderer.end()


def run_event(said: Said) -> RunEvent:
    """What was said, as a run says it. Raises Fault(upstream_invalid) for what has no words here:
    without it the answer would look whole."""
    match said.kind:
        case "content":
            return RunEvent(text_delta=said.text)
        case "reasoning":
            return RunEvent(reasoning_delta=said.text)
        case "tool_call":
            call = ToolCall(
                # An upstream may number its calls as it likes.
                index=said.call_index & _MAX_INDEX,
                id=said.call_id,
                name=said.name,
                arguments_json=said.text,
            )
            return RunEvent(tool_call_delta=call)
        case "finish":
            return RunEvent(finish_reason=said.text)
        case "other":
            raise Fault(
                Code.UPSTREAM_INVALID,
                "the upstream went on with something that has no place in the answer begun",
            )


def tell_usage(renderer: RunRenderer, usage: ReportedUsage) -> None:
    """Give a renderer what is known; where nothing is, it says so as its protocol does."""
    if usage == ReportedUsage():
        return
    tokens = TokenUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    renderer.feed(RunEvent(usage=tokens))
