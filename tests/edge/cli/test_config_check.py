"""`iop-edge config check` as people and programs meet it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iop_edge.cli.main import main
from tests.edge.config.rig import TOKEN, filled

Write = Callable[..., Path]

TYPOS = """
nodes:
  - id: n1
    token: {env: NODE_TOKEN}
    adapters: [$OLLAMA]
    providers:
      - id: p1
        type: ollama
        category: local_inference
        models: [m]
        adapter: o1
        capcity: 4
        max-queue: 3
        priority: "high"
    providers: []
"""


def run(*arguments: str | Path, environment: Mapping[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(
        main,
        ["config", *map(str, arguments)],
        env={"IOP_EDGE_CONFIG": None, "NODE_TOKEN": TOKEN, **(environment or {})},
    )


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str, name: str = "edge.yaml") -> Path:
        path = tmp_path / name
        path.write_text(filled(text), encoding="utf-8")
        return path

    return write


@pytest.mark.req("OPS-1", "CFG-4")
def test_every_typo_is_found_in_one_run_with_place_path_and_likely_key(file: Write) -> None:
    path = file(TYPOS)
    ran = run("check", "--config", path)
    assert ran.exit_code == 1
    lines = [line for line in ran.stdout.splitlines() if line.startswith(str(path))]
    assert [line.removeprefix(f"{path}:").split(": ")[0:3] for line in lines] == [
        ["11:9", "unknown_key", "nodes[n1].providers[p1].capcity"],
        ["12:9", "unknown_key", "nodes[n1].providers[p1].max-queue"],
        ["13:19", "not_a_number", "nodes[n1].providers[p1].priority"],
        ["14:5", "duplicate_key", "nodes[n1].providers"],
    ]
    assert "`capacity`" in lines[0]
    assert "`max_queue`" in lines[1]
    assert "line 5" in lines[3]
    assert ran.stdout.splitlines()[-1] == "invalid: 4 problems"


@pytest.mark.req("CFG-4")
def test_the_line_is_shown_with_a_caret_below(file: Write) -> None:
    ran = run("check", "--config", file("edge: {id: e, nmae: 4}"))
    shown = ran.stdout.splitlines()[1:3]
    assert shown[0].endswith("│ edge: {id: e, nmae: 4}")
    assert shown[1].index("^") - shown[1].index("│") == len("│ edge: {id: e, ") - len("│") + 1


@pytest.mark.req("OPS-1")
def test_a_valid_config_says_what_is_in_it(file: Write) -> None:
    ran = run("check", "--config", file("nodes: [{id: n, token: {env: NODE_TOKEN}}]"))
    assert (ran.exit_code, ran.stdout) == (0, "valid: 1 node, 0 providers, 0 models\n")


@pytest.mark.req("CFG-21")
def test_warnings_are_shown_and_the_config_is_valid(file: Write) -> None:
    path = file("console: {enabled: true}")
    ran = run("check", "--config", path)
    assert ran.exit_code == 0
    assert ran.stdout.startswith(f"{path}:1:20: warning: not_built: console.enabled: ")


@pytest.mark.req("OPS-1")
def test_as_json_it_is_one_document(file: Write) -> None:
    path = file("edge: {nmae: x}")
    ran = run("check", "--json", "--config", path)
    assert ran.exit_code == 1
    document = json.loads(ran.stdout)
    [problem] = document.pop("problems")
    assert document == {"valid": False, "omitted": 0}
    assert problem.pop("message")
    assert problem == {
        "code": "unknown_key",
        "path": "edge.nmae",
        "file": str(path),
        "line": 1,
        "column": 8,
        "severity": "error",
    }
    ran = run("check", "--json", "--config", file("console: {enabled: true}"))
    document = json.loads(ran.stdout)
    assert (ran.exit_code, document["valid"], document["omitted"]) == (0, True, 0)
    assert [one["severity"] for one in document["problems"]] == ["warning"]


@pytest.mark.req("CFG-4")
def test_fifty_are_shown_and_the_rest_is_counted(file: Write) -> None:
    path = file("".join(f"k{number}: 1\n" for number in range(5000)))
    ran = run("check", "--config", path)
    lines = ran.stdout.splitlines()
    assert sum(line.startswith(str(path)) for line in lines) == 50
    assert lines[-2:] == ["… and 4950 more", "invalid: 5000 problems"]
    document = json.loads(run("check", "--json", "--config", path).stdout)
    assert (len(document["problems"]), document["omitted"]) == (50, 4950)
    assert [one["line"] for one in document["problems"]] == list(range(1, 51))


@pytest.mark.req("CFG-4")
def test_warnings_past_fifty_are_counted_and_are_no_problems_of_an_invalid_config(
    file: Write,
) -> None:
    models = "models:\n" + "".join(f"  - {{id: m{number}}}\n" for number in range(60))
    valid, invalid = file(models), file(f"edge: {{nmae: x}}\n{models}", "invalid.yaml")
    ran = run("check", "--config", valid)
    assert (ran.exit_code, ran.stdout.splitlines()[-2]) == (0, "… and 10 more")
    assert "… and 10 more" in run("show", "--config", valid).stderr
    document = json.loads(run("check", "--json", "--config", valid).stdout)
    assert (len(document["problems"]), document["omitted"]) == (50, 10)
    ran = run("check", "--config", invalid)
    assert ran.stdout.splitlines()[-2:] == ["… and 11 more", "invalid: 1 problem"]


@pytest.mark.req("CFG-4")
def test_a_file_name_cannot_steer_a_terminal(tmp_path: Path) -> None:
    ran = run("check", "--config", tmp_path / "e\x1b[31m.yaml")
    assert ran.exit_code == 2
    assert "e\\x1b[31m.yaml: file_unreadable" in ran.stdout


@pytest.mark.req("OPS-1")
def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    ran = run("check", "--config", path)
    assert (ran.exit_code, ran.stdout.splitlines()[0]) == (
        2,
        f"{path}: file_unreadable: the file does not exist",
    )
    ran = run("check", "--json", "--config", path)
    assert (ran.exit_code, json.loads(ran.stdout)["valid"]) == (2, False)
    assert run("check", "--config", tmp_path).exit_code == 2
    assert run("check", "--confg", "x").exit_code == 2


@pytest.mark.req("CFG-2")
def test_files_come_from_the_option_then_the_variable_then_the_folder(
    file: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("check").exit_code == 2
    file("edge: {id: here}")
    one, two = file("edge: {id: one}", "1.yaml"), file("edge: {name: two}", "2.yaml")
    variable = {"IOP_EDGE_CONFIG": f"{one},{two}"}

    def identity(*arguments: str | Path, environment: dict[str, str] | None = None) -> object:
        ran = run("show", "--json", *arguments, environment=environment)
        edge = json.loads(ran.stdout)["edge"]
        return edge["id"], edge["name"]

    assert identity() == ("here", None)
    assert identity(environment=variable) == ("one", "two")
    assert identity("--config", two, environment=variable) == ("edge", "two")
    assert identity("--config", two, "--config", one) == ("one", "two")


@pytest.mark.req("CFG-2")
def test_secrets_that_are_not_at_hand_can_be_skipped(file: Write) -> None:
    path = file("nodes: [{id: n, token: {env: NOT_SET}}]")
    assert run("check", "--config", path).exit_code == 1
    ran = run("check", "--skip-secrets", "--config", path)
    assert (ran.exit_code, "secrets not looked at" in ran.stdout) == (0, True)


@pytest.mark.req("OPS-1", "CFG-5")
@pytest.mark.parametrize("line", ["command: [sh]", "session: x", "schedule: daily"])
def test_legacy_process_fields_are_rejected(file: Write, line: str) -> None:
    ran = run("check", "--config", file(f"nodes: [{{id: n, token: $TOKEN, {line}}}]"))
    assert ran.exit_code == 1
    assert "retired_key" in ran.stdout


@pytest.mark.req("CFG-4")
def test_colours_are_for_terminals_and_not_where_they_are_unwanted(file: Write) -> None:
    path = file("edge: {nmae: x}")
    for color, environment, is_coloured in (
        (False, {}, False),
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
    ):
        ran = CliRunner().invoke(
            main, ["config", "check", "--config", str(path)], color=color, env=environment
        )
        assert ("\x1b[" in ran.stdout) is is_coloured


@pytest.mark.req("OPS-1")
@pytest.mark.parametrize("command", ["check", "show", "schema", "diff", "refresh"])
def test_every_command_explains_itself(command: str) -> None:
    ran = run(command, "--help")
    assert (ran.exit_code, "Usage:" in ran.stdout) == (0, True)
