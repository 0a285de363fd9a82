"""Whatever an answer does, and however often it breaks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.budget import Request
from iop_edge.gate.evidence import Piece, Said
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.gate import Effect, Gate, Repair
from iop_edge.gate.options import GateOptions
from iop_shared.errors import Code, Fault

WORDS = st.sampled_from(
    ["the cat sat ", "on the mat. ", "again and ", "x", "\n- 1. ", "雨が降る。", ""]
)
SAID = st.one_of(
    st.builds(Said, st.sampled_from(["content", "content", "reasoning"]), WORDS),
    st.builds(Said, st.just("tool_call"), WORDS, st.integers(0, 1), st.just("c"), st.just("f")),
    st.builds(Said, st.just("finish"), st.just("stop")),
)
PIECES = st.lists(SAID, max_size=3).map(lambda said: Piece(tuple(said), raw=b"raw"))
EVENTS = st.one_of(
    PIECES,
    PIECES,
    st.builds(lambda piece, times: [piece] * times, PIECES, st.integers(2, 60)),
    st.sampled_from(["lost", "closed", "silent", "later", "end"]),
)
FAULTS = {
    "lost": Fault(Code.NODE_LOST, "lost"),
    "closed": Fault(Code.UPSTREAM_CLOSED, "closed"),
    "silent": Fault(Code.UPSTREAM_IDLE_TIMEOUT, "silent"),
}


@pytest.mark.req("GATE-2", "GATE-3", "GATE-5", "GATE-7")
@settings(deadline=None, max_examples=400)
@given(
    st.lists(EVENTS, max_size=40),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([None, 40, 100_000]),
    st.sampled_from(["blocking", "observe_only", None]),
    st.integers(20, 200),
)
def test_what_was_released_is_what_the_recorder_holds_and_no_budget_is_overdrawn(
    events: list[object],
    request_max: int,
    strategy_max: int,
    window: int | None,
    enforcement: str | None,
    bound: int,
):
    filters = () if enforcement is None else (_guard(enforcement, bound),)
    options = GateOptions(
        max_request_recoveries=request_max,
        max_strategy_recoveries=min(request_max, strategy_max),
        max_ingress_snapshot_bytes=1 << 20,
        environment="dev",
        filters=(),
        context_window_tokens=window,
    )
    request = Request(
        input_floor=1, asked_output=None, output_limit=None, count_floor=_words, estimate=_words
    )
    gate = Gate(options, lambda: request, {}, key=b"k" * 32)
    gate.begin(filters)
    told = {"content": "", "reasoning": ""}
    spent: Counter[str] = Counter()
    now, is_over, longest = 0.0, False, 0
    for event in events:
        now += 1.0
        for effect in _effects(gate, event, now):
            assert not is_over
            if isinstance(effect, Piece):
                for said in effect.said:
                    if said.kind in told:
                        told[said.kind] += said.text
                continue
            is_over = True
            if isinstance(effect, Repair):
                # A repair goes on from what the caller has read, to the letter.
                assert (effect.recorded.content, effect.recorded.reasoning) == (
                    told["content"], told["reasoning"]
                )  # fmt: skip
                assert effect.directive is None or window is not None
                spent[effect.strategy] += 1
        for piece in event if isinstance(event, list) else [event]:
            if isinstance(piece, Piece):
                longest = max(longest, sum(len(said.text) for said in piece.said))
        if is_over and spent.total() and not _has_failed(gate):
            gate.begin(filters)
            is_over = False
        elif is_over or event == "end":
            break
    assert spent.total() <= request_max
    assert all(count <= min(request_max, strategy_max) for count in spent.values())
    report = gate.report()
    assert report.released_chars == len(told["content"]) + len(told["reasoning"])
    if enforcement != "blocking":
        assert report.longest_hold_chars == 0
    assert report.longest_hold_chars <= 2 * (bound + longest)
    for word in ("the cat", "the mat", "雨"):
        assert word not in repr(report)
        assert word not in repr(gate)


def _effects(gate: Gate, event: object, now: float) -> list[Effect]:
    if isinstance(event, Piece):
        return gate.take([event], now)
    if isinstance(event, list):
        return gate.take(event, now)
    if event == "later":
        return gate.expire(now + 60.0)
    if event == "end":
        return gate.end(now)
    return gate.failed(FAULTS[str(event)])


def _has_failed(gate: Gate) -> bool:
    last = gate.report().recoveries[-1]
    return last.outcome == "refused"


def _guard(enforcement: str, bound: int) -> FilterAt:
    return FilterAt(
        name="repeat_guard",
        is_enabled=True,
        enforcement=enforcement,  # type: ignore[arg-type]
        capability="output.repeat_guard",
        hold_evidence_runes=bound,
        timeout_s=5.0,
    )


def _words(text: str) -> int:
    return len(text.split())
