"""Bodies that come in lines: server-sent events, and one JSON value a line. Pure.

Both are fed bytes in pieces of any size and give whole units back, so that a unit cut anywhere,
inside a character or between CR and LF, is the same unit. What is held is bounded.
"""

from __future__ import annotations

import re

from iop_shared.errors import Code, Fault

MAX_UNIT_BYTES = 8 * 1024 * 1024
"""The longest line or event that is held; past it the answer is upstream_invalid."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Lines:
    """Splits at LF, CR and CRLF."""

    def __init__(self, limit: int = MAX_UNIT_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._scanned = 0
        self._skips_lf = False

    def feed(self, content: bytes) -> list[bytes]:
        """The lines that are complete now, without their endings.

        Raises Fault(upstream_invalid) for a line over the limit.
        """
        if not content:
            return []
        if self._skips_lf:
            # The CR that ended the last line stood at the end of its piece.
            content = content.removeprefix(b"\n")
        self._pending += content
        lines = []
        start = 0
        for match in _LINE_END.finditer(self._pending, self._scanned):
            lines.append(bytes(self._pending[start : match.start()]))
            start = match.end()
        self._skips_lf = start == len(self._pending) and self._pending[-1:] == b"\r"
        del self._pending[:start]
        self._scanned = len(self._pending)
        if self._scanned > self._limit or any(len(line) > self._limit for line in lines):
            raise _too_long(self._limit)
        return lines

    def end(self) -> bytes:
        """The line that nothing ended."""
        rest = bytes(self._pending)
        self._pending.clear()
        self._scanned = 0
        return rest


class ServerSentEvents:
    """The data of server-sent events. Comments, names, ids and retry times say nothing here."""

    def __init__(self, limit: int = MAX_UNIT_BYTES) -> None:
        self._lines = Lines(limit)
        self._limit = limit
        self._data: list[bytes] = []
        self._size = 0
        self._is_first_line = True

    def feed(self, content: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises Fault(upstream_invalid)."""
        events = []
        for line in self._lines.feed(content):
            if self._is_first_line:
                line = line.removeprefix(_BOM)
                self._is_first_line = False
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                self._data = []
                self._size = 0
            elif line == b"data" or line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._size += len(value) + 1
                if self._size > self._limit:
                    raise _too_long(self._limit)
        return events


def _too_long(limit: int) -> Fault:
    return Fault(
        Code.UPSTREAM_INVALID,
        f"the upstream sent one line or event of more than {limit} bytes",
    )
