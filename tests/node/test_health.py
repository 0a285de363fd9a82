from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from iop_node.health import TRUSTED_FOR_S, StateFile, is_healthy, state_path

ASK_AND_TELL_WHAT_IT_TOOK = """
import sys
from iop_node.cli.main import main
try:
    main(["health"])
except SystemExit as ended:
    heavy = {"grpc", "aiohttp", "asyncio", "structlog", "uvloop", "google.protobuf"}
    print(ended.code, sorted(heavy & set(sys.modules)))
"""


@pytest.mark.req("OPS-3")
def test_a_node_is_well_while_it_lives_and_is_connected(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert not is_healthy(path)
    with StateFile(path) as state:
        assert not is_healthy(path)
        state.write(is_healthy=True)
        assert is_healthy(path)
        state.write(is_healthy=False)
        assert not is_healthy(path)
        state.write(is_healthy=True)
    assert not is_healthy(path)


def test_what_a_node_left_behind_that_was_killed_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with StateFile(path) as state:
        state.write(is_healthy=True)
        left = path.read_bytes()
    path.write_bytes(left)
    assert not is_healthy(path)


@pytest.mark.req("OPS-3")
def test_the_word_of_a_node_that_hangs_or_is_stopped_is_not_believed_for_long(
    tmp_path: Path,
) -> None:
    now = 1000.0
    path = tmp_path / "state"
    with StateFile(path, lambda: now) as state:
        state.write(is_healthy=True)
        now += TRUSTED_FOR_S
        assert is_healthy(path, lambda: now)
        now += 0.1
        assert not is_healthy(path, lambda: now)
        state.renew()
        assert is_healthy(path, lambda: now)


@pytest.mark.parametrize("content", [b"", b"connected", b"connected\n", b"connected\nsoon\n"])
def test_what_is_no_word_of_a_node_is_not_believed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    with StateFile(path) as state:
        state.write(is_healthy=True)
        path.write_bytes(content)
        assert not is_healthy(path)


def test_asking_loads_none_of_what_only_a_running_node_needs() -> None:
    environment = {"IOP_EDGE": "edge:1", "IOP_NODE_TOKEN": "t" * 32, "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", ASK_AND_TELL_WHAT_IT_TOOK],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "not connected\n1 []\n", ran.stderr


def test_a_check_that_looks_just_as_a_node_starts_costs_the_node_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    looking = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, (looking,)).start()
    with StateFile(path) as state:
        state.write(is_healthy=True)
        assert is_healthy(path)


def test_a_second_node_of_one_token_leaves_the_first_ones_word_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with StateFile(path) as first:
        first.write(is_healthy=True)
        with StateFile(path) as second:
            second.write(is_healthy=False)
            assert is_healthy(path)
        assert is_healthy(path)


def test_a_folder_that_cannot_be_written_to_costs_the_check_alone(tmp_path: Path) -> None:
    with StateFile(tmp_path / "not" / "there" / "state") as state:
        state.write(is_healthy=True)


@pytest.mark.req("OPS-2", "OPS-3")
def test_where_no_folder_can_be_written_to_memory_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    assert state_path("edge:1", "t" * 32).parent == Path("/dev/shm")


@pytest.mark.req("SEC-1")
def test_the_files_name_tells_no_token() -> None:
    token = "iop_node_0123abcd_" + "s" * 32
    first, second = state_path("edge:1", token), state_path("edge:2", token)
    assert first != second
    assert "s" * 8 not in str(first)
