"""No process is left behind, whatever happens to the one that started it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import ROOT, Group, StartFailed, free_ports, until

# Connects to a port, says its pid, and then only waits: its end is seen at the other end.
_GUEST = """
import os, socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"here")
line.recv(1)
"""
_STARTER = """
import sys
from pathlib import Path
from demo.processes import Group
Group(Path(sys.argv[1])).start("guest", [sys.executable, "-c", sys.argv[2], sys.argv[3]])
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
def test_a_process_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(10)
        port = str(door.getsockname()[1])
        starter = subprocess.Popen(
            [sys.executable, "-c", _STARTER, str(tmp_path), _GUEST, port],
            stdin=subprocess.PIPE,
            cwd=ROOT,
        )
        line, _ = door.accept()
        with line:
            line.settimeout(10)
            assert line.recv(4) == b"here"
            starter.kill()
            starter.communicate()
            assert line.recv(1) == b""


def test_a_group_stops_its_processes_and_tells_how_they_ended(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for name in ("one", "two"):
        announced = group.start_announced(name, "demo.small_upstream")
        assert announced["listening"].startswith("http://127.0.0.1:")
    assert group.stop() == {"one": 0, "two": 0}
    assert [process.exit_status for process in group.processes] == [0, 0]


def test_a_process_that_ends_too_early_is_reported_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    script = "import sys; sys.exit('the reason')"
    process = Group(tmp_path).start("short", [sys.executable, "-c", script])
    with pytest.raises(StartFailed, match="the reason"):
        until(lambda: False, watching=[process], timeout_s=10)


def test_waiting_ends_at_its_deadline_and_says_for_what() -> None:
    def the_moon_is_cheese() -> bool:
        """the moon is cheese"""
        return False

    with pytest.raises(StartFailed, match="the moon is cheese"):
        until(the_moon_is_cheese, timeout_s=0)


def test_free_ports_are_distinct_and_can_be_listened_on() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
