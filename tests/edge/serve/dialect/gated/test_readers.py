"""What passes the gate untouched is the same to the byte, and every event tells what it says."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop.runtime_pb2 import RunEvent, TokenUsage
from iop_edge.gate.evidence import Piece, Said, joined
from iop_edge.runtime.work import ReportedUsage, Surface
from iop_edge.serve.openai.work import CallerWork
from iop_shared.errors import Code, Fault
from iop_shared.ids import Target
from tests.edge.serve.dialect.gated.rig import (
    SURFACES,
    call,
    content,
    finish,
    read_first,
    read_later,
    relayed_reader,
    run_events,
    thought,
    upstream,
    work_for,
)

PATHS = ("tunnel", "normalized")
OTHER = Said("other", "")
SERVED = Target("served")


def said_of(pieces: Sequence[Piece]) -> list[Said]:
    return [said for piece in pieces for said in piece.said]


def raw_of(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece.raw or b"" for piece in pieces)


Outcome = tuple[list[bytes], Code | None]
"""What each chunk released, and the fault that ended it."""


def eager(work: CallerWork, chunks: list[bytes], status: int = 200) -> Outcome:
    """What the path without a gate makes of it."""
    reader = work.reader(status, (), SERVED)
    return _outcome(reader.feed, reader.end, chunks)


def gated(work: CallerWork, chunks: list[bytes], status: int = 200) -> Outcome:
    reader = work.gated_reader(status, (), SERVED, is_first=True)
    return _outcome(lambda chunk: raw_of(reader.feed(chunk)), lambda: raw_of(reader.end()), chunks)


def _outcome(
    feed: Callable[[bytes], bytes], end: Callable[[], bytes], chunks: list[bytes]
) -> Outcome:
    released = []
    try:
        for chunk in chunks:
            released.append(feed(chunk))
        released.append(end())
    except Fault as fault:
        return released, fault.code
    return released, None


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[begin:end] for begin, end in pairwise(places)]


# -- byte for byte -------------------------------------------------------------------------------

PAYLOADS = {
    "chat": (
        {"id": "c", "model": "served", "choices": [{"delta": {"role": "assistant"}}]},
        {"id": "c", "model": "served", "choices": [{"delta": {"content": "Grüße 🙂"}}]},
        {"id": "c", "choices": [{"delta": {"content": '"model": "served"'}}], "model": "served"},
        {"model": "served", "choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"model": "served", "choices": [{"delta": {"content": [{"text": "parts"}]}}]},
        {"model": "served", "choices": [{"delta": {"tool_calls": [{"index": "0"}]}}]},
        {"model": 7, "choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 0}},
        {"model": "served", "choices": [], "usage": {"prompt_tokens": "many"}},
        {"model": "served", "choices": [{"delta": {"content": "x"}}], "usage": {
            "prompt_tokens": 5}},
        {"model": "served", "choices": [{"delta": {"refusal": "I would rather not."}}]},
        {"model": "served", "choices": [{"delta": {"content": "x"}}], "error": {"code": 5}},
        {"model": "served", "choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"error": {"message": "broken"}},
        "[DONE]",
    ),
    "responses": (
        {"type": "response.created", "response": {"model": "served", "usage": None}},
        {"type": "response.output_text.delta", "delta": "Grüße 🙂", "output_index": 0},
        {"type": "response.output_text.delta", "delta": {"odd": 1}},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": 3}},
        {"type": "response.unheard_of", "delta": "x"},
        {"type": "response.completed", "response": {"model": "served", "usage": {
            "input_tokens": 3, "output_tokens": 4}}},
        {"type": "error", "message": "broken"},
        "[DONE]",
    ),
    "messages": (
        {"type": "message_start", "message": {"model": "served", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": "Grüße 🙂"}},
        {"type": "content_block_delta", "index": "no", "delta": {"text": "x"}},
        {"type": "content_block_delta", "delta": {"signature": "s"}},
        {"type": "ping"},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {
            "output_tokens": 4}},
        {"type": "message_stop"},
        {"type": "error", "error": {"message": "broken"}},
    ),
}  # fmt: skip
FORMS = (
    b"data: %s\n\n", b"data:%s\n\n", b"data: %s\r\n\r\n", b"data: %s\r\r", b"data: %s\n\r\n",
    b"event: message\ndata: %s\n\n", b"event: message\r\ndata: %s\r\n\r\n",
    b"id: 7\ndata: %s\nretry: 5\n\n", b": a comment\n\ndata: %s\n\n", b":\n\n\n\ndata: %s\n\n",
    b"\xef\xbb\xbfdata: %s\n\n", b"data: %s\n\n: no data\n\n", b"event: alone\n\ndata: %s\n\n",
    b"data: \ndata: %s\n\n", b"data: %s", b"\n", b"\r", b"data: {\n\n", b"\xff%s\n\n",
    b"event: m\rdata: %s\ndata: \n\n", b"event: m\rdata: %s\r\r",
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> tuple[Surface, bytes]:
    surface = draw(st.sampled_from(SURFACES))
    usual = st.sampled_from(FORMS[:14])
    forms = draw(st.lists(st.one_of(usual, usual, usual, st.sampled_from(FORMS)), max_size=8))
    events = []
    for form in forms:
        payload = draw(st.sampled_from(PAYLOADS[surface]))
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        events.append(form.replace(b"%s", text.encode()))
    return surface, b"".join(events)


@pytest.mark.req("GATE-1")
@settings(max_examples=400, deadline=None)
@given(streams(), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_a_stream_passes_byte_for_byte_in_whatever_form_and_pieces_it_comes(
    given_stream: tuple[Surface, bytes], cuts: list[int], bytewise: bool
) -> None:
    surface, stream = given_stream
    work = work_for(surface)
    chunks = [stream[i : i + 1] for i in range(len(stream))] if bytewise else []
    chunks = chunks or in_pieces(stream, cuts)
    assert gated(work, chunks) == eager(work, chunks)


@pytest.mark.req("GATE-1", "CFG-19")
@settings(max_examples=300, deadline=None)
@given(streams(), st.lists(st.integers(0, 2000), max_size=6))
def test_what_comes_together_can_be_taken_apart_into_the_events_that_said_it(
    given_stream: tuple[Surface, bytes], cuts: list[int]
) -> None:
    surface, stream = given_stream

    def read(chunks: list[bytes]) -> list[Piece]:
        reader = work_for(surface).gated_reader(200, (), SERVED, is_first=True)
        with suppress(Fault):
            return [piece for chunk in chunks for piece in reader.feed(chunk)]
        return []

    together = read(in_pieces(stream, cuts))
    one_by_one = read([stream[at : at + 1] for at in range(len(stream))])
    apart = [event for piece in together for event in piece.events()]
    if together:
        assert raw_of(apart) == raw_of(together)
        # A comment may come with its neighbour, and half of a line's end with the next event.
        for one, other in zip(
            (event for event in apart if event.said),
            (event for event in one_by_one if event.said),
            strict=True,
        ):
            assert one.said == other.said
            assert raw_of([other]).strip(b"\r\n") in raw_of([one])
    for piece in together:
        assert joined(said_of(list(piece.events()))) == piece.said


@pytest.mark.req("GATE-1")
@settings(max_examples=100, deadline=None)
@given(streams(), st.lists(st.integers(0, 2000), max_size=6))
def test_a_reader_for_the_gate_counts_as_the_others_do(
    given_stream: tuple[Surface, bytes], cuts: list[int]
) -> None:
    surface, stream = given_stream
    work = work_for(surface)
    plain = work.reader(200, (), SERVED)
    readers = [work.gated_reader(200, (), SERVED, is_first=first) for first in (True, False)]
    for chunk in in_pieces(stream, cuts):
        for reader in (plain, *readers):
            with suppress(Fault):
                reader.feed(chunk)
    for reader in readers:
        assert reader.usage == plain.usage
        assert reader.told_end == plain.told_end
        assert reader.generated_tokens(None) == plain.generated_tokens(None)


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize(
    ("surface", "status", "body"),
    [
        ("chat", 200, b'{"model":"served","choices":[],"usage":{"prompt_tokens":2}}'),
        ("chat", 200, b'{"model":"served","choices":[{"message":{"content":["odd"]}}]}'),
        ("responses", 200, b'{"model":"served","output":[],"status":"failed"}'),
        ("messages", 200, b'{"model":"served","content":null}'),
        ("chat", 200, b"<html>"),
        ("chat", 302, b""),
        ("chat", 429, b'{"error":"busy"}'),
        ("messages", 529, b'{"error":{"message":"hot"}}'),
        ("responses", 500, b"<html>"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_body_passes_byte_for_byte_or_is_the_same_fault(
    surface: Surface, status: int, body: bytes, is_stream: bool
) -> None:
    work = work_for(surface, is_stream)
    chunks = [body[:7], body[7:]]
    assert gated(work, chunks, status) == eager(work, chunks, status)


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_run_is_rendered_byte_for_byte_as_without_the_gate(
    surface: Surface, is_stream: bool
) -> None:
    spoken = [thought("hm"), content("hel"), content(""), content("lo"), *CALLS, finish("length")]
    work = work_for(surface, is_stream, stream_options={"include_usage": True})
    plain = work.run_reader()
    expected = b"".join([*map(plain.feed, run_events(spoken)), plain.end()])
    assert raw_of(read_first(work, surface, "normalized", spoken)) == expected


# -- what an event says --------------------------------------------------------------------------

CALLS = (
    call(0, "", "t0", "first"),
    call(0, '{"a": '),
    call(0, "1}"),
    call(1, "{}", "t1", "second"),
)
SPOKEN = (thought("h"), thought("m"), content("hel"), content("lo"), *CALLS, finish("tool_calls"))


def told(said: list[Said]) -> Any:
    """What is left when it is put together: text, and the calls in their order."""
    calls: dict[int, list[str]] = {}
    for one in said:
        if one.kind == "tool_call":
            known = calls.setdefault(one.call_index, [one.call_id, one.name, ""])
            known[2] += one.text
    texts = {
        kind: "".join(one.text for one in said if one.kind == kind)
        for kind in ("content", "reasoning", "finish")
    }
    return texts, [[one[0], one[1], one[2].replace(" ", "")] for one in calls.values()]


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("surface", "path"), list(product(SURFACES, PATHS)))
def test_an_attempt_says_the_same_whichever_way_it_comes(
    surface: Surface, path: str, is_stream: bool, is_first: bool
) -> None:
    read = read_first if is_first else read_later
    pieces = read(work_for(surface, is_stream), surface, path, SPOKEN)
    assert told(said_of(pieces)) == (
        {"content": "hello", "reasoning": "hm", "finish": "tool_calls"},
        [["t0", "first", '{"a":1}'], ["t1", "second", "{}"]],
    )
    assert all((piece.raw is not None) == is_first for piece in pieces)
    assert is_stream or len(pieces) == 1
    assert is_first or all(piece.said for piece in pieces)


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize("surface", SURFACES)
def test_each_event_of_a_stream_is_a_piece_however_it_is_cut(surface: Surface) -> None:
    events = upstream(surface, True, SPOKEN)
    work = work_for(surface)
    expected = read_first(work, surface, "tunnel", SPOKEN)
    assert len(expected) == len(events)
    stream = b"".join(events)
    by_bytes = [stream[place : place + 1] for place in range(len(stream))]
    in_three = [[stream[:1], stream[1:cut], stream[cut:]] for cut in range(1, len(stream))]
    for chunks in ([stream], by_bytes, *in_three):
        reader = relayed_reader(work, is_first=True)
        pieces = [piece for chunk in chunks for piece in reader.feed(chunk)]
        assert [event for piece in pieces for event in piece.events()] == expected
        assert reader.end() == ()
        assert reader.told_end == "completed"


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_stream_that_comes_line_by_line_passes_as_it_comes(
    surface: Surface, ending: bytes
) -> None:
    stream = b"".join(upstream(surface, True, SPOKEN)).replace(b"\n", ending)
    work = work_for(surface)
    chunks = [line + ending for line in stream.split(ending)[:-1]]
    assert gated(work, chunks) == eager(work, chunks)


def test_only_the_first_choice_speaks_and_others_are_known_to_have() -> None:
    reader = relayed_reader(work_for("chat"), is_first=True)
    choices = [{"index": 1, "delta": {"content": "no"}}, {"delta": {"content": "yes"}}]
    for chosen, expected in ((choices, [OTHER, content("yes")]), (choices[:1], [OTHER])):
        event = json.dumps({"model": "m", "choices": chosen}).encode()
        assert said_of(reader.feed(b"data: %s\n\n" % event)) == expected


@pytest.mark.req("GATE-5", "GATE-7")
@pytest.mark.parametrize(
    ("surface", "event", "expected"),
    [
        ("chat", {"choices": [{"delta": {"refusal": "No."}}]}, content("No.")),
        ("chat", {"choices": [{"delta": {"function_call": {"name": "f"}}}]}, OTHER),
        ("chat", {"choices": [{"delta": {"audio": {"data": "x"}}}]}, OTHER),
        ("chat", {"choices": [{"delta": {"content": [{"text": "Parts."}]}}]}, OTHER),
        ("chat", {"choices": [{"index": None, "delta": {"content": "Odd."}}]}, OTHER),
        ("responses", {"type": "response.refusal.delta", "delta": "No."}, content("No.")),
        (
            "responses",
            {"type": "response.output_item.added", "item": {"type": "web_search_call"}},
            OTHER,
        ),
        (
            "messages",
            {"type": "content_block_start", "content_block": {"type": "server_tool_use"}},
            OTHER,
        ),
        (
            "messages",
            {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "id": "c", "name": "f", "text": None},
            },
            call(0, "", "c", "f"),
        ),
        ("messages", {"type": "content_block_delta", "index": "0", "delta": {"text": "x"}}, OTHER),
        (
            "responses",
            {"type": "response.output_item.added", "item": {"type": "mcp_call", "name": None}},
            OTHER,
        ),
        (
            "responses",
            {
                "type": "response.output_item.added",
                "item": {"type": "tool_search_call", "arguments": {"odd": 1}},
            },
            OTHER,
        ),
        (
            "responses",
            {
                "type": "response.output_item.added",
                "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": None},
            },
            call(0, "", "c", "f"),
        ),
        ("responses", {"type": "response.output_text.delta", "delta": {"odd": 1}}, OTHER),
    ],
)
def test_whatever_a_caller_reads_is_known_to_have_been_said(
    surface: Surface, event: dict[str, Any], expected: Said
) -> None:
    chunk = b"data: %s\n\n" % json.dumps(event).encode()
    for is_first in (True, False):
        reader = relayed_reader(work_for(surface), is_first=is_first)
        [piece] = reader.feed(chunk)
        assert piece == Piece((expected,), chunk if is_first else None)


@pytest.mark.parametrize(
    ("surface", "reason", "expected"),
    [
        ("chat", {"finish_reason": "length"}, "length"),
        ("chat", {"finish_reason": "content_filter"}, "content_filter"),
        ("chat", {"finish_reason": "eos"}, "stop"),
        ("messages", {"stop_reason": "stop_sequence"}, "stop"),
        ("messages", {"stop_reason": "max_tokens"}, "length"),
        ("messages", {"stop_reason": "refusal"}, "content_filter"),
        ("responses", {"reason": "max_output_tokens"}, "length"),
        ("responses", {"reason": "content_filter"}, "content_filter"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_every_reason_to_finish_has_a_name(
    surface: Surface, reason: dict[str, str], expected: str, is_stream: bool
) -> None:
    response = {"model": "m", "status": "incomplete", "incomplete_details": reason, "output": []}
    body: Any = {
        "chat": {"model": "m", "choices": [{"delta": {}, "message": {}, **reason}]},
        "messages": {"type": "message_delta", "delta": reason, "content": [], **reason},
        "responses": {"type": "response.incomplete", "response": response, **response},
    }[surface]
    event = json.dumps(body).encode()
    reader = relayed_reader(work_for(surface, is_stream), is_first=True)
    pieces = [*reader.feed(b"data: %s\n\n" % event if is_stream else event)]
    pieces += () if is_stream else reader.end()
    assert said_of(pieces) == [finish(expected)]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_by_several_names(name: str) -> None:
    body = {"model": "m", "choices": [{"delta": {name: "hm"}, "message": {name: "hm"}}]}
    event = json.dumps(body).encode()
    streamed = relayed_reader(work_for("chat"), is_first=True)
    assert said_of(streamed.feed(b"data: %s\n\n" % event)) == [thought("hm")]
    whole = relayed_reader(work_for("chat", is_stream=False), is_first=True)
    whole.feed(event)
    assert said_of(whole.end()) == [thought("hm"), finish()]


@pytest.mark.req("GATE-7")
def test_calls_that_share_a_number_are_told_by_their_ids() -> None:
    reader = relayed_reader(work_for("chat"), is_first=True)
    said = []
    for one in (
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 0, "id": "b", "function": {"name": "g", "arguments": "{"}},
        {"index": 0, "id": "b", "function": {"arguments": "}"}},
        {"index": 7, "id": "c", "function": {"name": "h", "arguments": "{}"}},
    ):
        body = {"model": "m", "choices": [{"delta": {"tool_calls": [one]}}]}
        said += said_of(reader.feed(b"data: %s\n\n" % json.dumps(body).encode()))
    assert said == [
        call(0, "{", "a", "f"),
        call(0, "}"),
        call(1, "{", "b", "g"),
        call(1, "}", "b"),
        call(2, "{}", "c", "h"),
    ]


@pytest.mark.req("GATE-5", "GATE-7")
@pytest.mark.parametrize(
    ("surface", "body"),
    [
        ("chat", {"choices": [{"message": {"content": "x", "function_call": {"name": "f"}}}]}),
        ("chat", {"choices": [{"message": {"content": "x", "audio": {"id": "a"}}}]}),
        ("chat", {"choices": [{"message": {"content": "x"}}, {"message": {"content": "y"}}]}),
        ("responses", {"status": "completed", "output": [{"type": "web_search_call"}]}),
        ("responses", {"status": "completed", "output": [{"type": "message", "content": 7}]}),
        ("messages", {"content": [{"type": "server_tool_use"}, {"type": "text", "text": "x"}]}),
    ],
)
def test_a_body_says_that_there_is_more_in_it_than_can_be_told_again(
    surface: Surface, body: dict[str, Any]
) -> None:
    raw = json.dumps({"model": "served", **body}).encode()
    reader = relayed_reader(work_for(surface, is_stream=False), is_first=True)
    assert reader.feed(raw) == ()
    [piece] = reader.end()
    assert piece.said[0] == OTHER
    assert piece.raw is not None


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(
    ("surface", "body"),
    [
        ("chat", {"choices": [{"message": {"content": [{"type": "text", "text": "x"}]}}]}),
        ("responses", {"output": [{"type": "message", "content": []}]}),
        ("messages", {"content": "x"}),
    ],
)
def test_a_later_body_that_cannot_be_heard_does_not_take_the_place_of_the_answer(
    surface: Surface, body: dict[str, Any]
) -> None:
    raw = json.dumps({"model": "served", **body}).encode()
    reader = relayed_reader(work_for(surface, is_stream=False), is_first=False)
    reader.feed(raw)
    assert reader.end() == (Piece((OTHER,), None),)


@pytest.mark.req("GATE-5", "OAI-7")
@pytest.mark.parametrize(
    ("surface", "events"),
    [
        ("chat", [{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, "[DONE]"]),
        ("chat", [{"choices": [{"text": "x"}]}, "[DONE]"]),
        (
            "responses",
            [
                {"type": "response.output_text.done", "text": "x"},
                {"type": "response.completed", "response": {"status": "completed"}},
            ],
        ),
        ("messages", [{"type": "new_delta", "delta": {"text": "x"}}, {"type": "message_stop"}]),
    ],
)
def test_a_later_attempt_of_which_nothing_is_heard_is_no_end_without_a_word(
    surface: Surface, events: list[Any]
) -> None:
    payloads = [one if isinstance(one, str) else json.dumps(one) for one in events]
    reader = relayed_reader(work_for(surface), is_first=False)
    pieces = [*reader.feed(b"".join(b"data: %s\n\n" % one.encode() for one in payloads))]
    assert OTHER in said_of([*pieces, *reader.end()])


@pytest.mark.parametrize("surface", SURFACES)
def test_a_later_attempt_that_has_nothing_to_add_says_nothing(surface: Surface) -> None:
    reader = relayed_reader(work_for(surface), is_first=False)
    pieces = [*reader.feed(b"".join(upstream(surface, True, [finish()])))]
    assert said_of([*pieces, *reader.end()]) == [finish()]


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("given", [b"{}", b"{ }", b"null"])
def test_no_arguments_with_a_name_stand_for_what_the_fragments_tell(given: bytes) -> None:
    start = b'{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c",'
    events = [
        start + b'"name":"f","input":' + given + b"}}",
        b'{"type":"content_block_delta","index":0,"delta":{"partial_json":"{}"}}',
    ]
    reader = relayed_reader(work_for("messages"), is_first=True)
    said = said_of(reader.feed(b"".join(b"data: %s\n\n" % event for event in events)))
    assert said == [call(0, "", "c", "f"), call(0, "{}")]


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("told_by", ["arguments", "item"])
def test_arguments_that_are_told_whole_after_an_empty_fragment_are_heard(told_by: str) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": None}
    done: dict[str, Any] = {"type": "response.output_item.done", "item": item}
    if told_by == "item":
        done["item"] = {**item, "arguments": "{}"}
    events = [
        {"type": "response.output_item.added", "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "delta": ""},
        {"type": "response.function_call_arguments.done", "arguments": "{}"}
        if told_by == "arguments"
        else {"type": "response.function_call_arguments.done"},
        done,
    ]
    reader = relayed_reader(work_for("responses"), is_first=True)
    stream = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    assert "".join(said.text for said in said_of(reader.feed(stream))) == "{}"


@pytest.mark.req("GATE-1")
def test_what_was_said_before_a_fault_is_counted_as_without_the_gate() -> None:
    chunk = json.dumps({"model": "m", "choices": [{"delta": {"content": "Nine words. " * 9}}]})
    arrived = b"data: %s\n\ndata: {\n\n" % chunk.encode()
    work = work_for("chat")
    counted = []
    for reader in (work.reader(200, (), SERVED), relayed_reader(work, is_first=True)):
        with pytest.raises(Fault):
            reader.feed(arrived)
        counted.append(reader.generated_tokens(None))
    assert counted[0] == counted[1] > 9


def test_a_call_that_has_no_number_is_told_by_its_id() -> None:
    reader = relayed_reader(work_for("chat"), is_first=True)
    said = []
    for one in (
        {"id": "a", "function": {"name": "f", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
    ):
        body = {"model": "m", "choices": [{"delta": {"tool_calls": [one]}}]}
        said += said_of(reader.feed(b"data: %s\n\n" % json.dumps(body).encode()))
    assert said == [call(0, "{", "a", "f"), call(0, "}"), call(1, "{}", "b", "g")]


def test_arguments_that_are_told_whole_are_heard() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    begun = {**item, "arguments": ""}
    events = [
        {"type": "response.output_item.added", "output_index": 2, "item": begun},
        {"type": "response.output_item.done", "output_index": 2, "item": item},
    ]
    reader = relayed_reader(work_for("responses"), is_first=True)
    stream = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    assert said_of(reader.feed(stream)) == [call(2, "", "c", "f"), call(2, "{}", "c", "f")]
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    start = {"type": "content_block_start", "index": 1, "content_block": block}
    reader = relayed_reader(work_for("messages"), is_first=True)
    stream = b"data: %s\n\n" % json.dumps(start, separators=(",", ":")).encode()
    assert said_of(reader.feed(stream)) == [call(1, '{"a":1}', "c", "f")]


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.req("OAI-7", "GATE-7")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("surface", "path"), list(product(SURFACES, PATHS)))
def test_an_attempt_without_its_end_is_closed(surface: Surface, path: str, is_first: bool) -> None:
    work = work_for(surface)
    if path == "normalized":
        run = work.gated_run_reader(is_first=is_first)
        for event in run_events([content("hel")]):
            run.feed(event)
        end = run.end
    else:
        reader = relayed_reader(work, is_first=is_first)
        for chunk in upstream(surface, True, [content("hel")]):
            reader.feed(chunk)
        end = reader.end
    with pytest.raises(Fault) as caught:
        end()
    assert caught.value.code is Code.UPSTREAM_CLOSED


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("is_first", [True, False])
def test_an_upstreams_own_error_is_one_piece_that_says_nothing(is_first: bool) -> None:
    reader = work_for("chat").gated_reader(429, [("retry-after", "7")], SERVED, is_first=is_first)
    assert reader.feed(b'{"error":{"message":"busy"}}') == ()
    assert reader.end() == (Piece((), b'{"error":{"message":"busy"}}'),)
    assert ("retry-after", "7") in reader.headers


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("surface", SURFACES)
def test_the_usage_of_a_run_is_kept(surface: Surface, is_stream: bool, is_first: bool) -> None:
    reader = work_for(surface, is_stream).gated_run_reader(is_first=is_first)
    assert reader.generated_tokens(None) == 0
    reader.feed(RunEvent(text_delta="hello there"))
    reader.feed(RunEvent(usage=TokenUsage(input_tokens=0, output_tokens=4)))
    assert reader.usage == ReportedUsage(input_tokens=0, output_tokens=4)
    assert reader.generated_tokens(None) > 0
    assert reader.told_end is None
