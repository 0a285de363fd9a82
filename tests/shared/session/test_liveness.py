from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.session.liveness import HEARTBEAT_INTERVAL_S, SILENCE_LIMIT_S, Liveness


def test_a_heartbeat_is_due_after_an_interval_in_which_nothing_was_said() -> None:
    liveness = Liveness(0.0, 4.0, 12.0)
    assert not liveness.is_heartbeat_due(3.9)
    assert liveness.is_heartbeat_due(4.0)
    liveness.said(4.0)
    assert not liveness.is_heartbeat_due(7.9)


@pytest.mark.req("NODE-6")
def test_a_peer_that_says_nothing_is_lost_within_15_seconds() -> None:
    liveness = Liveness(0.0)
    assert not liveness.is_lost(SILENCE_LIMIT_S - 0.001)
    assert liveness.is_lost(SILENCE_LIMIT_S)
    # Whoever asks at every `next_due` asks at most one heartbeat after the limit.
    assert SILENCE_LIMIT_S + HEARTBEAT_INTERVAL_S > 15 >= SILENCE_LIMIT_S


def test_anything_heard_is_a_sign_of_life() -> None:
    liveness = Liveness(0.0, 4.0, 12.0)
    liveness.heard(11.0)
    assert not liveness.is_lost(22.9)
    assert liveness.is_lost(23.0)


def test_the_next_due_instant_is_exactly_when_an_answer_changes() -> None:
    liveness = Liveness(0.0, 4.0, 12.0)
    liveness.said(9.0)
    assert liveness.next_due() == 12.0
    assert liveness.is_lost(liveness.next_due())


@pytest.mark.parametrize(("interval_s", "limit_s"), [(0.0, 1.0), (5.0, 5.0), (6.0, 5.0)])
def test_an_interval_that_no_heartbeat_could_meet_is_refused(
    interval_s: float, limit_s: float
) -> None:
    with pytest.raises(ValueError, match="needs a longer silence limit"):
        Liveness(0.0, interval_s, limit_s)


@given(st.floats(0, 1e9), st.floats(0, 30), st.floats(0, 30))
def test_whoever_asks_at_the_next_due_instant_need_not_ask_again_at_once(
    begun: float, heard_after: float, said_after: float
) -> None:
    liveness = Liveness(begun)
    liveness.heard(begun + heard_after)
    liveness.said(begun + said_after)
    due = liveness.next_due()
    assert liveness.is_lost(due) or liveness.is_heartbeat_due(due)
