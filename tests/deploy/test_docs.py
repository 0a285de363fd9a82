"""What the pages tell people to type can be typed, and what they point at is there.

YAML blocks are loaded by the tests of the config; the README's commands are run by the end-to-end
tests, and those that need containers by the compose tests.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from demo.processes import ROOT
from iop_edge.cli.main import main as iop_edge
from iop_node.cli.main import main as iop_node
from tests.edge.serve.metrics_rig import promtool

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ELSEWHERE = {"curl", "sudo", "journalctl", "openssl", "$EDITOR"}
"""Programs that are no part of this; what they are given is only split as a shell would."""

FENCES = {"sh", "yaml", "yaml prometheus", "mermaid", ""}
"""Whatever is typed or loaded stands in a block of the first two, so that a test finds it."""

_BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SUBSTITUTED = re.compile(r"\$\(([^()]+)\)")
_INLINE = re.compile(r"`((?:iop-edge|iop-node|docker compose|make) [^`…]+)`")


def typed(page: Path) -> Iterator[str]:
    """Every command of a page: lines of its shell blocks, what these substitute, and those named
    in a sentence."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        for line in filter(None, map(str.strip, block[2].replace("\\\n", " ").splitlines())):
            yield _SUBSTITUTED.sub("RESULT", line)
            yield from _SUBSTITUTED.findall(line)
    yield from _INLINE.findall(text)


def check(words: list[str]) -> None:
    """Fail for a command that would not be understood."""
    while words and (words[0] == "export" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
        if not words:
            return
    match [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else words:
        case ["make", target, *settings]:
            assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), target
            assert all(re.fullmatch(r"[A-Z_]+=.*", one) for one in settings)
        case ["docker", "compose", subcommand, *rest]:
            check_compose(subcommand, rest)
        case ["iop-edge", *rest]:
            check_click(iop_edge, rest)
        case ["iop-node", *rest]:
            check_click(iop_node, rest)
        case [program, *_]:
            assert program in ELSEWHERE
        case _:
            raise AssertionError("an empty command")


def check_compose(subcommand: str, rest: list[str]) -> None:
    assert subcommand in ("up", "down", "exec", "run", "logs")
    named = [word for word in rest if not word.startswith("-")]
    if subcommand in ("exec", "run", "logs"):
        assert named[0] in COMPOSE["services"]
    if subcommand == "exec":
        check(named[1:2] + rest[rest.index(named[1]) + 1 :])


def check_click(command: click.Command, rest: list[str]) -> None:
    """Parse as the program does, without running anything."""
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    for command in typed(page):
        try:
            check(shlex.split(command, comments=True))
        except (AssertionError, click.ClickException, ValueError) as error:
            raise AssertionError(f"{page.name}: {command}: {error}") from error


def test_a_command_that_is_wrong_is_found() -> None:
    for wrong in (
        "iop-edge config refresh --dryrun",
        "docker compose exec edge iop-edge stats",
        "docker compose logs ege",
        "docker-compose up",
        "docker compose exec edge",
        "make tests",
        ".venv/bin/iop-edge config check --skip-secret",
        "IOP_EDGE=127.0.0.1:50051 .venv/bin/iop-node start",
        "",
    ):
        with pytest.raises((AssertionError, click.ClickException, IndexError)):
            check(shlex.split(wrong))


def test_every_block_of_a_page_is_of_a_kind_that_a_test_looks_at() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences) <= FENCES, page.name
        assert len(fences) % 2 == 0, page.name
    assert [
        name for name in ("README.md", "joining.md") if name not in {p.name for p in PAGES}
    ] == []


def test_readme_and_operations_ask_the_containers_as_their_first_start_says() -> None:
    script = (ROOT / "deploy" / "compose" / "tokens.py").read_text(encoding="utf-8")
    printed = script[script.index("  curl ") :].split('"""')[0]
    printed = printed.format(port=8080).replace("\\\\", "\\")
    for name in ("README.md", "docs/operations.md"):
        [line] = [one for one in typed(ROOT / name) if '"model": "small"' in one]
        said = shlex.split(_SUBSTITUTED.sub("RESULT", printed.replace("\\\n", " ")))
        asked = shlex.split(line)
        assert (asked[:-1], json.loads(asked[-1])) == (said[:-1], json.loads(said[-1])), name
        assert set(_SUBSTITUTED.findall(printed)) <= set(typed(ROOT / name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_every_link_and_path_of_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_operations_names_every_metric_and_no_other() -> None:
    sources = [*(ROOT / "edge/iop_edge/serve").glob("*.py"), ROOT / "node/iop_node/metrics.py"]
    source = "\n".join(one.read_text(encoding="utf-8") for one in sources)
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = "\n".join(re.findall(r"^\| (`iop_.*?) \|", page, re.MULTILINE))
    named, there = re.findall(r"`(\w+)`", rows), re.findall(r'"(iop_(?:edge|node)_\w+)"', source)
    assert sorted(named) == sorted(there)


def test_prometheus_takes_the_block_that_is_meant_for_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml prometheus\n(.*?)```", page, re.DOTALL)
    (tmp_path / "prometheus.yaml").write_text(block)
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    (tmp_path / "alerts.yaml").write_text(alerts)
    assert yaml.safe_load(block)["rule_files"] == ["alerts.yaml"]
    checked = promtool("check", "config", str(tmp_path / "prometheus.yaml"))
    assert checked.returncode == 0, checked.stderr.decode()
