"""Reads the responses of one connection, one after another. Pure: bytes in, an answer filled.

It decides what a response is: how long its body is, whether its connection can be used again, and
when what came is none. Where two readings of the same bytes would be possible, it refuses both.
"""

from __future__ import annotations

from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from iop_shared.errors import Code, Fault

MAX_FIELDS = 128
MAX_FIELD_BYTES = 8190
"""A header's name and value together."""

MAX_BESIDE_BODY_BYTES = 65_536
"""What may come in a row that is no body: a head and interim ones before it, extensions of chunks,
trailers. Counted by what arrives together, so that a little more may pass."""

Fields = list[tuple[bytes, bytes]]
"""Header fields as they came: names in lower case, values without the blanks around them."""


class Sink(Protocol):
    """What one response is read into."""

    def begin(self, status: int, fields: Fields) -> None: ...
    def take(self, content: bytes) -> None: ...
    def complete(self) -> None: ...


class _EnoughRead(Exception):
    """Ends the parser's work: what follows is of no interest."""


class ResponseReader:
    """One for each connection. `expect` before each response, then `feed` until it is whole."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        # Both leave no doubt about what is meant, and common servers do either.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._sink: Sink | None = None
        self._fields: Fields = []
        self._is_to_head = False
        self._is_in_body = False
        self._is_interim = False
        self._has_progressed = False
        self._fed_bytes = 0
        """Since anything has come of it."""
        self._ends_with_connection = False
        self.is_chunked = False
        self.is_reusable = False
        """Whether the connection can carry another exchange, once the response is whole."""

    def expect(self, sink: Sink, *, is_to_head: bool = False) -> None:
        """The next response goes to `sink`. One to a HEAD has no body, whatever it says of one."""
        self._sink = sink
        self._is_to_head = is_to_head
        self._is_in_body = self._ends_with_connection = False
        self._fed_bytes = 0

    def feed(self, content: bytes) -> None:
        """Raises Fault(upstream_invalid), unless the response was whole before things went wrong:
        then its connection is not reusable, and that is all."""
        self._has_progressed = False
        self._fed_bytes += len(content)
        try:
            self._parser.feed_data(content)
        except (HttpParserError, HttpParserUpgrade):
            self.is_reusable = False
            if self._sink is not None:
                raise _invalid() from None
        if self._has_progressed:
            self._fed_bytes = 0
        elif self._fed_bytes > MAX_BESIDE_BODY_BYTES and self._sink is not None:
            raise _invalid()

    def end(self) -> None:
        """The connection has ended in good order: so has a body that nothing else ends.

        Raises Fault(upstream_closed) where something is missing.
        """
        if not self._ends_with_connection:
            raise closed()
        self._complete()

    def close(self) -> None:
        """Let go of the parser, which holds this reader in turn."""
        del self._parser

    # --- called by the parser ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._sink is None:
            raise _EnoughRead
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # a trailer
        self._fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._sink is not None
        parser = self._parser
        status = parser.get_status_code()
        if not 100 <= status < 600 or len(self._fields) > MAX_FIELDS:
            raise _EnoughRead
        if self._fed_bytes > MAX_FIELD_BYTES:
            for name, value in self._fields:
                if len(name) + len(value) > MAX_FIELD_BYTES:
                    raise _EnoughRead
        if status < 200 and status != 101:
            self._is_interim = True
            return
        has_body = not (self._is_to_head or status in (204, 304))
        self._judge_framing(has_body)
        self._is_in_body = self._has_progressed = True
        self._sink.begin(status, self._fields)
        if self._is_to_head:
            # The parser cannot be told, and would take what follows for a body.
            self._complete()
            self.is_reusable = False
            raise _EnoughRead

    def on_body(self, content: bytes) -> None:
        assert self._sink is not None
        self._has_progressed = True
        self._sink.take(content)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        else:
            self._complete()

    # ------------------------------------------------------------------------------------------

    def _judge_framing(self, has_body: bool) -> None:
        """The parser has refused a doubtful length, two of them, and one beside an encoding."""
        has_length = False
        codings = []
        for name, value in self._fields:
            if name == b"content-length":
                has_length = True
            elif name == b"transfer-encoding":
                codings.append(value.lower())
        self.is_chunked = bool(codings)
        self.is_reusable = self._parser.should_keep_alive()
        if self.is_chunked and has_body:
            if codings != [b"chunked"]:
                raise _EnoughRead  # a body that is encoded besides, or that has no certain end
            if self._parser.get_http_version() == "1.0":
                # Whatever stands between does not know the framing, and may have broken it.
                self.is_reusable = False
        self._ends_with_connection = has_body and not has_length and not self.is_chunked

    def _complete(self) -> None:
        if self._sink is not None:
            sink, self._sink = self._sink, None
            self._ends_with_connection = False
            sink.complete()


def closed() -> Fault:
    return Fault(Code.UPSTREAM_CLOSED, "the upstream closed the connection before it was done")


def _invalid() -> Fault:
    return Fault(Code.UPSTREAM_INVALID, "the upstream's answer is no HTTP")
