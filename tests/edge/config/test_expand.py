"""`${NAME}` in values (CFG-2)."""

from __future__ import annotations

import pytest

from tests.edge.config.rig import effective, problems

ENVIRONMENT = {
    "NAME": "Lab",
    "NUMBER": "12",
    "QUOTED": "0123",
    "BOOLEAN": "true",
    "EMPTY": "",
    "HUGE": "9" * 30,
    "LIST": "[a, b]",
    "LINES": "a\nb",
    "SURROGATE": "a\udcffb",
    "CONTROL": "a\x1b[31mb",
}


def name_of(value: str) -> str | None:
    return effective(f"edge:\n  name: {value}", environment=ENVIRONMENT).edge.name


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("${NAME}", "Lab"),
        ("'${NAME}'", "Lab"),
        ("a ${NAME} b ${NAME}", "a Lab b Lab"),
        ("${NOT_SET:-other}", "other"),
        ("'${EMPTY:-other}'", "other"),
        ("${NAME:-other}", "Lab"),
        ("'${NOT_SET:-}x'", "x"),
        ("'${NUMBER}'", "12"),
        ("n${NUMBER}", "n12"),
        ("${QUOTED}", "0123"),
        ("${LIST}", "[a, b]"),
        ("'$${NAME}'", "${NAME}"),
        ("$NAME", "$NAME"),
        ("${EMPTY}", None),
    ],
)
def test_a_reference_is_replaced_in_text(written: str, name: str | None) -> None:
    assert name_of(written) == name


@pytest.mark.req("CFG-2")
def test_an_unquoted_whole_reference_takes_its_type_after_expansion() -> None:
    config = effective(
        "provider_pool:\n  max_queue: ${NUMBER}\nserver:\n  grpc_reflection: ${BOOLEAN}",
        environment=ENVIRONMENT,
    )
    assert config.provider_pool.max_queue == 12
    assert config.server.grpc_reflection is True


@pytest.mark.req("CFG-2", "CFG-3")
def test_an_alias_of_a_reference_is_expanded_as_the_anchor_is() -> None:
    text = "provider_pool:\n  max_queue: &n ${NUMBER}\n  queue_timeout_ms: *n"
    config = effective(text, environment=ENVIRONMENT)
    assert config.provider_pool.max_queue == config.provider_pool.queue_timeout_ms == 12
    text = "edge: {id: &n '${NUMBER}', name: *n, advertise: &n 'h:${NUMBER}'}\nusage: {file: *n}"
    config = effective(text, environment=ENVIRONMENT)
    assert (config.edge.name, config.usage.file) == ("12", "h:12")
    text = "provider_pool:\n  max_queue: &n ${NUMBER}\nedge: {id: &n '${NUMBER}', name: *n}"
    assert effective(text, environment=ENVIRONMENT).edge.name == "12"


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("provider_pool: {max_queue: '${NUMBER}'}", "not_a_number"),
        ("provider_pool:\n  max_queue: 1${NUMBER}", "not_a_number"),
        ("edge:\n  name: ${NUMBER}", "quote_it"),
        ("edge: {name: '${EMPTY}'}", "empty_text"),
        ("edge:\n  name: ${NOT_SET}", "unset_variable"),
        ("edge: {name: '${LINES}'}", "bad_format"),
        ("edge: {name: '${SURROGATE}'}", "bad_variable"),
        ("edge: {name: '${CONTROL}'}", "bad_variable"),
        ("edge:\n  name: ${NOT_SET:-${NAME}}", "bad_reference"),
        ("edge: {name: '${NAME:-${NAME}}'}", "bad_reference"),
        ("models: [{id: '${EMPTY}'}]", "empty_text"),
        ("models:\n  - id: ${EMPTY}", "missing_key"),
    ],
)
def test_what_comes_out_is_judged_like_anything_written(text: str, code: str) -> None:
    found = [one for one in problems(text, environment=ENVIRONMENT) if one.severity == "error"]
    assert [one.code for one in found] == [code]


@pytest.mark.req("CFG-2", "SEC-1")
def test_a_value_from_the_environment_is_shown_in_no_message() -> None:
    text = "provider_pool:\n  max_queue: ${HUGE}\nlogging:\n  level: ${NAME}"
    found = problems(text, environment=ENVIRONMENT)
    assert [one.code for one in found] == ["out_of_range", "not_one_of"]
    assert not any("999" in str(one) or "Lab" in str(one) for one in found)


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize("text", ["<<: ${NOT_SET}", "1: [a, {b: '${NOT_SET}'}]", "1: &a ['${X}']"])
def test_nothing_is_expanded_below_a_key_that_is_refused(text: str) -> None:
    assert len([one for one in problems(text) if one.severity == "error"]) == 1


@pytest.mark.req("CFG-2")
def test_an_unset_variable_is_told_by_path_and_name() -> None:
    [found] = problems("edge: {name: '${NOT_SET}'}")
    assert found.path == "edge.name"
    assert "NOT_SET" in found.message


@pytest.mark.req("CFG-2")
def test_a_secret_field_is_not_expanded_and_its_reference_is() -> None:
    text = "nodes: [{id: n, token: '${SECRET}'}, {id: m, token: {env: 'T_${NAME}'}}]"
    found = problems(text, environment={"SECRET": "s" * 40, "NAME": "X", "T_X": "x" * 40})
    assert [one.code for one in found] == ["secret_literal"]
    assert "s" * 40 not in str(found)
