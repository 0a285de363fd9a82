"""The data of server-sent events that are at hand, whatever form they have."""

from __future__ import annotations

import re
from collections.abc import Iterator

END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_HAS_DATA = re.compile(rb"(?:\A|[\r\n])(?:\xef\xbb\xbf)?data:[ \t\v\f]*[^\s]").search
_USUAL_EVENT = re.compile(rb"data: ([^\r\n]*)\n\n").fullmatch
_LINE = re.compile(rb"[^\r\n]+")
_BOM = b"\xef\xbb\xbf"


def events_of(events: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each event as it is, and whether it has any data. What is no whole event counts as one."""
    is_plain = b"\r" not in events
    at, size = 0, len(events)
    while at < size:
        if is_plain:
            end = events.find(b"\n\n", at)
            after = size if end < 0 else end + 2
        else:
            match = END_OF_EVENT.search(events, at)
            after = size if match is None else match.end()
        event = events[at:after]
        yield event, _HAS_DATA(event) is not None
        at = after


def data_of(events: bytes) -> list[bytes]:
    """Each event's data lines, joined; of those that have any."""
    usual = _USUAL_EVENT(events)
    if usual is not None:
        return [usual[1]]
    found = (_data_lines(event) for event in END_OF_EVENT.split(events))
    return [b"\n".join(lines) for lines in found if lines]


def _data_lines(event: bytes) -> list[bytes]:
    lines = (line.removeprefix(_BOM) for line in _LINE.findall(event))
    return [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
