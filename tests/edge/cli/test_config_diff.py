"""`iop-edge config diff`: offline, by meaning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iop_edge.cli.main import main
from tests.edge.config.rig import TOKEN, filled

Compare = Callable[..., Result]

BASE = """
logging: {level: info}
models: [{id: smart, providers: {p1: m}}]
nodes:
  - id: n1
    token: {env: NODE_TOKEN}
    adapters: [$ADAPTER]
    providers: [{$P1, adapter: a1, priority: 0}]
"""


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def run(before: str, after: str, *arguments: str, **environment: str) -> Result:
        paths = []
        for name, text in (("a", before), ("b", after)):
            files = []
            for number, part in enumerate(text.split("=====\n")):
                (path := tmp_path / f"{name}{number}.yaml").write_text(filled(part))
                files.append(str(path))
            paths.append(",".join(files))
        return CliRunner().invoke(
            main, ["config", "diff", *paths, *arguments], env={"NODE_TOKEN": TOKEN, **environment}
        )

    return run


@pytest.mark.req("REF-3")
def test_files_that_mean_the_same_have_no_difference(compare: Compare) -> None:
    after = """
    # reordered, with defaults written out, over two files
    nodes:
      - providers: [{adapter: a1, $P1, enabled: true}]
        adapters: [$ADAPTER]
        token: {env: NODE_TOKEN}
        id: n1
    =====
    server: {listen: 127.0.0.1:50051}
    models: [{id: smart, providers: {p1: m}, usage_attribution: provider}]
    """.replace("    =====", "=====")
    ran = compare(BASE, after)
    assert (ran.exit_code, ran.stdout) == (0, "No difference.\n")


@pytest.mark.req("REF-3")
def test_live_changes_are_told_one_a_line_with_the_verdict_last(compare: Compare) -> None:
    after = BASE.replace("capacity: 1", "capacity: 12")
    after = BASE.replace("priority: 0", "priority: 3") + "provider_pool: {max_queue: 9}\n"
    ran = compare(BASE, after)
    assert ran.exit_code == 3
    assert [" ".join(line.split()) for line in ran.stdout.splitlines()] == [
        "~ nodes[n1].providers[p1].priority 0 → 3 live",
        "~ provider_pool.max_queue 16 → 9 live",
        "",
        "A refresh would apply everything: 2 live, 0 restart.",
    ]


@pytest.mark.req("REF-4", "REF-7")
def test_one_restart_path_holds_everything_back_and_says_why(compare: Compare) -> None:
    after = BASE.replace("priority: 0", "priority: 3").replace("info", "debug")
    ran = compare(BASE, after)
    assert ran.exit_code == 4
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["~", "nodes[n1].providers[p1].priority", "0", "→", "3", "live"]
    assert lines[2].split() == ["~", "logging.level", '"info"', "→", '"debug"', "restart"]
    assert lines[3].startswith("    ")
    assert lines[-1] == "Restart needed: 1 live, 1 restart. A refresh would apply nothing."


@pytest.mark.req("REF-3", "REF-4")
def test_entries_that_come_and_go_are_marked(compare: Compare) -> None:
    after = BASE.replace("id: smart", "id: fast").replace("[$ADAPTER]", "[$ADAPTER, $OLLAMA]")
    lines = compare(BASE, after).stdout.splitlines()
    assert [line[:2] + line.split()[1] for line in lines if line.startswith(("+", "-"))] == [
        "+ models[fast]",
        "- models[smart]",
        "+ nodes[n1].adapters[o1]",
    ]


@pytest.mark.req("REF-4", "SEC-1")
def test_a_secret_that_changed_behind_its_reference_is_told_without_its_value(
    compare,
    tmp_path: Path,
) -> None:
    text = BASE.replace("{env: NODE_TOKEN}", "{file: %s}")
    for name, content in (("old", TOKEN), ("new", TOKEN.upper())):
        (tmp_path / name).write_text(content)
    ran = compare(text % (tmp_path / "old"), text % (tmp_path / "new"))
    assert ran.exit_code == 4
    assert TOKEN not in ran.stdout


@pytest.mark.req("REF-2")
def test_as_json_it_is_one_document(compare: Compare) -> None:
    ran = compare(BASE, BASE.replace("priority: 0", "priority: 3"), "--json")
    document = json.loads(ran.stdout)
    assert (ran.exit_code, document["verdict"]) == (3, "live")
    assert document["changes"] == [
        {
            "path": "nodes[n1].providers[p1].priority",
            "class": "live",
            "old": 0,
            "new": 3,
            "reason": None,
        }
    ]
    assert document["live_paths"] == ["nodes[n1].providers[p1].priority"]
    assert document["restart_required_paths"] == []
    assert (document["changed_nodes"], document["changed_providers"]) == (["n1"], ["p1"])


@pytest.mark.req("REF-5")
def test_an_invalid_side_is_told_with_its_problems(compare: Compare, tmp_path: Path) -> None:
    ran = compare(BASE, "edge: {nmae: x}")
    assert ran.exit_code == 1
    assert f"{tmp_path / 'b0.yaml'}:1:8: unknown_key: edge.nmae" in ran.stdout
    ran = compare(BASE, "edge: {nmae: x}", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["valid"]) == (1, False)
    missing = CliRunner().invoke(main, ["config", "diff", "/nowhere/a", "/nowhere/b"])
    assert missing.exit_code == 2
    assert CliRunner().invoke(main, ["config", "diff", "", ""]).exit_code == 2
