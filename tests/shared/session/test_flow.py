from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.session.flow import (
    CREDIT_LIMIT_BYTES,
    INITIAL_WINDOW_BYTES,
    MAX_EVENT_BYTES,
    MAX_EVENT_COST_BYTES,
    MAX_WINDOW_BYTES,
    FlowViolation,
    ReceiveWindow,
    SendWindow,
    WindowBudget,
    event_cost,
)


def test_a_sender_without_credit_may_queue_nothing() -> None:
    window = SendWindow(10)
    assert window.spend(8) == 8
    assert window.spend(8) == 2
    assert window.spend(8) == 0
    window.grant(5)
    assert window.spend(8) == 5


def test_what_cannot_be_cut_is_spent_whole_or_not_at_all() -> None:
    window = SendWindow(10)
    assert not window.spend_whole(11)
    assert window.spend_whole(10)
    assert window.available == 0


def test_credit_returns_at_half_a_window() -> None:
    window = ReceiveWindow(WindowBudget(0), 100)
    window.received(100)
    assert window.consumed(49) == 0
    assert window.consumed(1) == 50


@pytest.mark.req("NODE-8")
def test_a_reader_that_does_not_read_returns_no_credit() -> None:
    window = ReceiveWindow(WindowBudget(), 100)
    window.received(100)
    assert window.unread_bytes == 100
    with pytest.raises(FlowViolation) as caught:
        window.received(1)
    assert (caught.value.actual, caught.value.allowed) == (1, 0)


def test_a_window_grows_for_a_reader_that_keeps_up_and_only_so_far() -> None:
    window = ReceiveWindow(WindowBudget())
    for _ in range(10):
        window.received(window.size)
        window.consumed(window.size)
    assert window.size == MAX_WINDOW_BYTES


def test_a_window_does_not_grow_for_a_reader_that_lags() -> None:
    window = ReceiveWindow(WindowBudget())
    window.received(INITIAL_WINDOW_BYTES)
    window.consumed(INITIAL_WINDOW_BYTES - 1)
    assert window.size == INITIAL_WINDOW_BYTES


def test_growth_stops_at_the_budget_and_comes_back_when_the_attempt_ends() -> None:
    budget = WindowBudget(INITIAL_WINDOW_BYTES)
    first, second = ReceiveWindow(budget), ReceiveWindow(budget)
    for window in (first, second):
        window.received(INITIAL_WINDOW_BYTES)
        window.consumed(INITIAL_WINDOW_BYTES)
    assert (first.size, second.size) == (2 * INITIAL_WINDOW_BYTES, INITIAL_WINDOW_BYTES)
    first.close()
    first.close()
    assert budget.left_bytes == INITIAL_WINDOW_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200_000)), max_size=60))
def test_sender_and_receiver_agree_on_the_credit_whatever_happens(
    steps: list[tuple[bool, int]],
) -> None:
    send, receive = SendWindow(), ReceiveWindow(WindowBudget())
    unread = 0
    for is_sending, size in steps:
        if is_sending:
            sent = send.spend(size)
            receive.received(sent)
            unread += sent
        else:
            read = min(size, unread)
            unread -= read
            send.grant(receive.consumed(read))
        assert 0 <= unread <= MAX_WINDOW_BYTES
        assert receive.unread_bytes == unread
    # A reader that reads all always gets the sender going again.
    send.grant(receive.consumed(unread))
    assert send.available * 2 >= receive.size


def test_more_credit_than_any_window_takes_is_a_violation() -> None:
    window = SendWindow()
    window.grant(CREDIT_LIMIT_BYTES - INITIAL_WINDOW_BYTES)
    with pytest.raises(FlowViolation) as caught:
        window.grant(1)
    assert (caught.value.actual, caught.value.allowed) == (
        CREDIT_LIMIT_BYTES + 1,
        CREDIT_LIMIT_BYTES,
    )


def test_a_window_of_another_initial_size_gives_back_just_what_it_grew_by() -> None:
    budget = WindowBudget(MAX_WINDOW_BYTES)
    window = ReceiveWindow(budget, 2 * INITIAL_WINDOW_BYTES)
    window.received(2 * INITIAL_WINDOW_BYTES)
    window.consumed(2 * INITIAL_WINDOW_BYTES)
    assert budget.left_bytes == MAX_WINDOW_BYTES - 2 * INITIAL_WINDOW_BYTES
    window.close()
    window.close()
    assert budget.left_bytes == MAX_WINDOW_BYTES


def test_an_event_costs_something_however_short_and_never_more_than_every_window_can_pay() -> None:
    sizes = (0, 64, 65, MAX_EVENT_COST_BYTES + 1, MAX_EVENT_BYTES)
    assert [event_cost(size) for size in sizes] == [
        *(64, 64, 65),
        *(MAX_EVENT_COST_BYTES, MAX_EVENT_COST_BYTES),
    ]


@pytest.mark.req("NODE-8")
def test_an_event_that_holds_more_than_it_pays_for_is_a_breach() -> None:
    with pytest.raises(FlowViolation, match="32769 bytes in one event, at most 32768 are allowed"):
        event_cost(MAX_EVENT_BYTES + 1)
