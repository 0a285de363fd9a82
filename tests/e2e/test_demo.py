"""The demo keeps its promises, and leaves nothing behind, interrupted or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.processes import ROOT, plain_environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc"),
]

HEADINGS = (
    "1. A model server, one edge, two nodes",
    "2. A real question, through the official openai client",
    "3. The configuration changes while a long stream runs",
    "4. What cannot be applied is told apart, and changes nothing",
    "5. Everything stops",
    "What you saw",
)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo on the small upstream, everything it makes in a folder of the test's own."""
    with subprocess.Popen(
        [sys.executable, "-m", "demo", "--small"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=plain_environment() | {"TMPDIR": str(tmp_path)},
    ) as process:
        yield process
        process.kill()


def _left_behind(folder: Path) -> list[str]:
    """Processes that were given this folder, and whatever is still in it."""
    marked = os.fsencode(f"TMPDIR={folder}")
    left = [path.name for path in folder.iterdir()]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marked in (entry / "environ").read_bytes():
                left.append((entry / "cmdline").read_text())
        except OSError:  # it has ended meanwhile
            continue
    return left


def test_the_demo_shows_everything_it_promises_and_leaves_nothing(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    shown, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, shown
    assert [heading for heading in HEADINGS if heading not in shown] == []
    assert _left_behind(tmp_path) == []


def test_the_demo_interrupted_in_the_middle_leaves_nothing(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "the stream goes on" in line:
            break
    assert len(_left_behind(tmp_path)) > 4  # four processes and the demo: the search finds them
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130, rest
    assert "Interrupted" in rest
    assert _left_behind(tmp_path) == []
