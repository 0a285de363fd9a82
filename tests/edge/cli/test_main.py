"""The list of commands: each is where the list says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from iop_edge.cli import config
from iop_edge.cli.main import COMMANDS, main


@pytest.mark.parametrize("name", [*COMMANDS, *(f"config {one}" for one in config.COMMANDS)])
def test_every_listed_command_can_be_imported_and_explains_itself(name: str) -> None:
    ran = CliRunner().invoke(main, [*name.split(), "--help"])
    assert ran.exit_code == 0
    assert ran.stdout.startswith("Usage:")


def test_help_lists_every_command() -> None:
    ran = CliRunner().invoke(main, ["--help"])
    listed = [line.split()[0] for line in ran.stdout.partition("Commands:")[2].splitlines() if line]
    assert listed == list(COMMANDS)


def test_a_command_that_is_none_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["frobnicate"]).exit_code == 2
    assert CliRunner().invoke(main, ["config", "frobnicate"]).exit_code == 2


def test_the_version_is_told() -> None:
    ran = CliRunner().invoke(main, ["--version"])
    assert (ran.exit_code, ran.stdout.startswith("iop-edge, version ")) == (0, True)


def test_a_terminal_that_cannot_show_a_sign_gets_an_escape(tmp_path: Path) -> None:
    (path := tmp_path / "edge.yaml").write_text("edge: {nmae: x}", encoding="utf-8")
    ran = CliRunner(charset="latin-1").invoke(main, ["config", "check", "--config", str(path)])
    assert ran.exit_code == 1
    assert "1 \\u2502 edge: {nmae:" in ran.stdout
