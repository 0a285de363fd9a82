"""What the gate does with an answer, piece by piece."""

from __future__ import annotations

import pytest

from iop_edge.gate.budget import Request
from iop_edge.gate.evidence import Piece, Recorded, Said
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.gate import CONTINUE, Effect, Fail, Gate, Repair
from iop_edge.gate.hold import MAX_HELD_BYTES
from iop_edge.gate.options import GateOptions
from iop_edge.gate.report import RecoveryReport
from iop_shared.errors import Code, Fault

LOST = Fault(Code.NODE_LOST, "gone")
LOOP = "I will check the door, and then I will go home again. "
SCHEMAS = {
    "weather": b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
}


def options(request: int = 3, strategy: int = 3, window: int | None = 4096) -> GateOptions:
    return GateOptions(
        max_request_recoveries=request,
        max_strategy_recoveries=strategy,
        max_ingress_snapshot_bytes=1 << 20,
        environment="dev",
        filters=(),
        context_window_tokens=window,
    )


def guard(
    enforcement: str = "blocking",
    runes: int = 500,
    *,
    enabled: bool = True,
    timeout_s: float = 5.0,
) -> FilterAt:
    return FilterAt(
        name="repeat_guard",
        is_enabled=enabled,
        enforcement=enforcement,  # type: ignore[arg-type]
        capability="output.repeat_guard",
        hold_evidence_runes=runes,
        timeout_s=timeout_s,
    )


def gate_of(
    opts: GateOptions | None = None,
    filters: tuple[FilterAt, ...] = (guard(),),
    *,
    asked: int | None = None,
    limit: int | None = None,
    input_floor: int = 10,
) -> Gate:
    gate = Gate(
        opts or options(),
        lambda: Request(
            input_floor=input_floor,
            asked_output=asked,
            output_limit=limit,
            count_floor=lambda text: len(text.split()),
            estimate=lambda text: len(text.split()),
        ),
        SCHEMAS,
        key=b"k" * 32,
    )
    gate.begin(filters)
    return gate


def content(text: str) -> Piece:
    return Piece((Said("content", text),), raw=text.encode())


def thought(text: str) -> Piece:
    return Piece((Said("reasoning", text),), raw=text.encode())


def call(arguments: str, name: str = "weather") -> Piece:
    return Piece((Said("tool_call", arguments, 0, "c1", name),), raw=arguments.encode())


FINISH = Piece((Said("finish", "stop"),), raw=b"stop")


def text_of(effects: list[Effect]) -> str:
    return "".join(
        said.text
        for effect in effects
        if isinstance(effect, Piece)
        for said in effect.said
        if said.kind == "content"
    )


def feed(gate: Gate, text: str, size: int = 5, now: float = 0.0) -> list[Effect]:
    effects: list[Effect] = []
    for at in range(0, len(text), size):
        effects += gate.take([content(text[at : at + size])], now)
        if effects and not isinstance(effects[-1], Piece):
            break
    return effects


def recoveries(gate: Gate) -> list[tuple[str, str, str | None]]:
    def row(one: RecoveryReport) -> tuple[str, str, str | None]:
        return one.strategy, one.outcome, one.refusal

    return [row(one) for one in gate.report().recoveries]


@pytest.mark.req("GATE-1")
def test_what_is_under_no_suspicion_goes_on_unchanged_in_the_call_that_brought_it():
    gate = gate_of()
    for piece in (Piece((), b"head"), content("Once upon a time "), content("there was"), FINISH):
        assert gate.take([piece], 0.0) == [piece]
        assert gate.deadline is None
    assert gate.end(0.0) == []


@pytest.mark.req("GATE-7", "GATE-4")
def test_a_loop_is_cut_after_its_first_occurrence_and_a_continuation_follows():
    gate = gate_of()
    effects = feed(gate, "So it began. " + LOOP * 12)
    assert isinstance(effects[-1], Repair)
    released = text_of(effects)
    assert released.startswith("So it began. ")
    assert released.count("I will check the door") == 1
    assert len(released) <= len("So it began. " + LOOP) + 16
    repair = effects[-1]
    assert repair.strategy == "continuation_repair"
    assert repair.recorded.content == released
    assert repair.directive == CONTINUE
    assert not repair.avoids_tried
    [match] = gate.report().matches
    assert (match.filter, match.attempt, match.channel) == ("repeat_guard", 1, "content")
    assert match.fingerprint
    assert "door" not in repr(gate.report())


@pytest.mark.req("GATE-3")
def test_a_filter_that_only_observes_notes_the_loop_and_changes_nothing():
    gate = gate_of(filters=(guard("observe_only"),))
    told = LOOP * 12
    assert text_of(feed(gate, told)) == told
    assert gate.report().longest_hold_chars == 0
    assert len(gate.report().matches) == 1
    assert gate.report().filters[0].enforcement == "observe_only"


@pytest.mark.req("GATE-3")
@pytest.mark.parametrize("filters", [(), (guard(enabled=False),)])
def test_without_an_enabled_filter_nothing_is_looked_for(filters: tuple[FilterAt, ...]):
    gate = gate_of(filters=filters)
    assert text_of(feed(gate, LOOP * 12)) == LOOP * 12
    assert gate.report().filters == ()


@pytest.mark.req("CFG-19", "GATE-3")
def test_what_is_held_is_let_go_when_its_time_is_up():
    gate = gate_of()
    told = "A verse of it. " + LOOP + LOOP[:30]
    released = text_of(feed(gate, told, now=1.0))
    assert released != told
    assert gate.deadline == 6.0
    assert gate.expire(5.9) == []
    assert released + text_of(gate.expire(6.0)) == told
    assert gate.deadline is None


@pytest.mark.req("CFG-19")
def test_no_more_is_held_than_the_bound_and_the_piece_that_fills_it():
    gate = gate_of(filters=(guard(runes=100),))
    feed(gate, "Intro. " + (LOOP + "x") * 2)
    assert 0 < gate.report().longest_hold_chars <= 105


@pytest.mark.req("GATE-3", "GATE-4")
def test_text_under_suspicion_is_held_while_it_may_go_on():
    gate = gate_of(options(request=0))
    text = content("A verse of it. " + LOOP + LOOP[:30])
    assert gate.take([text], 0.0) == []
    assert gate.expire(5.0) == [text]


@pytest.mark.req("CFG-19", "GATE-4")
@pytest.mark.parametrize(
    "follows",
    [content("Unlike it."), call("{}"), thought("Unlike it.")],
    ids=lambda one: one.said[0].kind,
)
def test_suspicion_ends_with_its_text_and_holds_nothing_that_follows(follows: Piece):
    gate = gate_of(options(request=0))
    make = content if follows.said[0].kind == "reasoning" else thought
    suspected = make("A verse of it. " + LOOP + LOOP[:30])
    assert gate.take([suspected], 0.0) == []
    assert gate.take([follows], 1.0) == [suspected, follows]
    assert gate.deadline is None
    assert gate.take([follows], 2.0) == [follows]


@pytest.mark.req("GATE-4")
def test_a_loop_is_found_also_where_the_channels_take_turns():
    gate = gate_of()
    effects: list[Effect] = []
    for at in range(0, 20 * len(LOOP), 6):
        pieces = [content((LOOP * 21)[at : at + 6]), thought(f"{at * 7919 % 10007} ")]
        effects += gate.take(pieces, 0.0)
        if effects and isinstance(effects[-1], Repair):
            break
    assert isinstance(effects[-1], Repair)
    assert gate.report().matches[0].channel == "content"
    assert len(text_of(effects)) < 12 * len(LOOP)


@pytest.mark.req("GATE-4")
def test_a_continuation_whose_reasoning_loops_is_stopped_though_nobody_is_told_it():
    gate = gate_of(options(request=2, strategy=2))
    gate.take([content("It began so.")], 0.0)
    [repair] = gate.failed(LOST)
    gate.begin((guard(),))
    effects: list[Effect] = []
    for at in range(0, 40 * len(LOOP), 5):
        if effects := list(gate.take([Piece((Said("reasoning", (LOOP * 40)[at : at + 5]),))], 0.0)):
            break
    [repair] = effects
    assert isinstance(repair, Repair)
    assert repair.recorded == Recorded("It began so.")
    assert [match.channel for match in gate.report().matches] == ["reasoning"]


@pytest.mark.req("GATE-7", "OAI-7")
@pytest.mark.parametrize("code", [Code.UPSTREAM_IDLE_TIMEOUT, Code.UPSTREAM_INVALID])
@pytest.mark.parametrize("held", [[call("{}"), FINISH], [content(LOOP + LOOP[:30])]])
def test_what_is_held_goes_on_before_a_fault_that_nothing_is_asked_for_again_after(
    code: Code, held: list[Piece]
):
    gate = gate_of()
    assert gate.take(held, 0.0) == []
    fault = Fault(code, "odd")
    assert gate.failed(fault) == [*held, Fail(fault)]


@pytest.mark.req("GATE-7", "OAI-7")
def test_behind_a_finish_a_lost_node_is_asked_for_an_end_and_no_word_more():
    gate = gate_of(asked=100, limit=100)
    gate.take([content("That is all."), FINISH], 0.0)
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert repair.output_tokens == 1


@pytest.mark.req("GATE-7")
def test_a_finish_that_more_text_follows_was_none():
    gate = gate_of(asked=100, limit=100)
    gate.take([content("It began"), FINISH, content(" so.")], 0.0)
    [repair] = gate.failed(Fault(Code.UPSTREAM_CLOSED, "cut"))
    assert isinstance(repair, Repair)
    assert repair.output_tokens != 1


@pytest.mark.req("GATE-5")
def test_what_a_seam_holds_of_a_reasoning_goes_before_the_answer_that_follows():
    gate = gate_of()
    gate.take([thought("The answer is forty-two and not more, so I think.")], 0.0)
    gate.failed(LOST)
    gate.begin((guard(),))
    [first, *_] = gate.take(
        [Piece((Said("reasoning", "The answer"),)), Piece((Said("content", "Hello."),))], 0.0
    )
    assert isinstance(first, Piece)
    said = [one for piece in [first, *_] if isinstance(piece, Piece) for one in piece.said]
    assert [one.kind for one in said] == ["reasoning", "content"]


@pytest.mark.req("GATE-7")
def test_a_lost_node_is_replayed_while_nothing_was_released_and_continued_after():
    gate = gate_of()
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert (repair.strategy, repair.directive, repair.avoids_tried) == ("exact_replay", None, True)
    gate.begin((guard(),))
    feed(gate, "half an answer")
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert repair.strategy == "continuation_repair"
    assert repair.recorded.content == "half an answer"
    assert repair.temperature == 0.2


@pytest.mark.req("GATE-4", "GATE-7")
@pytest.mark.parametrize(
    "code", [code for code in Code if code not in (Code.NODE_LOST, Code.UPSTREAM_CLOSED)]
)
def test_no_other_fault_is_ever_tried_again(code: Code):
    gate = gate_of()
    fault = Fault(code, "no")
    assert gate.failed(fault) == [Fail(fault)]
    assert gate.report().recoveries == ()


@pytest.mark.req("GATE-5")
def test_continuations_grow_warmer_and_other_strategies_do_not_count():
    gate = gate_of()
    gate.failed(LOST)
    temperatures = []
    for _ in range(2):
        gate.begin(())
        feed(gate, "some words ")
        [repair] = gate.failed(LOST)
        assert isinstance(repair, Repair)
        temperatures.append(repair.temperature)
    assert temperatures == [0.2, 0.4]


@pytest.mark.req("GATE-2", "CFG-19")
@pytest.mark.parametrize(
    ("request_max", "strategy_max", "began", "refusal"),
    [
        (0, 0, 0, "request_budget_spent"),
        (3, 0, 0, "strategy_budget_spent"),
        (1, 1, 1, "request_budget_spent"),
        (3, 1, 1, "strategy_budget_spent"),
        (3, 3, 3, "request_budget_spent"),
    ],
)
def test_as_many_recoveries_begin_as_the_budgets_allow(
    request_max: int, strategy_max: int, began: int, refusal: str
):
    gate = gate_of(options(request_max, strategy_max))
    feed(gate, "words ")
    for _ in range(began):
        [step] = gate.failed(LOST)
        assert isinstance(step, Repair)
        gate.begin(())
    assert gate.failed(LOST) == [Fail(LOST)]
    assert [one.refusal for one in gate.report().recoveries] == [None] * began + [refusal]


@pytest.mark.req("GATE-7")
def test_a_loop_that_no_repair_is_left_for_ends_the_run_before_it_is_read():
    gate = gate_of(options(0, 0))
    effects = feed(gate, LOOP * 12)
    assert isinstance(effects[-1], Fail)
    assert effects[-1].fault.code is Code.UPSTREAM_INVALID
    assert text_of(effects).count("check the door") == 1


@pytest.mark.req("GATE-5", "REF-11")
@pytest.mark.parametrize(
    ("window", "asked", "refusal"),
    [
        (None, None, "context_window_unknown"),
        (20, None, "context_window_exceeded"),
        (100, 90, "context_window_exceeded"),
    ],
)
def test_a_window_that_is_unknown_or_exceeded_refuses_the_rebuild(
    window: int | None, asked: int | None, refusal: str
):
    gate = gate_of(options(window=window), asked=asked, limit=asked)
    feed(gate, "one two three four ")
    assert gate.failed(LOST) == [Fail(LOST)]
    assert recoveries(gate) == [("continuation_repair", "refused", refusal)]


@pytest.mark.req("GATE-5")
def test_what_was_said_counts_against_the_output_limit_and_a_token_is_always_left():
    gate = gate_of(asked=10, limit=10)
    feed(gate, "one two three four ", size=100)
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert repair.output_tokens == 6
    gate = gate_of(asked=3, limit=3)
    feed(gate, "one two three four ", size=100)
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert repair.output_tokens == 1


@pytest.mark.req("GATE-7")
def test_tool_calls_are_held_to_the_end_and_released_when_they_fit():
    gate = gate_of()
    feed(gate, "Let me look. ")
    pieces = [call('{"city":'), call('"Oslo"}'), FINISH]
    assert [gate.take([piece], 0.0) for piece in pieces] == [[], [], []]
    assert gate.deadline is None
    assert gate.end(0.0) == pieces
    assert gate.report().recoveries == ()


@pytest.mark.req("CFG-19", "GATE-3")
def test_whenever_the_deadline_comes_something_is_let_go():
    """Times as a clock of whole milliseconds gives them, where sums and differences round apart."""
    for since_ms in range(1, 40_000_000, 99_971):
        gate = gate_of(filters=(guard(timeout_s=1.777),))
        feed(gate, "A verse. " + LOOP + LOOP[:30], now=since_ms / 1000)
        assert gate.deadline is not None
        assert gate.expire(gate.deadline)


@pytest.mark.req("GATE-7")
def test_no_more_is_held_than_a_bound_whatever_stands_behind_a_tool_call():
    for said in (Said("content", "x"), Said("tool_call", "", 0), Said("finish", "stop")):
        gate = gate_of(filters=())
        assert gate.take([call('{"ci')], 0.0) == []
        padded = Piece((said,), b" " * 2**20)
        released = [gate.take([padded], 0.0) for _ in range(MAX_HELD_BYTES // 2**20 + 2)]
        assert [bool(one) for one in released].index(True) == MAX_HELD_BYTES // 2**20 - 1
        assert len(released[-1]) == 1
        assert gate.end(0.0) == []
        assert gate.report().recoveries == ()


@pytest.mark.req("GATE-7")
def test_an_error_that_the_upstream_tells_amid_a_tool_call_is_passed_on_and_mended_by_nothing():
    gate = gate_of()
    pieces = [call('{"ci'), Piece((), b"error")]
    assert [gate.take([piece], 0.0) for piece in pieces] == [[], []]
    assert gate.end(0.0, has_failed=True) == pieces
    assert gate.report().recoveries == ()


@pytest.mark.req("GATE-7")
def test_an_error_event_of_a_later_attempt_reaches_the_caller():
    gate = gate_of()
    feed(gate, "some words")
    gate.failed(LOST)
    gate.begin((guard(),))
    told = Piece((), b"error")
    assert gate.take([told], 0.0) == [told]
    assert gate.end(0.0, has_failed=True) == []
    assert recoveries(gate) == [("continuation_repair", "failed", None)]


@pytest.mark.req("GATE-7", "GATE-2")
def test_calls_that_a_repair_was_to_replace_go_on_where_the_repair_itself_fails():
    silent = Fault(Code.UPSTREAM_IDLE_TIMEOUT, "nothing came")
    for request, held, fault in ((1, (), silent), (1, (), LOST), (2, (call("{"),), silent)):
        gate = gate_of(options(request, 1))
        gate.take([call("{"), FINISH], 0.0)
        [repair] = gate.end(0.0)
        assert isinstance(repair, Repair)
        assert not gate.has_ended
        gate.begin((guard(),))
        assert not gate.take(held, 0.0)
        assert gate.failed(fault) == [call("{"), FINISH]
        assert gate.has_ended
        assert recoveries(gate)[0] == ("schema_repair", "failed", None)


@pytest.mark.req("GATE-7")
def test_what_nobody_could_repeat_is_neither_replayed_nor_continued():
    gate = gate_of()
    gate.take([Piece((Said("other", ""),), b"spoken")], 0.0)
    assert gate.failed(LOST) == [Fail(LOST)]
    assert recoveries(gate) == [("continuation_repair", "refused", "other_output_released")]


@pytest.mark.req("GATE-7")
def test_a_replay_that_gave_a_whole_answer_has_recovered_whatever_its_calls_are_worth():
    gate = gate_of(options(1, 1))
    gate.failed(LOST)
    gate.begin((guard(),))
    gate.take([call("{")], 0.0)
    assert gate.end(0.0) == []
    assert [one[1] for one in recoveries(gate)] == ["recovered"]


@pytest.mark.req("GATE-3", "GATE-4")
def test_loops_of_both_channels_that_come_at_once_are_both_noted():
    gate = gate_of(filters=(guard("observe_only"),))
    said = Said("reasoning", LOOP * 12), Said("content", LOOP * 12)
    gate.take([Piece(said, b"raw")], 0.0)
    assert [one.channel for one in gate.report().matches] == ["reasoning", "content"]
    gate = gate_of()
    effects = gate.take([Piece(said, b"raw")], 0.0)
    assert isinstance(effects[-1], Repair)
    assert text_of(effects) == ""


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("arguments", ['{"city":', '{"city": 3}', "[]", "{}"])
def test_arguments_that_do_not_fit_are_asked_for_again(arguments: str):
    gate = gate_of()
    gate.take([call(arguments)], 0.0)
    gate.take([FINISH], 0.0)
    [repair] = gate.end(0.0)
    assert isinstance(repair, Repair)
    assert (repair.strategy, repair.temperature) == ("schema_repair", None)
    assert repair.directive
    assert "weather" in repair.directive
    gate.begin((guard(),))
    good = [call('{"city":"Oslo"}'), FINISH]
    for piece in good:
        gate.take([piece], 0.0)
    assert gate.end(0.0) == good
    assert gate.report().is_repaired


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_arguments_that_a_limit_or_a_filter_cut_short_are_not_asked_for_again(reason: str):
    gate = gate_of()
    pieces = [call('{"ci'), Piece((Said("finish", reason),), raw=b"cut")]
    for piece in pieces:
        gate.take([piece], 0.0)
    assert gate.end(0.0) == pieces
    assert gate.report().recoveries == ()


@pytest.mark.req("GATE-7")
def test_calls_that_cannot_be_set_right_go_on_as_the_model_made_them():
    spent = gate_of(options(0, 0))
    assert spent.take([call("{")], 0.0) == [call("{")]
    unknown = gate_of(options(window=None))
    unknown.take([call("{")], 0.0)
    assert unknown.end(0.0) == [call("{")]
    assert recoveries(unknown) == [("schema_repair", "refused", "context_window_unknown")]
    refused = gate_of()
    refused.take([call("{")], 0.0)
    [repair] = refused.end(0.0)
    assert isinstance(repair, Repair)
    assert refused.not_begun("no_provider") == [call("{")]
    assert recoveries(refused) == [("schema_repair", "refused", "no_provider")]


@pytest.mark.req("GATE-7")
def test_a_cut_among_held_tool_calls_is_mended_and_one_after_released_calls_is_not():
    gate = gate_of()
    gate.take([call('{"ci')], 0.0)
    [repair] = gate.failed(LOST)
    assert isinstance(repair, Repair)
    assert repair.strategy == "exact_replay"
    released = gate_of(options(0, 0))
    released.take([call('{"ci')], 0.0)
    assert released.failed(LOST) == [Fail(LOST)]
    assert recoveries(released)[-1][2] == "tool_call_released"


@pytest.mark.req("GATE-5")
def test_a_continuation_that_repeats_the_last_words_or_thinks_again_is_trimmed():
    gate = gate_of()
    feed(gate, "The cat sat on the mat")
    gate.failed(LOST)
    gate.begin((guard(),))
    effects = gate.take([Piece((Said("reasoning", "They want me to go on."),))], 0.0)
    effects += gate.take([Piece((Said("content", "on the mat and slept."),))], 0.0)
    effects += gate.take([Piece((Said("finish", "stop"),))], 0.0)
    effects += gate.end(0.0)
    assert text_of(effects) == " and slept."
    assert all(said.kind != "reasoning" for one in effects for said in one.said)  # type: ignore[union-attr]
    [recovery] = gate.report().recoveries
    assert (recovery.outcome, recovery.trimmed_chars) == ("recovered", len("on the mat"))


@pytest.mark.req("GATE-4", "GATE-7")
def test_a_loop_across_the_seam_is_known_by_what_was_released_before():
    gate = gate_of()
    feed(gate, "Well. " + LOOP)
    gate.failed(LOST)
    gate.begin((guard(),))
    effects = feed(gate, LOOP * 10)
    assert isinstance(effects[-1], Repair)
    assert text_of(effects).count("check the door") == 0


@pytest.mark.req("GATE-5")
def test_a_repair_that_is_refused_a_provider_ends_the_run_with_the_fault_it_was_to_mend():
    gate = gate_of()
    feed(gate, "words ")
    gate.failed(LOST)
    assert gate.not_begun("no_provider") == [Fail(LOST)]
    assert recoveries(gate) == [("continuation_repair", "refused", "no_provider")]


@pytest.mark.req("SEC-1", "GATE-4")
def test_nothing_that_a_model_said_is_in_a_report_or_in_a_repr():
    gate = gate_of()
    effects = feed(gate, "canary words here " + LOOP * 12)
    shown = f"{gate!r} {gate.report()!r} {effects[-1]!r}"
    assert "canary" not in shown
    assert "door" not in shown
