"""The text of one source file: from bytes, and from an offset in it to a line and a column.

Lines end at LF, CR LF or CR, as editors count them, and columns count characters from 1.
"""

from __future__ import annotations

import re
from bisect import bisect_right

MAX_BYTES = 64 * 1024 * 1024

_LINE_BREAK = re.compile(r"\r\n?|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


class TextRefused(Exception):
    """The bytes are no text that a config can be. `offset` counts in what could be decoded."""

    def __init__(self, code: str, message: str, before: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.before = before
        """The part of the text that stands before the fault."""


def decode(content: bytes) -> str:
    """The text without its byte-order mark. Raises TextRefused."""
    if len(content) > MAX_BYTES:
        raise TextRefused(
            "file_too_large",
            f"the file has {len(content)} bytes; a config may have {MAX_BYTES} (64 MiB)",
        )
    for mark, encoding in _OTHER_ENCODINGS:
        if content.startswith(mark):
            raise TextRefused(
                "not_utf8", f"the file is {encoding}; write it as UTF-8, with or without a mark"
            )
    content = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextRefused(
            "not_utf8",
            f"byte 0x{content[error.start]:02x} is no UTF-8 here; write the file as UTF-8",
            before=content[: error.start].decode("utf-8"),
        ) from None


class Lines:
    """Finds line and column of an offset. Reads the text once, when first asked."""

    __slots__ = ("_starts", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        if self._starts is None:
            self._starts = [0, *(found.end() for found in _LINE_BREAK.finditer(self._text))]
        return self._starts

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its end."""
        start = self.starts[number - 1]
        end = self.starts[number] if number < len(self.starts) else len(self._text)
        return self._text[start:end].rstrip("\r\n")
