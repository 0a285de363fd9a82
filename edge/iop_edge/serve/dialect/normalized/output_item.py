"""One output item of a response while it is told, piece by piece: which of its events are due.

An item may have been begun elsewhere and go on here; so it knows how far it has come.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec import Raw

from iop_edge.serve.dialect.normalized.result import Call

Stage = Literal["added", "part", "text_done", "part_done", "done"]
"""The last thing that was told: the item itself, its part, that part's whole text, …"""

Told = tuple[str, dict[str, Any]]
"""A kind of event and its fields, without type and sequence number."""


class _Wording(NamedTuple):
    """How the events and parts of one kind of item are called."""

    text: str
    part: str
    place: str
    part_type: str


_WORDINGS = {
    "message": _Wording(
        "response.output_text", "response.content_part", "content_index", "output_text"
    ),
    "reasoning": _Wording(
        "response.reasoning_text", "response.content_part", "content_index", "reasoning_text"
    ),
    "summary": _Wording(
        "response.reasoning_summary_text",
        "response.reasoning_summary_part",
        "summary_index",
        "summary_text",
    ),
}


class OutputItem:
    """Reasoning, a message, a function call, or something else that others have told.

    `kind` is `summary` for reasoning of which a summary is told. `parts_before` are parts that
    are whole, `shown_as` is the item as it has been shown for good.
    """

    def __init__(self, kind: str, item_id: str, index: int, call: Call | None = None) -> None:
        self.kind = kind
        self.id = item_id
        self.index = index
        self.call = call
        self.stage: Stage = "added"
        self.part_index = 0
        self.parts_before: list[Raw] = []
        self.shown_as: Raw | dict[str, Any] | None = None
        self.pieces: list[str] = []

    def goes_on_with(self, kind: str) -> bool:
        """Whether text of this kind is more of this item's own."""
        own = "reasoning" if self.kind == "summary" else self.kind
        return own == kind and self.stage in ("added", "part")

    def add(self, text: str) -> list[Told]:
        """Take a piece of text; return what tells it."""
        wording = _WORDINGS[self.kind]
        told: list[Told] = []
        if self.stage == "added":
            told.append((f"{wording.part}.added", {**self._place(), "part": self._part("")}))
            self.stage = "part"
        self.pieces.append(text)
        told.append((f"{wording.text}.delta", self._with_logprobs({"delta": text})))
        return told

    def begin(self) -> list[Told]:
        """Everything before the first piece."""
        added = {"output_index": self.index, "item": self.shown("in_progress")}
        told: list[Told] = [("response.output_item.added", added)]
        wording = _WORDINGS.get(self.kind)
        if wording is not None:
            told.append((f"{wording.part}.added", {**self._place(), "part": self._part("")}))
            self.stage = "part"
        return told

    def fragment(self, arguments: str) -> Told:
        place = {"item_id": self.id, "output_index": self.index}
        return "response.function_call_arguments.delta", {**place, "delta": arguments}

    def close(self) -> list[Told]:
        """Everything that is left to tell of it."""
        told: list[Told] = []
        wording = _WORDINGS.get(self.kind)
        if self.call is not None and self.stage == "added":
            whole = {"name": self.call.name, "arguments": self.call.arguments}
            place = {"item_id": self.id, "output_index": self.index}
            told.append(("response.function_call_arguments.done", {**place, **whole}))
        if wording is not None and self.stage == "part":
            told.append((f"{wording.text}.done", self._with_logprobs({"text": self._text})))
        if wording is not None and self.stage in ("part", "text_done"):
            part = {**self._place(), "part": self._part(self._text)}
            told.append((f"{wording.part}.done", part))
        shown = self.shown("completed")
        told.append(("response.output_item.done", {"output_index": self.index, "item": shown}))
        self.stage = "done"
        if self.call is None:
            self.shown_as = shown
        return told

    def shown(self, status: str) -> Raw | dict[str, Any]:
        """The item itself; with what it holds where it is `completed`."""
        if self.shown_as is not None:
            return self.shown_as
        is_whole = status == "completed"
        if self.call is not None:
            return {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.call.id,
                "name": self.call.name,
                "arguments": self.call.arguments if is_whole else "",
            }
        parts: list[Any] = [*self.parts_before]
        if self.pieces or (not parts and self.stage != "added"):
            parts.append(self._part(self._text))
        parts = parts if is_whole else []
        if self.kind == "summary":
            return {"id": self.id, "type": "reasoning", "summary": parts}
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": parts}
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": parts,
        }

    @property
    def _text(self) -> str:
        return "".join(self.pieces)

    def _place(self) -> dict[str, Any]:
        part = {_WORDINGS[self.kind].place: self.part_index}
        return {"item_id": self.id, "output_index": self.index, **part}

    def _with_logprobs(self, fields: dict[str, Any]) -> dict[str, Any]:
        told = {**self._place(), **fields}
        return {**told, "logprobs": []} if self.kind == "message" else told

    def _part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _WORDINGS[self.kind].part_type, "text": text}
        return {**part, "annotations": [], "logprobs": []} if self.kind == "message" else part
