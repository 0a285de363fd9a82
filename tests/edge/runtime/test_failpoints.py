from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from iop_edge.runtime.failpoints import FailpointReached, parse, reach


def test_places_and_actions_are_read_as_written() -> None:
    assert parse("apply.before_swap=kill, apply.after_push=raise,") == {
        "apply.before_swap": "kill",
        "apply.after_push": "raise",
    }
    assert parse("") == {}


@pytest.mark.parametrize("text", ["apply", "=kill", "apply=explode", "apply=raise;other=kill"])
def test_a_pair_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="PLACE=kill or PLACE=raise"):
        parse(text)


def test_only_the_named_place_raises() -> None:
    reach("apply.before_swap", {"apply.after_swap": "raise"})
    with pytest.raises(FailpointReached, match="after_swap"):
        reach("apply.after_swap", {"apply.after_swap": "raise"})


def test_the_environment_can_kill_the_process_at_a_place() -> None:
    program = (
        "from iop_edge.runtime.failpoints import reach; reach('a'); reach('b'); print('alive')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "IOP_FAILPOINTS": "b=kill"},
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""
