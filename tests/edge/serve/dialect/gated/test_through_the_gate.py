"""The readers, the gate and the stitch together: every attempt breaks off, and one answer comes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.gate.budget import Request
from iop_edge.gate.evidence import Piece, Said
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.gate import Effect, Gate, Repair
from iop_edge.gate.options import GateOptions
from iop_edge.runtime.work import Surface
from iop_shared.errors import Code, Fault
from tests.edge.serve.dialect.gated.rig import (
    SURFACES,
    USAGE,
    Heard,
    call,
    content,
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


LOOP = "I will check the door, and then I will go home again. "
BOUND = 300
GUARD = FilterAt(
    name="repeat_guard",
    is_enabled=True,
    enforcement="blocking",
    capability="output.repeat_guard",
    hold_evidence_runes=BOUND,
    timeout_s=5.0,
)


@pytest.mark.req("CFG-19", "GATE-4", "GATE-7")
@pytest.mark.parametrize("at_once", [2, 7, 1000])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_loop_is_cut_at_the_same_character_however_many_events_come_at_once(
    surface: Surface, at_once: int
) -> None:
    texts = ["So ", "it ", "began", ". ", *(LOOP * 9).replace(" ", " |").split("|")]
    events = upstream(surface, True, [thought("hm"), *map(content, texts), finish()])

    def read(at_once: int) -> tuple[Heard, Repair, int]:
        """What the caller reads, the repair, and the most that was held."""
        work = work_for(surface)
        gate = Gate(OPTIONS, lambda: REQUEST, {}, key=b"k" * 32)
        gate.begin((GUARD,))
        reader, stitch = relayed_reader(work, is_first=True), work.stitch(1 << 24)
        effects: list[Effect] = []
        for at in range(0, len(events), at_once):
            effects += gate.take(reader.feed(b"".join(events[at : at + at_once])), 0.0)
        repair = effects[-1]
        assert isinstance(repair, Repair)
        later = read_later(work, surface, "tunnel", [content("Enough."), finish()])
        written = [stitch.write(one) for one in [*effects, *later] if isinstance(one, Piece)]
        told = heard(surface, True, b"".join([*written, stitch.end(USAGE)]))
        return told, repair, gate.report().longest_hold_chars

    told, repair, held = read(at_once)
    assert told.content == repair.recorded.content + "Enough."
    assert told.content.startswith("So it began. I will check the door")
    assert told.content.count("check") == 1
    assert held <= BOUND + max(map(len, texts))
    one_by_one, expected, _ = read(1)
    assert (told, repair.recorded) == (one_by_one, expected.recorded)


@pytest.mark.req("CFG-19", "GATE-3")
@pytest.mark.parametrize("surface", SURFACES)
def test_events_that_came_together_are_held_and_let_go_one_by_one(surface: Surface) -> None:
    texts = [*(LOOP + LOOP).replace(" ", " |").split("|"), "Or ", "so ", "he ", "said."]
    events = upstream(surface, True, [*map(content, texts), finish()])
    cut = next(at for at, event in enumerate(events) if b'"Or "' in event)
    gate = Gate(OPTIONS, lambda: REQUEST, {}, key=b"k" * 32)
    gate.begin((GUARD,))
    reader = relayed_reader(work_for(surface), is_first=True)
    first = gate.take(reader.feed(b"".join(events[:cut])), 1.0)
    assert gate.deadline == 6.0
    assert len(first) > 1
    rest = [*gate.take(reader.feed(b"".join(events[cut:])), 2.0), *gate.end(2.0)]
    pieces = [effect for effect in [*first, *rest] if isinstance(effect, Piece)]
    whole = b"".join(events).replace(b'"served"', b'"mine"')
    assert b"".join(piece.raw or b"" for piece in pieces) == whole
    released = joined([said for piece in pieces[: len(first)] for said in piece.said], "content")
    assert released.startswith(LOOP)
    assert len(released) < len(LOOP) + 24


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
    gate = Gate(OPTIONS, lambda: REQUEST, {}, key=b"k" * 32)
    stitch = work.stitch(1 << 24)
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
