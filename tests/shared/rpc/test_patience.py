from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iop_shared.rpc.patience import BURST, PER_SECOND, Patience


def test_a_burst_is_borne_and_one_more_is_not() -> None:
    patience = Patience()
    assert all(patience.bears(100.0) for _ in range(BURST))
    assert not patience.bears(100.0)


def test_what_was_borne_is_forgotten_with_time() -> None:
    patience = Patience()
    for _ in range(BURST):
        patience.bears(100.0)
    assert all(patience.bears(101.0) for _ in range(PER_SECOND))
    assert not patience.bears(101.0)


@given(st.floats(0, 1e9))
def test_a_steady_trickle_is_borne_for_ever(start_s: float) -> None:
    patience = Patience()
    assert all(patience.bears(start_s + n / (PER_SECOND / 2)) for n in range(3 * BURST))


def test_a_long_rest_earns_no_more_than_one_burst() -> None:
    patience = Patience()
    patience.bears(0.0)
    assert all(patience.bears(1e9) for _ in range(BURST))
    assert not patience.bears(1e9)
