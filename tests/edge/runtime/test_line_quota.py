from __future__ import annotations

import pytest

from iop_edge.runtime.line_quota import BURST_LINES, INTERVAL_S, LineQuota


@pytest.mark.req("OPS-3")
def test_after_a_burst_a_peer_may_cause_a_line_now_and_then() -> None:
    quota = LineQuota()
    assert [quota.allows(100.0) for _ in range(BURST_LINES + 2)] == [
        *(True for _ in range(BURST_LINES)),
        *(False, False),
    ]
    assert not quota.allows(100.0 + INTERVAL_S / 2)
    assert quota.allows(100.0 + INTERVAL_S)
    assert quota.take_suppressed() == 3
    assert quota.take_suppressed() == 0


def test_a_burst_fills_again_and_no_further() -> None:
    quota = LineQuota()
    while quota.allows(0.0):
        pass
    later = 1000 * INTERVAL_S * BURST_LINES
    assert [quota.allows(later) for _ in range(BURST_LINES + 1)].count(True) == BURST_LINES
