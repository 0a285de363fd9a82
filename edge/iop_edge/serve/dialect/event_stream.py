"""Server-sent events as they pass: framed, looked at, and released byte for byte.

An event is released in the very feed that completes it, and never in parts. Every line ending
that the standard allows is understood; comments and unknown fields pass. What an event means is
for the `Observer` to say, which also names the one value that is replaced on the way.
"""

from __future__ import annotations

import re
from typing import Protocol

from iop_edge.serve.dialect.json_value import Span, find_value
from iop_shared.errors import Code, Fault

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""One event is held until it is complete, so its size is bounded (upstream_invalid past it)."""

_END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE = re.compile(rb"[^\r\n]+")
_DATA = b"data: "
_BLANK_LINE = b"\n\n"
_NEVER = b"\0"
_BOM = b"\xef\xbb\xbf"
_LONGEST_END = 4


class Observer(Protocol):
    """Knows what the events of one protocol mean."""

    @property
    def model_path(self) -> tuple[str, ...]:
        """Where in an event the model's name stands."""
        ...

    @property
    def is_ended(self) -> bool:
        """The protocol's terminal marker, or an error event, has been seen."""
        ...

    def event(self, payload: bytes) -> bytes:
        """Look at the data of one event; return the literal of its model name, or nothing.

        Raises Fault(upstream_invalid) on data that this protocol cannot have.
        """
        ...


class EventStream:
    """One stream. `name` is the JSON literal that stands for the model in what is released."""

    def __init__(self, observer: Observer, name: bytes) -> None:
        self._observer = observer
        self._name = name
        self._pending = bytearray()
        # How the last event that was renamed began, up to and including the name.
        self._prefix = _NEVER
        self._prefix_span: Span = (0, 0)
        self._renamed_prefix = b""

    def feed(self, chunk: bytes) -> bytes:
        """The events that are complete now. Raises Fault(upstream_invalid)."""
        if not self._pending:
            if (
                chunk.startswith(_DATA)
                and chunk.endswith(_BLANK_LINE)
                and chunk.find(b"\n") == len(chunk) - len(_BLANK_LINE)
                and b"\r" not in chunk
            ):
                return self._release_one(chunk)
            return self._release(chunk)
        searched = max(0, len(self._pending) - _LONGEST_END)
        self._pending += chunk
        if _END_OF_EVENT.search(self._pending, searched) is None:
            self._require_bounded(len(self._pending))
            return b""
        data = bytes(self._pending)
        self._pending.clear()
        return self._release(data)

    def _release_one(self, chunk: bytes) -> bytes:
        """The usual case, in one cut: a single event on a single line."""
        self._require_bounded(len(chunk))
        payload = chunk[len(_DATA) : -len(_BLANK_LINE)]
        span = self._name_in(payload)
        if span is None:
            return chunk
        return self._renamed_prefix + payload[span[1] :] + _BLANK_LINE

    def end(self) -> bytes:
        """The stream is over. Raises Fault(upstream_closed) where its end is no real one.

        A terminal event that only lacks its blank line is completed.
        """
        rest = bytes(self._pending)
        self._pending.clear()
        if not self._observer.is_ended and rest:
            return self._last(rest)
        if not self._observer.is_ended:
            raise _closed()
        return rest

    def _last(self, rest: bytes) -> bytes:
        try:
            completed = self._release(rest + b"\n\n")
        except Fault:
            raise _closed() from None
        if not self._observer.is_ended:
            raise _closed()
        return completed

    def _release(self, data: bytes) -> bytes:
        is_plain = b"\r" not in data
        parts: list[bytes] = []
        copied = at = 0
        while True:
            if is_plain:
                end = data.find(b"\n\n", at)
                if end < 0:
                    break
                after = end + 2
            else:
                match = _END_OF_EVENT.search(data, at)
                if match is None:
                    break
                end, after = match.span()
            self._require_bounded(end - at)
            span = self._look_at(data, at, end, is_plain)
            if span is not None:
                parts += (data[copied : span[0]], self._name)
                copied = span[1]
            at = after
        if at < len(data):
            self._require_bounded(len(data) - at)
            self._pending += data[at:]
        if not parts:
            return data if at == len(data) else data[:at]
        parts.append(data[copied:at])
        return b"".join(parts)

    def _look_at(self, data: bytes, at: int, end: int, is_plain: bool) -> Span | None:
        """Let the observer see one event; return the place of the name that is to be replaced."""
        start = at
        if not is_plain:
            return self._look_at_lines(data, at, end)
        if data.startswith(b"event:", at):
            start = data.find(b"\n", at, end) + 1 or end
        if not data.startswith(b"data:", start):
            return self._look_at_lines(data, at, end)
        start += 5
        if data.startswith(b" ", start):
            start += 1
        payload = data[start:end]
        if b"\n" in payload:
            return self._look_at_lines(data, at, end)
        span = self._name_in(payload)
        return None if span is None else (start + span[0], start + span[1])

    def _name_in(self, payload: bytes) -> Span | None:
        """The place of the name that is to be replaced, where there is one."""
        if not payload or payload.isspace():
            return None
        literal = self._observer.event(payload)
        if not literal or literal == self._name:
            return None
        # The chunks of a stream mostly begin alike, up to and including the name. What begins
        # with the same bytes parses the same way, so the name stands where it stood.
        if payload.startswith(self._prefix):
            return self._prefix_span
        span = find_value(payload, self._observer.model_path, literal)
        if span is None:
            raise Fault(Code.UPSTREAM_INVALID, "the upstream sent an event that names a key twice")
        self._prefix, self._prefix_span = payload[: span[1]], span
        self._renamed_prefix = _DATA + payload[: span[0]] + self._name
        return span

    def _look_at_lines(self, data: bytes, at: int, end: int) -> Span | None:
        """The same for an event of any form: comments, other fields, data over several lines."""
        starts: list[int] = []
        lines: list[bytes] = []
        for match in _LINE.finditer(data, at, end):
            start, line = match.start(), match[0]
            if line.startswith(_BOM):
                start, line = start + len(_BOM), line[len(_BOM) :]
            if line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                starts.append(start + len(line) - len(value))
                lines.append(value)
        payload = b"\n".join(lines)
        span = self._name_in(payload)
        if span is None:
            return None
        # A JSON string holds no raw line break, so the name lies within one line.
        before = payload.count(b"\n", 0, span[0])
        shift = starts[before] - (payload.rfind(b"\n", 0, span[0]) + 1)
        return span[0] + shift, span[1] + shift

    def _require_bounded(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise Fault(
                Code.UPSTREAM_INVALID,
                f"the upstream sent an event of {size} bytes or more; the limit is "
                f"{MAX_EVENT_BYTES}",
            )


def _closed() -> Fault:
    return Fault(Code.UPSTREAM_CLOSED, "the upstream ended its stream before the answer was whole")
