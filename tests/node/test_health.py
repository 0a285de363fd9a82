from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path

import pytest

from iop_node.health import StateFile, is_healthy, state_path


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
    path.write_bytes(b"connected\n")
    assert not is_healthy(path)


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
