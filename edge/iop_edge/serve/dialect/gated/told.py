"""What a caller has been told by events that passed: where a stream of each protocol goes on.

One event is one of an upstream, or all those that one event of a run is told by. Text is most of a
stream, so nothing in it is looked at beyond what it says. An answer in which a tool call has passed
never goes on, so calls are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from iop_edge.gate.evidence import Piece, Said
from iop_edge.serve.dialect.gated.sse import data_of
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.normalized.chat_answer import ChatStream
from iop_edge.serve.dialect.normalized.messages_answer import MessageStream
from iop_edge.serve.dialect.normalized.output_item import OutputItem
from iop_edge.serve.dialect.normalized.responses_answer import ResponseStream

T = TypeVar("T")
_NOTHING = Raw()
_TEXT = ("content", "reasoning")
_MOST_UNREAD = 16
_MOST_UNREAD_BYTES = 64 * 1024
"""What a chat begins with is kept as it came, so much of it."""


class _Delta(Struct):
    role: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None


class _Chunk(Struct):
    id: str | None = None
    created: int | None = None
    choices: list[_Choice] | None = None


class ToldChat:
    """A chat completion: its id, and whether its role has been told."""

    def __init__(self, new_renderer: Callable[[], ChatStream], created: int) -> None:
        self._new_renderer = new_renderer
        self._id: str | None = None
        self._created = created
        self._has_begun = False
        self._unread: list[bytes] = []
        self.is_settled = False

    def note(self, piece: Piece) -> None:
        raw = piece.raw or b""
        self._unread.append(raw)
        # Nearly every answer is told to its end by its own bytes, so nothing is read before that.
        self.is_settled = bool(piece.said) and b'"id"' in raw
        if len(self._unread) > _MOST_UNREAD or len(raw) > _MOST_UNREAD_BYTES:
            self._read()

    def renderer(self) -> ChatStream:
        self._read()
        renderer = self._new_renderer()
        if self._id is not None or self._has_begun:
            renderer.go_on(self._id, self._created, has_begun=self._has_begun)
        return renderer

    def _read(self) -> None:
        for raw in self._unread:
            for chunk in _events(raw, _Chunk):
                self._look_at(chunk)
        self._unread.clear()

    def _look_at(self, chunk: _Chunk) -> None:
        if self._id is None and chunk.id:
            self._id = chunk.id
            self._created = self._created if chunk.created is None else chunk.created
        for choice in chunk.choices or ():
            if choice.delta is not None and choice.delta.role:
                self._has_begun = True


class _Typed(Struct):
    type: str = ""


class _MessagesEvent(Struct):
    type: str = ""
    index: int = 0
    content_block: _Typed | None = None
    delta: _Typed | None = None


class ToldMessage:
    """A message: how many of its blocks are closed, and which is open."""

    is_settled = False

    def __init__(self, new_renderer: Callable[[], MessageStream]) -> None:
        self._new_renderer = new_renderer
        self._has_begun = False
        self._blocks = 0
        self._open: str | None = None

    def note(self, piece: Piece) -> None:
        for event in piece.events():
            self._note(event.raw or b"", event.said)

    def _note(self, raw: bytes, said: tuple[Said, ...]) -> None:
        if said and said[0].kind in _TEXT and b"content_block_start" not in raw:
            return
        for told in _events(raw, _MessagesEvent):
            if told.type == "message_start":
                self._has_begun = True
            elif told.type == "content_block_start":
                self._blocks = told.index
                self._open = told.content_block.type if told.content_block else ""
            elif told.delta is not None and told.delta.type == "signature_delta":
                # Nothing may follow a signature in its block.
                self._open = "signed"
            elif told.type == "content_block_stop":
                self._blocks = told.index + 1
                self._open = None

    def renderer(self) -> MessageStream:
        renderer = self._new_renderer()
        if self._has_begun:
            renderer.go_on(self._blocks, self._open)
        return renderer


class _Item(Struct):
    id: str = ""
    type: str = ""


class _ResponsesEvent(Struct):
    type: str = ""
    sequence_number: int | None = None
    response: Raw = _NOTHING
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    item: Raw = _NOTHING
    part: Raw = _NOTHING


class ToldResponse:
    """A response: what it says of itself, its items, and how many events it has had.

    Its rest tells the text of its last item once more, so that is kept, until more than
    `kept_chars` have been told: then it cannot be continued.
    """

    def __init__(self, new_renderer: Callable[[], ResponseStream], kept_chars: int) -> None:
        self._new_renderer = new_renderer
        self._chars_left = kept_chars
        self.is_settled = False
        self._head: dict[str, Raw] = {}
        self._items: list[OutputItem] = []
        self._events = 0
        self._last = b""

    def note(self, piece: Piece) -> None:
        for event in piece.events():
            self._note(event.raw or b"", event.said)

    def _note(self, raw: bytes, said: tuple[Said, ...]) -> None:
        if said and said[0].kind in _TEXT and b"output_item.added" not in raw:
            self._events += 1
            self._last = raw
        else:
            self._last = b""
            for told in _events(raw, _ResponsesEvent):
                self._look_at(told)
        texts = [one.text for one in said if one.kind in _TEXT]
        self._chars_left -= sum(map(len, texts))
        if self._items:
            self._items[-1].pieces += texts
        if self._chars_left < 0:
            self._items.clear()
            self.is_settled = True

    def renderer(self) -> ResponseStream:
        for told in _events(self._last, _ResponsesEvent):
            if told.sequence_number is not None:
                self._events = told.sequence_number + 1
        renderer = self._new_renderer()
        if self._events:
            renderer.go_on(self._head, self._items, self._events)
        return renderer

    def _look_at(self, told: _ResponsesEvent) -> None:
        self._count(told)
        if told.response is not _NOTHING and not self._head:
            self._head = _decoded(told.response, dict[str, Raw]) or {}
        elif told.type == "response.output_item.added":
            self._begin(told)
        elif told.type == "response.output_item.done":
            self._end(told)
        elif self._items and self._items[-1].index == told.output_index:
            self._go_on(self._items[-1], told)

    def _count(self, told: _ResponsesEvent) -> None:
        number = told.sequence_number
        self._events = self._events + 1 if number is None else number + 1

    def _begin(self, told: _ResponsesEvent) -> None:
        item = _decoded(told.item, _Item)
        if item is None:
            return
        begun = OutputItem(item.type, item.id, told.output_index)
        if item.type not in ("message", "reasoning"):
            begun.shown_as = told.item
        self._items.append(begun)

    def _end(self, told: _ResponsesEvent) -> None:
        for item in self._items:
            if item.index == told.output_index:
                item.stage = "done"
                item.shown_as = told.item
                item.pieces.clear()

    def _go_on(self, item: OutputItem, told: _ResponsesEvent) -> None:
        """Note how far the item that is open has come."""
        match told.type:
            case "response.content_part.added" | "response.reasoning_summary_part.added":
                if told.type == "response.reasoning_summary_part.added":
                    item.kind = "summary"
                item.stage = "part"
                item.part_index = max(told.content_index, told.summary_index)
                item.pieces.clear()
            case (
                "response.output_text.done"
                | "response.reasoning_text.done"
                | "response.reasoning_summary_text.done"
            ):
                item.stage = "text_done"
            case "response.content_part.done" | "response.reasoning_summary_part.done":
                item.stage = "part_done"
                item.pieces.clear()
                if told.part is not _NOTHING:
                    item.parts_before.append(told.part)


def _events(raw: bytes, kind: type[T]) -> list[T]:
    decoded = (_decoded(data, kind) for data in data_of(raw))
    return [event for event in decoded if event is not None]


def _decoded(data: bytes | Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except NOT_JSON:
        return None
