"""The readers, the gate and the stitch together: every attempt breaks off, and one answer comes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.budget import Request
from iop_edge.gate.evidence import Piece, Said
from iop_edge.gate.gate import Gate, Repair
from iop_edge.gate.options import GateOptions
from iop_edge.runtime.work import Surface
from iop_shared.errors import Code, Fault
from tests.edge.serve.dialect.gated.rig import (
    SURFACES,
    USAGE,
    call,
    content,
    finish,
    heard,
    joined,
    read_first,
    read_later,
    work_for,
)

PATHS = ("tunnel", "normalized")
OPTIONS = GateOptions(
    max_request_recoveries=3,
    max_strategy_recoveries=3,
    max_ingress_snapshot_bytes=1_000_000,
    environment="dev",
    filters=(),
    context_window_tokens=100_000,
)
REQUEST = Request(
    input_floor=1, asked_output=None, output_limit=None, count_floor=len, estimate=len
)
CALL = call(0, '{"a": 1}', "t0", "look")


def attempt_texts(letters: str) -> st.SearchStrategy[list[Said]]:
    """Attempts that share no letter, so that no overlap is found at a seam."""
    return st.lists(st.text(letters, min_size=1, max_size=8).map(content), max_size=5)


@pytest.mark.req("GATE-1", "GATE-5", "GATE-7")
@pytest.mark.parametrize("surface", SURFACES)
@settings(max_examples=60, deadline=None)
@given(
    attempts=st.tuples(attempt_texts("abc"), attempt_texts("123"), attempt_texts("XYZ")),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    paths=st.tuples(*[st.sampled_from(PATHS)] * 3),
    is_stream=st.booleans(),
    calls=st.booleans(),
)
def test_an_answer_outlives_two_attempts_that_break_off(
    surface: Surface,
    attempts: tuple[list[Said], ...],
    cuts: tuple[int, int],
    paths: tuple[str, ...],
    is_stream: bool,
    calls: bool,
) -> None:
    work = work_for(surface, is_stream)
    gate = Gate(OPTIONS, REQUEST, {}, key=b"k" * 32)
    stitch = work.stitch()
    written: list[bytes] = []
    released: list[Said] = []
    ends = [CALL, finish("tool_calls")] if calls else [finish()]

    def release(effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Piece):
                written.append(stitch.write(effect))
                released.extend(effect.said)

    for number, (texts, path) in enumerate(zip(attempts, paths, strict=True)):
        gate.begin(())
        read = read_later if gate.has_released else read_first
        pieces = read(work, surface, path, [*texts, *ends])
        is_last = number == len(attempts) - 1
        if not is_last:
            # It never comes to its end.
            before = next(n for n, piece in enumerate(pieces) if ends[-1] in piece.said)
            pieces = pieces[: min(cuts[number], before)]
        release(list(gate.take(pieces, 0.0)))
        if is_last:
            release(list(gate.end(0.0)))
        else:
            (step,) = gate.failed(Fault(Code.NODE_LOST, "the node is gone"))
            assert isinstance(step, Repair)
    told = heard(surface, is_stream, b"".join([*written, stitch.end(USAGE)]))
    assert told.content == joined(released, "content")
    assert told.content.endswith(joined(attempts[-1], "content"))
    assert told.finish == ("tool_calls" if calls else "stop")
    assert [one[1] for one in told.calls] == (["look"] if calls else [])
