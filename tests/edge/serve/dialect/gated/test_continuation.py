"""A continuation is the caller's own request, to the byte, and two messages behind it."""

import json
from typing import Any

import pytest

from iop_edge.gate.evidence import Recorded
from iop_edge.pool.estimate import estimate_tokens
from iop_edge.runtime.work import Surface
from iop_edge.serve.openai.work import CallerWork
from iop_shared.ids import Target
from tests.edge.serve.dialect.gated.rig import SURFACES, work_of

GO_ON = "Go on."
SAID = Recorded("one two", "")


def continued(
    work: CallerWork,
    recorded: Recorded = SAID,
    *,
    temperature: float | None = None,
    output_tokens: int | None = None,
) -> CallerWork:
    return work.continued(recorded, GO_ON, temperature=temperature, output_tokens=output_tokens)


def sent(work: CallerWork) -> bytes:
    return work.upstream_body(Target("served"))


def body(work: CallerWork) -> Any:
    return json.loads(sent(work))


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(
    ("surface", "given", "expected"),
    [
        (
            "chat",
            b'{"model":"m", "messages" : [ {"role":"user","content":"\\u00e9"} ], "x": 1.50}',
            (
                b'{"model":"served","messages":[ {"role":"user","content":"\\u00e9"},'
                b'{"role":"assistant","content":"one two"},{"role":"user","content":"Go on."}],'
                b'"x":1.50}'
            ),
        ),
        (
            "messages",
            b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"max_tokens":5}',
            (
                b'{"model":"served","messages":[{"role":"user","content":"\\u00e9"},'
                b'{"role":"assistant","content":[{"type":"text","text":"one two"}]},'
                b'{"role":"user","content":[{"type":"text","text":"Go on."}]}],"max_tokens":5}'
            ),
        ),
        (
            "responses",
            b'{"model":"m","input":"\\u00e9","store":false}',
            (
                b'{"model":"served","input":[{"type":"message","role":"user","content":"\\u00e9"},'
                b'{"type":"message","role":"assistant","content":"one two"},'
                b'{"type":"message","role":"user","content":"Go on."}],"store":false}'
            ),
        ),
        (
            "responses",
            b'{"model":"m","input":[ ]}',
            (
                b'{"model":"served","input":['
                b'{"type":"message","role":"assistant","content":"one two"},'
                b'{"type":"message","role":"user","content":"Go on."}]}'
            ),
        ),
        (
            "responses",
            b'{"model":"m","previous_response_id":"r"}',
            (
                b'{"model":"served","previous_response_id":"r","input":['
                b'{"type":"message","role":"assistant","content":"one two"},'
                b'{"type":"message","role":"user","content":"Go on."}]}'
            ),
        ),
    ],
)
def test_what_the_caller_wrote_stays_as_it_was(
    surface: Surface, given: bytes, expected: bytes
) -> None:
    work = work_of(surface, given)
    before = sent(work)
    assert sent(continued(work)) == expected
    assert sent(work) == before


def minimal(surface: Surface, **more: Any) -> CallerWork:
    hello = [{"role": "user", "content": "hello"}]
    held = {"input": hello} if surface == "responses" else {"messages": hello}
    return work_of(surface, json.dumps({"model": "m", **held, **more}).encode())


def appended(work: CallerWork) -> list[Any]:
    given = body(work)
    items: list[Any] = given.get("messages") or given["input"]
    texts = []
    for item in items[1:]:
        content = item["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        texts.append((item["role"], text))
    return texts


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("surface", SURFACES)
def test_nothing_is_put_into_the_assistants_mouth(surface: Surface) -> None:
    directive = ("user", GO_ON)
    for nothing in (Recorded(), Recorded(" \n", "\t")):
        assert appended(continued(minimal(surface), nothing)) == [directive]
        run = continued(minimal(surface), nothing).run_request()
        assert [message.role for message in run.messages] == ["user", "user"]
    thought = appended(continued(minimal(surface), Recorded("", "hm\n")))
    assert thought == [("assistant", "<think>\nhm\n</think>"), directive]
    both = appended(continued(minimal(surface), Recorded("so", "hm")))
    assert both == [("assistant", "<think>\nhm\n</think>\n\nso"), directive]


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("surface", SURFACES)
def test_a_run_has_a_place_for_reasoning(surface: Surface) -> None:
    run = continued(minimal(surface), Recorded("so", "hm")).run_request()
    *_, said, directive = run.messages
    assert (said.role, said.parts[0].text, said.reasoning) == ("assistant", "so", "hm")
    assert (directive.role, directive.parts[0].text) == ("user", GO_ON)
    assert len(run.messages) == 3
    only_thought = continued(minimal(surface), Recorded("", "hm")).run_request().messages[1]
    assert (list(only_thought.parts), only_thought.reasoning) == ([], "hm")


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("surface", SURFACES)
def test_a_temperature_is_set_where_the_caller_gave_none(surface: Surface) -> None:
    free = minimal(surface)
    assert not free.has_temperature
    assert body(continued(free, temperature=0.2))["temperature"] == 0.2
    assert "temperature" not in body(continued(free))
    run = continued(free, temperature=0.2).run_request()
    assert run.options.temperature == pytest.approx(0.2)
    assert not minimal(surface, temperature=None).has_temperature
    fixed = minimal(surface, temperature=0)
    assert fixed.has_temperature
    assert body(continued(fixed, temperature=0.2))["temperature"] == 0


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(
    ("surface", "given", "expected"),
    [
        ("chat", {}, {"max_tokens": 20}),
        ("chat", {"max_tokens": 50}, {"max_tokens": 20}),
        ("chat", {"max_tokens": 10}, {"max_tokens": 10}),
        ("chat", {"max_completion_tokens": 50}, {"max_completion_tokens": 20}),
        (
            "chat",
            {"max_completion_tokens": 50, "max_tokens": 10},
            {"max_completion_tokens": 20, "max_tokens": 10},
        ),
        ("responses", {}, {"max_output_tokens": 20}),
        ("responses", {"max_output_tokens": 50}, {"max_output_tokens": 20}),
        ("messages", {"max_tokens": 50}, {"max_tokens": 20}),
    ],
)
def test_the_output_is_bounded_by_what_is_left(
    surface: Surface, given: dict[str, int], expected: dict[str, int]
) -> None:
    work = minimal(surface, **given)
    assert work.output_limit == next(iter(given.values()), None)
    shorter = continued(work, output_tokens=20)
    told = {name: limit for name, limit in body(shorter).items() if name.endswith("_tokens")}
    assert told == expected
    assert shorter.run_request().options.max_tokens == min(20, next(iter(expected.values())))
    kept = {name: limit for name, limit in body(continued(work)).items() if "_tokens" in name}
    assert kept == given


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize(
    ("thinking", "is_on", "limit"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True, 1025),
        ({"type": "adaptive"}, True, 20),
        ({"type": "disabled"}, False, 20),
        ({"type": 3}, False, 20),
    ],
)
def test_beside_a_thinking_that_is_on_no_temperature_is_set_and_its_budget_fits(
    thinking: dict[str, Any], is_on: bool, limit: int
) -> None:
    work = minimal("messages", thinking=thinking, max_tokens=4096)
    told = body(continued(work, temperature=0.2, output_tokens=20))
    assert ("temperature" not in told) == is_on
    assert told["max_tokens"] == limit


@pytest.mark.req("GATE-5")
@pytest.mark.parametrize("surface", SURFACES)
def test_what_is_appended_is_counted(surface: Surface) -> None:
    work = minimal(surface)
    recorded = Recorded("one two three", "hm hm")
    count = work.continued_tokens(recorded, GO_ON)
    texts = [text for _, text in appended(continued(work, recorded))]
    assert count == estimate_tokens(texts)
    assert work.continued_tokens(recorded, GO_ON, 2.0).estimate > count.estimate
    assert work.snapshot_bytes <= len(sent(work)) <= work.snapshot_bytes + 20


@pytest.mark.req("SEC-1")
def test_no_repr_holds_what_was_said() -> None:
    work = continued(minimal("chat"), Recorded("canary one", "canary two"))
    assert "canary" not in repr(work)
    assert "canary" not in repr(work._appended)


@pytest.mark.req("GATE-1")
def test_only_a_chat_completion_can_ask_for_several_answers() -> None:
    assert minimal("chat").choices == 1
    assert minimal("chat", n=3).choices == 3
    assert minimal("responses", n=3).choices == 1


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.req("GATE-7")
@pytest.mark.parametrize(
    ("surface", "tools", "known"),
    [
        (
            "chat",
            [
                {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
                {"type": "function", "function": {"name": "bare"}},
                {"type": "function", "function": {"name": "null", "parameters": None}},
                {"type": "custom", "function": {"name": "other", "parameters": SCHEMA}},
                {"type": "function"},
                7,
            ],
            {"bare", "null", ""},
        ),
        (
            "responses",
            [
                {"type": "function", "name": "f", "parameters": SCHEMA},
                {"type": "function", "name": "bare"},
                {"type": "web_search", "name": "other", "parameters": SCHEMA},
                {"name": "untyped", "parameters": SCHEMA},
                "x",
            ],
            {"bare", ""},
        ),
        (
            "messages",
            [
                {"name": "f", "input_schema": SCHEMA},
                {"name": "bare"},
                {"type": "bash_20250124", "name": "bash", "input_schema": SCHEMA},
                {"input_schema": SCHEMA},
            ],
            {"bare", "bash", ""},
        ),
    ],
)
def test_the_schemas_are_those_of_declared_functions_and_other_tools_are_known(
    surface: Surface, tools: list[Any], known: set[str]
) -> None:
    work = minimal(surface, tools=tools)
    without = dict.fromkeys(known, b"")
    assert dict(work.tool_schemas) == {"f": json.dumps(SCHEMA).encode(), **without}
    assert work.tool_schemas is work.tool_schemas
    assert not minimal(surface).tool_schemas
