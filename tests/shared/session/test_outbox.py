from __future__ import annotations

import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.session.outbox import BATCH_BYTES, CONTROL_LIMIT, QUANTUM_BYTES, Chunk, Outbox


def drained(outbox: Outbox[str]) -> list[str | Chunk]:
    items: list[str | Chunk] = []
    while outbox:
        items += outbox.take()
    return items


def test_an_idle_outbox_gives_a_single_frame_at_once() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.control("heartbeat")
    assert outbox.take() == ["heartbeat"]
    assert not outbox


@pytest.mark.req("NODE-8")
def test_control_overtakes_data_that_waited_before_it() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.body(1, b"x" * QUANTUM_BYTES)
    outbox.control("cancel")
    assert outbox.take()[0] == "cancel"


def test_a_lane_keeps_the_order_of_head_body_and_end() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.frame(1, "head")
    outbox.body(1, b"a")
    outbox.body(1, b"b")
    outbox.frame(1, "end")
    assert outbox.take() == ["head", Chunk(1, b"ab", False), "end"]


def test_the_mark_of_the_last_byte_joins_what_waits_before_it() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.body(7, b"abc")
    outbox.end_body(7)
    assert outbox.take() == [Chunk(7, b"abc", True)]


def test_an_empty_body_still_ends() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.end_body(7)
    assert outbox.take() == [Chunk(7, b"", True)]


@pytest.mark.req("NODE-8")
def test_lanes_take_turns_so_that_a_long_answer_starves_no_short_one() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.body(1, b"x" * 256 * 1024)
    outbox.body(2, b"short")
    first = [item for item in outbox.take() if isinstance(item, Chunk)]
    assert Chunk(2, b"short", False) in first


def test_dropping_an_attempt_tells_which_of_its_frames_were_never_sent() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.frame(1, "open")
    outbox.body(1, b"abc")
    assert outbox.drop(1) == ["open"]
    assert drained(outbox) == []


def test_dropping_an_attempt_that_was_sent_tells_of_none() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.frame(1, "open")
    outbox.take()
    assert outbox.drop(1) == ()


items = st.one_of(
    st.tuples(st.just("control"), st.just(0), st.just(b"")),
    st.tuples(st.just("frame"), st.integers(1, 4), st.just(b"")),
    st.tuples(
        st.just("body"),
        st.integers(1, 4),
        st.integers(1, 100_000).map(lambda size: bytes([size % 251]) * size),
    ),
    st.tuples(st.just("take"), st.just(0), st.just(b"")),
)


@given(st.lists(items, max_size=40))
def test_every_byte_and_frame_comes_out_once_in_the_order_of_its_lane(
    script: list[tuple[str, int, bytes]],
) -> None:
    outbox: Outbox[tuple[int, int]] = Outbox()
    put: dict[int, list[object]] = defaultdict(list)
    got: dict[int, list[object]] = defaultdict(list)

    def take() -> None:
        batch = outbox.take()
        assert sum(len(item.content) for item in batch if isinstance(item, Chunk)) <= BATCH_BYTES
        for item in batch:
            if isinstance(item, Chunk):
                got[item.attempt_id] += list(item.content)
            else:
                got[item[0]].append(item)

    for number, (action, lane, content) in enumerate(script):
        if action == "control":
            outbox.control((0, number))
            put[0].append((0, number))
        elif action == "frame":
            outbox.frame(lane, (lane, number))
            put[lane].append((lane, number))
        elif action == "body":
            outbox.body(lane, content)
            put[lane] += list(content)
        else:
            take()
    while outbox:
        take()
    assert got == put


def test_control_frames_that_nobody_takes_are_too_many_at_some_point() -> None:
    outbox: Outbox[str] = Outbox()
    for _ in range(CONTROL_LIMIT - 1):
        outbox.control("heartbeat")
    assert not outbox.is_flooded
    outbox.control("heartbeat")
    assert outbox.is_flooded
    outbox.take()
    assert not outbox.is_flooded


def test_large_control_frames_go_one_a_batch_before_all_data() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.body(1, b"data")
    outbox.bulk("first config")
    outbox.bulk("second config")
    outbox.control("heartbeat")
    assert outbox
    assert outbox.take() == ["heartbeat", "first config"]
    assert outbox.take() == ["second config"]
    assert outbox.take() == [Chunk(1, b"data", False)]
    assert not outbox


@pytest.mark.req("NODE-8")
def test_small_pieces_that_wait_take_about_what_credit_was_paid_for() -> None:
    outbox: Outbox[str] = Outbox()
    tracemalloc.start()
    try:
        for number in range(32_000):
            outbox.body(1, number.to_bytes(2, "big"))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * 64_000
    content = b"".join(item.content for item in drained(outbox) if isinstance(item, Chunk))
    assert content == b"".join(number.to_bytes(2, "big") for number in range(32_000))
