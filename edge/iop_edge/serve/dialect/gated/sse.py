"""The data of server-sent events that are at hand, whatever form they have."""

from __future__ import annotations

import re

END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE = re.compile(rb"[^\r\n]+")
_BOM = b"\xef\xbb\xbf"


def data_of(events: bytes) -> list[bytes]:
    """Each event's data lines, joined; of those that have any."""
    found = (_data_lines(event) for event in END_OF_EVENT.split(events))
    return [b"\n".join(lines) for lines in found if lines]


def _data_lines(event: bytes) -> list[bytes]:
    lines = (line.removeprefix(_BOM) for line in _LINE.findall(event))
    return [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
