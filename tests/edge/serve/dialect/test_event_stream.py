"""Streams read whole, byte by byte, and with every split."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.serve.dialect.event_stream import MAX_EVENT_BYTES, EventStream
from iop_edge.serve.dialect.observers import ChatObserver
from iop_shared.errors import Code, Fault


def chunk(text: str, **more: object) -> bytes:
    body = {"id": "c1", "model": "served", "choices": [{"delta": {"content": text}}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


def lines(*payloads: bytes, ending: bytes = b"\n") -> bytes:
    return b"".join(b"data: " + payload + ending + ending for payload in payloads)


PAYLOADS = (
    chunk("Grüße, 世界 🙂"),
    chunk('"model": "served"'),
    chunk("", choices=[], usage={"prompt_tokens": 5, "completion_tokens": 0}),
    b"[DONE]",
)


def read(*pieces: bytes, name: bytes = b'"mine"') -> tuple[bytes, ChatObserver]:
    observer = ChatObserver()
    stream = EventStream(observer, name)
    return b"".join([*map(stream.feed, pieces), stream.end()]), observer


def renamed(stream: bytes) -> bytes:
    return stream.replace(b'"model": "served", "choices"', b'"model": "mine", "choices"')


@pytest.mark.req("OAI-1")
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_a_stream_is_the_upstreams_own_to_the_byte_apart_from_the_name(ending: bytes) -> None:
    stream = lines(*PAYLOADS, ending=ending)
    assert renamed(stream) != stream
    assert read(stream)[0] == renamed(stream)
    assert read(*(stream[i : i + 1] for i in range(len(stream))))[0] == renamed(stream)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_split_in_two_gives_the_same(ending: bytes) -> None:
    stream = lines(*PAYLOADS, ending=ending)
    expected = renamed(stream)
    for cut in range(len(stream)):
        assert read(stream[:cut], stream[cut:])[0] == expected


FORMS = st.sampled_from(
    [
        b"data: %s\n\n",
        b"data:%s\n\n",
        b"data: %s\r\n\r\n",
        b"data: %s\r\r",
        b"data: %s\n\r\n",
        b"event: message\ndata: %s\n\n",
        b"event: message\r\ndata: %s\r\n\r\n",
        b"id: 7\ndata: %s\nretry: 5\n\n",
        b": a comment\n\ndata: %s\n\n",
        b":\n\n\n\ndata: %s\n\n",
        b"\xef\xbb\xbfdata: %s\n\n",
    ]
)


@given(
    st.lists(st.tuples(FORMS, st.text(max_size=20)), max_size=6),
    st.lists(st.integers(0, 2000), max_size=12),
)
def test_any_form_in_any_pieces_is_released_whole_and_renamed(
    events: list[tuple[bytes, str]], cuts: list[int]
) -> None:
    stream = b"".join(form % chunk(text) for form, text in events) + lines(b"[DONE]")
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    released, observer = read(*pieces)
    assert released == renamed(stream)
    assert observer.is_ended


def test_an_event_is_released_in_the_feed_that_completes_it() -> None:
    stream = EventStream(ChatObserver(), b'"mine"')
    event = lines(chunk("a"))
    assert stream.feed(event[:-1]) == b""
    assert stream.feed(event[-1:]) == renamed(event)
    assert stream.feed(event + event[:10]) == renamed(event)
    assert stream.feed(event[10:]) == renamed(event)


def test_data_over_several_lines_is_one_event_and_keeps_its_lines() -> None:
    event = b'data: {"id":"c1",\ndata:  "model":\ndata:"served","x":1}\n\n'
    assert read(event, lines(b"[DONE]"))[0] == event.replace(b"served", b"mine") + lines(b"[DONE]")


def test_a_stream_with_the_callers_own_name_is_not_copied() -> None:
    event = lines(chunk("a"))
    assert EventStream(ChatObserver(), b'"served"').feed(event) is event


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize(
    "stream",
    [
        b"",
        lines(chunk("a")),
        lines(chunk("a", choices=[{"finish_reason": "stop"}])),
        lines(chunk("a")) + b"data: [DO",
        lines(chunk("a")) + b"data: " + chunk("b")[:20],
        lines(chunk("a")) + b": [DONE]\n\n",
        lines(chunk("[DONE]")),
    ],
)
def test_a_stream_without_its_terminal_marker_is_closed_too_early(stream: bytes) -> None:
    with pytest.raises(Fault) as caught:
        read(stream)
    assert caught.value.code is Code.UPSTREAM_CLOSED


@pytest.mark.parametrize(
    "event", [b"data: \n\n", b"data:\n\n", b"data\n\n", b"\n\n", b"event: ping\n\n", b": hi\n\n"]
)
def test_an_event_without_data_passes(event: bytes) -> None:
    assert read(event, lines(b"[DONE]"))[0] == event + lines(b"[DONE]")
    assert read(event + lines(b"[DONE]"))[0] == event + lines(b"[DONE]")


@pytest.mark.req("OAI-7")
@pytest.mark.parametrize("cut", range(1, len(lines(b"[DONE]"))))
def test_a_marker_counts_when_it_is_whole(cut: int) -> None:
    marker = lines(b"[DONE]")[:cut]
    if marker.rstrip() == b"data: [DONE]":
        assert read(lines(chunk("a")), marker)[0].endswith(marker.rstrip() + b"\n\n") or cut == 13
    else:
        with pytest.raises(Fault):
            read(lines(chunk("a")), marker)


def test_an_upstreams_error_event_passes_and_ends_the_stream() -> None:
    event = lines(b'{"error":{"message":"overheated"}}')
    assert read(lines(chunk("a")), event)[0] == renamed(lines(chunk("a"))) + event


@pytest.mark.parametrize(
    "payload",
    [b"<html>", b'{"model":"served"', b'"served"', b"[1]", b"{}x", b'{"a":' + b"[" * 100_000],
)
def test_data_that_is_no_json_object_is_invalid(payload: bytes) -> None:
    with pytest.raises(Fault) as caught:
        read(lines(payload, b"[DONE]"))
    assert caught.value.code is Code.UPSTREAM_INVALID


def test_an_event_that_names_its_model_twice_is_invalid() -> None:
    with pytest.raises(Fault) as caught:
        read(lines(b'{"model":"a","model":"b"}'))
    assert caught.value.code is Code.UPSTREAM_INVALID


def test_a_gigantic_line_is_bounded_however_it_comes() -> None:
    stream = EventStream(ChatObserver(), b'"mine"')
    piece = b"x" * 1_000_000
    stream.feed(b"data: ")
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        assert stream.feed(piece) == b""
    with pytest.raises(Fault) as caught:
        stream.feed(piece)
    assert caught.value.code is Code.UPSTREAM_INVALID
    assert str(MAX_EVENT_BYTES) in caught.value.message
    with pytest.raises(Fault):
        EventStream(ChatObserver(), b'"mine"').feed(b"data: " + b"x" * MAX_EVENT_BYTES + b"\n\n")
