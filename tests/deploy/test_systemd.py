"""The service units: systemd takes them, and they start commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.processes import BIN, ROOT, plain_environment

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
INSTALLED = "/opt/iop/bin/"


def commands(unit: Path) -> list[list[str]]:
    """What the unit runs, with the commands of this checkout."""
    lines = re.findall(r"^Exec\w+=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line.replace(INSTALLED, f"{BIN}/")) for line in lines]


def test_there_is_a_unit_for_each_side() -> None:
    assert [unit.name for unit in UNITS] == ["iop-edge.service", "iop-node.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text(encoding="utf-8").replace(INSTALLED, f"{BIN}/"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    said = [line for line in (ran.stdout + ran.stderr).splitlines() if unit.name in line]
    assert (ran.returncode, said) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_a_unit_runs_commands_that_there_are(unit: Path) -> None:
    for program, *arguments in commands(unit):
        words = [word for word in arguments if not word.startswith(("-", "/"))]
        ran = subprocess.run(
            [program, *words, "--help"], capture_output=True, text=True, env=plain_environment()
        )
        assert ran.returncode == 0, ran.stderr
        for option in (word for word in arguments if word.startswith("--")):
            assert option in ran.stdout
