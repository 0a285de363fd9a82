"""One answer out of two attempts, whatever either is and wherever the first one was cut."""

import json
from itertools import islice, product, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from iop_edge.gate.evidence import Piece, Said
from iop_edge.runtime.work import ReportedUsage, Surface
from iop_edge.serve.dialect.gated.stitch import StreamStitch
from iop_edge.serve.dialect.gated.told import ToldResponse
from iop_shared.ids import Target
from tests.edge.serve.dialect.gated.rig import (
    SURFACES,
    USAGE,
    Heard,
    call,
    content,
    events_of,
    finish,
    heard,
    joined,
    read_first,
    read_later,
    relayed_reader,
    thought,
    upstream,
    work_for,
)

PATHS = ("tunnel", "normalized")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SPOKEN = st.lists(st.one_of(TEXT.map(content), TEXT.map(content), TEXT.map(thought)), max_size=6)
EVERY_ONE = list(product(SURFACES, PATHS))
EVERY_PAIR = list(product(SURFACES, PATHS, PATHS))


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(("surface", "first_path", "second_path"), EVERY_PAIR)
@settings(max_examples=40, deadline=None)
@given(
    first=SPOKEN,
    second=SPOKEN,
    cut=st.integers(0, 40),
    kept_chars=st.none() | st.integers(0, 7),
    reason=st.sampled_from(["stop", "length"]),
)
def test_a_stream_goes_on_from_wherever_it_was_cut(
    surface: Surface,
    first_path: str,
    second_path: str,
    first: list[Said],
    second: list[Said],
    cut: int,
    kept_chars: int | None,
    reason: str,
) -> None:
    work = work_for(surface, stream_options={"include_usage": True})
    stitch = work.stitch(1 << 24)
    whole = read_first(work, surface, first_path, [*first, finish()])
    unfinished = takewhile(lambda piece: finish() not in piece.said, whole)
    released = list(islice(unfinished, cut))
    if released and kept_chars is not None:
        released[-1] = cut_at(released[-1], kept_chars)
    later = read_later(work, surface, second_path, [*second, finish(reason)])
    assert all(piece.raw is None for piece in later)
    answer = b"".join([*map(stitch.write, [*released, *later]), stitch.end(USAGE)])
    told = heard(surface, True, answer)
    spoken = [said for piece in released for said in piece.said] + second
    assert (told.content, told.reasoning, told.finish) == (
        joined(spoken, "content"),
        joined(spoken, "reasoning"),
        reason,
    )
    if released and released[0].raw is not None and first_path == "tunnel":
        assert told.id == "up_1"


def cut_at(piece: Piece, chars: int) -> Piece:
    if not piece.said:
        return piece
    return Piece((replace(piece.said[0], text=piece.said[0].text[:chars]),))


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(("surface", "first_path", "second_path"), EVERY_PAIR)
@settings(max_examples=25, deadline=None)
@given(first=SPOKEN, second=SPOKEN, kept=st.integers(0, 2), kept_chars=st.integers(0, 7))
def test_a_whole_answer_is_one_of_both_attempts(
    surface: Surface,
    first_path: str,
    second_path: str,
    first: list[Said],
    second: list[Said],
    kept: int,
    kept_chars: int,
) -> None:
    work = work_for(surface, is_stream=False)
    stitch = work.stitch(1 << 24)
    (whole,) = read_first(work, surface, first_path, [*first, finish()])
    begun = [said for said in whole.said if said.kind != "finish"][:kept]
    if begun:
        begun[-1] = replace(begun[-1], text=begun[-1].text[:kept_chars])
        assert stitch.write(Piece(tuple(begun))) == b""
    (later,) = read_later(work, surface, second_path, [*second, finish("length")])
    assert later.raw is None
    assert stitch.write(later) == b""
    told = heard(surface, False, stitch.end(USAGE))
    spoken = [*begun, *second]
    assert told.content == joined(spoken, "content")
    assert told.reasoning == joined(spoken, "reasoning")
    assert told.finish == "length"


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("silence", [0, 3, 40])
def test_a_chat_goes_on_under_the_id_that_it_was_told_however_late(silence: int) -> None:
    work = work_for("chat")
    stitch = work.stitch(1 << 24)
    silent = [
        Piece((), b'data: {"model":"mine","choices":[]}\n\n'),
        Piece((), b'data: {"id":"up_1","model":"mine","choices":[]}\n\n'),
    ]
    begun = read_first(work, "chat", "tunnel", [content("Well, ")])
    assert [bool(piece.said) for piece in begun] == [False, True]
    later = read_later(work, "chat", "tunnel", [content("yes."), finish()])
    pieces = [*silent * silence, begun[0], *silent * silence, begun[1], *silent, *later]
    answer = b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])
    events = [event for event in events_of(answer) if event != "[DONE]" and event["choices"]]
    assert {event["id"] for event in events} == {"up_1"}
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well, yes."
    assert sum("role" in delta for delta in deltas) == 1


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("first_path", PATHS)
@pytest.mark.parametrize("surface", SURFACES)
@settings(max_examples=25, deadline=None)
@given(first=SPOKEN, second=SPOKEN, cut=st.integers(0, 40))
def test_an_answer_goes_on_from_events_that_came_together(
    surface: Surface, first_path: str, first: list[Said], second: list[Said], cut: int
) -> None:
    work = work_for(surface)
    events = upstream(surface, True, first)[:cut]
    released = relayed_reader(work, is_first=True).feed(b"".join(events))
    later = read_later(work, surface, first_path, [*second, finish()])
    stitch = work.stitch(1 << 24)
    answer = b"".join([*map(stitch.write, [*released, *later]), stitch.end(USAGE)])
    assert answer.startswith(b"".join(piece.raw or b"" for piece in released))
    told = heard(surface, True, answer)
    spoken = [said for piece in released for said in piece.said] + second
    assert told.content == joined(spoken, "content")
    assert told.reasoning == joined(spoken, "reasoning")
    assert told.id == "up_1" or not released


CALLED = (
    content("well"),
    call(0, "", "t0", "first"),
    call(0, '{"a": '),
    call(0, "1}"),
    call(1, "{}", "t1", "second"),
    finish("tool_calls"),
)


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("surface", "first_path", "second_path"), EVERY_PAIR)
def test_tool_calls_of_a_later_attempt_stand_behind_the_first_ones_text(
    surface: Surface, first_path: str, second_path: str, is_stream: bool
) -> None:
    work = work_for(surface, is_stream)
    stitch = work.stitch(1 << 24)
    written = []
    # The calls of the first attempt are held, judged and dropped.
    for piece in read_first(work, surface, first_path, CALLED):
        if any(said.kind == "tool_call" for said in piece.said):
            break
        written.append(stitch.write(piece))
    for piece in read_later(work, surface, second_path, CALLED):
        written.append(stitch.write(piece))
    told = heard(surface, is_stream, b"".join([*written, stitch.end(USAGE)]))
    assert told.content == ("wellwell" if is_stream else "well")
    assert told.finish == "tool_calls"
    assert [(one[1], one[2].replace(" ", "")) for one in told.calls] == [
        ("first", '{"a":1}'),
        ("second", "{}"),
    ]
    assert [one[0] for one in told.calls] == ["t0", "t1"]


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("surface", "path"), EVERY_ONE)
def test_an_answer_of_which_nothing_was_released_begins_with_the_next_attempt(
    surface: Surface, path: str, is_stream: bool
) -> None:
    work = work_for(surface, is_stream)
    stitch = work.stitch(1 << 24)
    pieces = read_later(work, surface, path, [thought("hm"), content("hello"), finish()])
    answer = b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])
    told = heard(surface, is_stream, answer)
    assert told == Heard("hello", "hm", "stop", told.id)
    assert "run_1" in told.id


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("surface", SURFACES)
def test_a_third_attempt_goes_on_as_the_second_did(surface: Surface) -> None:
    work = work_for(surface)
    stitch = work.stitch(1 << 24)
    pieces = [
        *read_first(work, surface, "tunnel", [thought("h"), content("on")]),
        *read_later(work, surface, "normalized", [content("e ")]),
        *read_later(work, surface, "tunnel", [content("two"), thought("!"), finish()]),
    ]
    answer = b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])
    told = heard(surface, True, answer)
    assert (told.content, told.reasoning, told.finish) == ("one two", "h!", "stop")


@pytest.mark.req("GATE-1")
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("surface", "path"), EVERY_ONE)
@pytest.mark.parametrize("usage", [USAGE, ReportedUsage()])
def test_nothing_is_added_to_an_answer_that_passed_as_it_came(
    surface: Surface, path: str, is_stream: bool, usage: ReportedUsage
) -> None:
    work = work_for(surface, is_stream)
    stitch = work.stitch(1 << 24)
    pieces = read_first(work, surface, path, CALLED)
    answer = b"".join([*map(stitch.write, pieces), stitch.end(usage)])
    assert answer == b"".join(piece.raw or b"" for piece in pieces)


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(("surface", "asked"), [("chat", True), ("chat", False), *(
    (surface, True) for surface in ("responses", "messages")
)])  # fmt: skip
def test_the_usage_is_that_of_the_whole_run(surface: Surface, asked: bool) -> None:
    work = work_for(surface, **({"stream_options": {"include_usage": True}} if asked else {}))
    stitch = work.stitch(1 << 24)
    pieces = [
        *read_first(work, surface, "tunnel", [content("one ")]),
        *read_later(work, surface, "tunnel", [content("two"), finish()]),
    ]
    rest = b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])
    counted = {
        "chat": b'"prompt_tokens":11,"completion_tokens":5',
        "responses": b'"input_tokens":11',
        "messages": b'"input_tokens":11',
    }[surface]
    assert rest.count(counted) == (1 if asked else 0)


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("surface", SURFACES)
def test_an_error_that_a_later_attempt_told_is_the_end(surface: Surface) -> None:
    work = work_for(surface)
    stitch = work.stitch(1 << 24)
    reader = work.gated_reader(200, (), Target("served"), is_first=False)
    error = {
        "chat": b'data: {"error":{"message":"broken"}}\n\n',
        "responses": b'data: {"type":"error","message":"broken"}\n\n',
        "messages": b'data: {"type":"error","error":{"type":"api_error","message":"broken"}}\n\n',
    }[surface]
    pieces = [
        *read_first(work, surface, "tunnel", [content("one ")]),
        *read_later(work, surface, "normalized", [content("two")]),
        *reader.feed(error),
        *reader.end(),
    ]
    assert reader.told_end == "error:upstream_error"
    answer = b"".join([*map(stitch.write, pieces), stitch.end(USAGE)])
    assert answer.endswith(error)


def stitched(surface: Surface, events: list[dict[str, Any]], spoken: list[Said]) -> list[Any]:
    """What follows these events of a first attempt."""
    work = work_for(surface)
    stitch = work.stitch(1 << 24)
    reader = work.gated_reader(200, (), Target("served"), is_first=True)
    for event in events:
        for piece in reader.feed(b"data: %s\n\n" % json.dumps(event).encode()):
            stitch.write(piece)
    later = read_later(work, surface, "normalized", [*spoken, finish()])
    return events_of(b"".join([*map(stitch.write, later), stitch.end(USAGE)]))


@pytest.mark.req("GATE-5")
def test_nothing_follows_a_signature_in_its_block() -> None:
    block = {"type": "thinking", "thinking": ""}
    begun: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "served"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"thinking": "h"}},
    ]
    signed = {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta"}}
    kinds = [event["type"] for event in stitched("messages", begun, [thought("m")])]
    assert kinds[:2] == ["content_block_delta", "content_block_stop"]
    kinds = [event["type"] for event in stitched("messages", [*begun, signed], [thought("m")])]
    assert kinds[:2] == ["content_block_stop", "content_block_start"]


PART: dict[str, Any] = {"type": "output_text", "text": "one", "annotations": [{"n": 1}]}
ITEM: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "content": []}
SEARCH: dict[str, Any] = {"type": "web_search_call", "id": "w1", "status": "in_progress"}
CREATED: dict[str, Any] = {
    "type": "response.created", "sequence_number": 0,
    "response": {"id": "up_1", "model": "served", "created_at": 5, "mark": "kept"},
}  # fmt: skip


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(("numbered", "following"), [({"sequence_number": 40}, 41), ({}, 10)])
def test_a_response_goes_on_in_the_part_that_is_open(
    numbered: dict[str, int], following: int
) -> None:
    place = {"output_index": 1, "item_id": "m1", "content_index": 1}
    begun = [
        CREATED,
        {"type": "response.output_item.added", "output_index": 0, "item": SEARCH},
        {"type": "response.output_item.done", "output_index": 0, "item": SEARCH},
        {"type": "response.output_item.added", "output_index": 1, "item": ITEM},
        {"type": "response.content_part.added", **place, "content_index": 0},
        {"type": "response.output_text.delta", **place, "content_index": 0, "delta": "one"},
        {"type": "response.output_text.done", **place, "content_index": 0, "text": "one"},
        {"type": "response.content_part.done", **place, "content_index": 0, "part": PART},
        {"type": "response.content_part.added", **place},
        {"type": "response.output_text.delta", **place, "delta": "tw", **numbered},
    ]
    delta, text_done, part_done, item_done, end = stitched("responses", begun, [content("o")])
    assert (delta["delta"], text_done["text"], part_done["part"]["text"]) == ("o", "two", "two")
    assert all(event["item_id"] == "m1" for event in (delta, text_done, part_done))
    assert all(event["content_index"] == 1 for event in (delta, text_done, part_done))
    assert delta["sequence_number"] == following
    assert [part["text"] for part in item_done["item"]["content"]] == ["one", "two"]
    assert item_done["item"]["content"][0] == PART
    assert end["response"]["output"] == [SEARCH, item_done["item"]]
    assert end["response"]["mark"] == "kept"


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("open_item", [SEARCH, ITEM])
def test_an_item_of_which_nothing_was_told_is_closed_before_the_next(
    open_item: dict[str, Any],
) -> None:
    added = {"type": "response.output_item.added", "output_index": 0, "item": open_item}
    told = stitched("responses", [CREATED, added], [thought("hm")])
    assert [event["type"] for event in told[:2]] == [
        "response.output_item.done",
        "response.output_item.added",
    ]
    assert told[0]["item"]["id"] == open_item["id"]
    assert told[1]["output_index"] == 1
    assert [event["sequence_number"] for event in told] == list(range(2, 2 + len(told)))


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize(("surface", "path"), EVERY_ONE)
def test_an_answer_that_has_finished_says_nothing_more(surface: Surface, path: str) -> None:
    work = work_for(surface)
    stitch = work.stitch(1 << 24)
    whole = read_first(work, surface, "tunnel", [content("all"), finish()])
    until_finish = [piece for piece in whole if piece.said or piece is whole[0]]
    more = read_later(work, surface, path, [content(" and more"), finish("length")])
    for piece in until_finish:
        stitch.write(piece)
    assert b"".join(map(stitch.write, more)) == b""
    assert (
        stitch.end(USAGE)
        == {
            "chat": b"data: [DONE]\n\n",
            "responses": b"",
            "messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        }[surface]
    )


@pytest.mark.req("GATE-5")
def test_of_a_response_that_cannot_be_continued_any_more_no_text_is_kept() -> None:
    told = ToldResponse(lambda: pytest.fail("nothing is left to be told"), 100)
    stitch = StreamStitch(told)
    for event in upstream("responses", True, [content("Twenty characters ok")] * 10)[:-3]:
        for piece in relayed_reader(work_for("responses"), is_first=True).feed(event):
            stitch.write(piece)
    assert told.is_settled
    assert told._items == []
