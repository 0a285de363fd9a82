"""What the operators' pages tell people to type can be typed, and what they point at is there."""

from __future__ import annotations

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

PAGES = [ROOT / "docs" / name for name in ("concepts.md", "operations.md", "security.md")]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ELSEWHERE = {"curl", "sudo", "journalctl"}
"""Programs that are no part of this; what they are given is only split as a shell would."""

_BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:iop-edge|iop-node|docker compose) [^`…]+)`")


def typed(page: Path) -> Iterator[str]:
    """Every command of a page: lines of its shell blocks, and those named in a sentence."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        yield from filter(None, (one.strip() for one in block[2].replace("\\\n", " ").splitlines()))
    yield from _INLINE.findall(text)


def check(words: list[str]) -> None:
    """Fail for a command that would not be understood."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    match words:
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
    ):
        with pytest.raises((AssertionError, click.ClickException)):
            check(shlex.split(wrong))


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_every_link_and_path_of_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_operations_names_every_metric_and_no_other() -> None:
    sources = ("edge/iop_edge/serve/metrics.py", "node/iop_node/metrics.py")
    source = "\n".join((ROOT / one).read_text(encoding="utf-8") for one in sources)
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
