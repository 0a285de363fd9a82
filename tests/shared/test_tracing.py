from __future__ import annotations

import pytest

from iop_shared.tracing import TraceContext, known

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, True)),
        (f"cc-{TRACE}-{SPAN}-01-what-is-to-come", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
    ],
)
def test_a_traceparent_is_taken_as_the_standard_has_it_or_not_at_all(
    given: str, expected: TraceContext | None
) -> None:
    assert TraceContext.parse(given) == expected


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_child_is_another_span_of_the_same_trace_and_passes_the_decision_on(
    is_sampled: bool,
) -> None:
    parent = TraceContext(TRACE, SPAN, is_sampled)
    child = parent.child()
    assert (child.trace_id, child.is_sampled) == (TRACE, is_sampled)
    assert child.span_id != SPAN
    assert TraceContext.parse(child.traceparent) == child


@pytest.mark.req("OPS-3")
def test_roots_are_traces_of_their_own_and_never_void(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([bytes(16), b"\1" * 16, bytes(8), b"\2" * 8])
    monkeypatch.setattr("os.urandom", lambda size: next(drawn))
    assert TraceContext.root() == TraceContext("01" * 16, "02" * 8, True)


def test_what_was_never_known_is_no_attribute_and_a_zero_is_one() -> None:
    assert known(a=0, b=None, c="", d="x") == {"iop.a": 0, "iop.d": "x"}
