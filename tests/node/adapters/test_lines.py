"""Readers of lines and events, whole, byte by byte and cut at every place."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.adapters.lines import Lines, ServerSentEvents
from iop_shared.errors import Code, Fault

STREAM = (
    b"\xef\xbb\xbfdata: first\n\n"
    b": a comment\r\n\r\n"
    b"event: x\rdata:second\rid: 7\r\r"
    b"data: one\r\ndata: \r\ndata\r\ndata:  two\r\n\r\n"
    b"retry: 10\n\n" + "data: größe 你好\n\n".encode() + b"data: [DONE]\n\n" + b"data: never ended"
)
EVENTS = [
    b"first",
    b"second",
    b"one\n\n\n two",
    "größe 你好".encode(),
    b"[DONE]",
]


def events_of(pieces) -> list[bytes]:
    reader = ServerSentEvents()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_a_stream_fed_whole_gives_its_events():
    assert events_of([STREAM]) == EVENTS


def test_a_stream_fed_byte_by_byte_gives_the_same_events():
    assert events_of(STREAM[i : i + 1] for i in range(len(STREAM))) == EVENTS


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_a_stream_cut_anywhere_gives_the_same_events(cut):
    assert events_of([STREAM[:cut], b"", STREAM[cut:]]) == EVENTS


@given(
    lines=st.lists(st.binary().map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))),
    endings=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=1),
    cuts=st.lists(st.integers(0, 400)),
)
def test_lines_come_out_as_they_went_in_however_they_end_and_are_cut(lines, endings, cuts):
    content = b""
    for number, line in enumerate(lines):
        ending = endings[number % len(endings)]
        # A lone CR before an empty line that ends in LF would read as one CRLF.
        if content.endswith(b"\r") and not line and ending == b"\n":
            ending = b"\r"
        content += line + ending
    places = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    reader = Lines()
    out = []
    for start, end in itertools.pairwise(places):
        out += reader.feed(content[start:end])
    assert out == lines
    assert reader.end() == b""


def test_a_line_that_nothing_ends_is_there_at_the_end():
    reader = Lines()
    assert reader.feed(b"one\ntwo") == [b"one"]
    assert (reader.end(), reader.end()) == (b"two", b"")


@pytest.mark.parametrize("make", [Lines, ServerSentEvents])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_over_the_limit_is_refused_in_pieces_of_any_size(make, size):
    reader = make(limit=100)
    with pytest.raises(Fault) as refused:
        for _ in range(0, 1000, size):
            reader.feed(b"x" * size)
    assert refused.value.code is Code.UPSTREAM_INVALID


def test_an_event_of_many_lines_is_bounded_as_a_whole():
    reader = ServerSentEvents(limit=100)
    with pytest.raises(Fault) as refused:
        for _ in range(100):
            reader.feed(b"data: xx\n")
    assert refused.value.code is Code.UPSTREAM_INVALID
