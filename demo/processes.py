"""Real processes, started and ended: what the demo and the end-to-end tests stand on.

Every process is tied to this one, writes to a log file of its own, and is stopped in the order
opposite to its start. Waiting is always for something a process says (a line, a readiness answer,
its own end) under a deadline, and a process that ends too early is reported with the end of its
log. This module knows how to run things and nothing about what they are for.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
_TETHER = Path(__file__).with_name("tether.py")
_POLL_S = 0.02
_FIRST_PORT, _PORTS = 15_000, 17_000
T = TypeVar("T")


class StartFailed(Exception):
    """A process ended, or said nothing, before it was ready. Carries the end of its log."""


class Process:
    """One child with its log. `exit_status` is None while it runs.

    `announces`: the first line of its standard output is for `first_line`; otherwise standard
    output belongs to the log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str],
        announces: bool = False,
        outlives_parent: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        tether: list[str | Path] = [] if outlives_parent else [sys.executable, "-I", "-S", _TETHER]
        with log.open("ab") as log_file:
            self._popen = subprocess.Popen(
                [*tether, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if announces else log_file,
                stderr=log_file,
                env=dict(env),
                cwd=ROOT,
                # Its own group: Ctrl-C in a terminal reaches the starter alone, which then stops
                # everything in order.
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<{self.name} pid={self.pid} exit={self.exit_status}>"

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        return self._popen.poll()

    def first_line(self, timeout_s: float) -> str:
        """The first line of standard output. Raises StartFailed where there is none in time."""
        assert self._popen.stdout is not None
        ready, _, _ = select.select([self._popen.stdout], [], [], timeout_s)
        line = self._popen.stdout.readline() if ready else b""
        if not line:
            raise self.failure("said nothing" if not ready else "ended before it was ready")
        return line.decode()

    def failure(self, what: str) -> StartFailed:
        end = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
        return StartFailed(f"{self.name} {what} (exit status {self.exit_status})\n{end}")

    def signal(self, number: signal.Signals) -> None:
        if self.exit_status is None:
            self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout_s)

    def stop(self, timeout_s: float = 10.0) -> int:
        """SIGTERM, and SIGKILL for one that does not end in time. The exit status."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()
        finally:
            if self._popen.stdout is not None:
                self._popen.stdout.close()

    def kill(self) -> int:
        self.signal(signal.SIGKILL)
        return self.wait(10)


class Group:
    """All processes of one run, in a folder of its own.

    All plain calls: an interrupt at any moment still finds everything that was started.
    """

    def __init__(self, folder: Path, *, outlives_parent: bool = False) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self._outlives_parent = outlives_parent
        folder.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        *,
        announces: bool = False,
    ) -> Process:
        """Start a process; its log is `<folder>/<name>.log`."""
        process = Process(
            name,
            command,
            self.folder / f"{name}.log",
            env=plain_environment() | dict(env or {}),
            announces=announces,
            outlives_parent=self._outlives_parent,
        )
        self.processes.append(process)
        return process

    def start_announced(
        self, name: str, module: str, *arguments: str, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """Start one of the upstreams of this package and return what it announces."""
        stay = ["--stay"] if self._outlives_parent else []
        command = [sys.executable, "-m", module, *arguments, *stay]
        process = self.start(name, command, announces=True)
        announced: dict[str, Any] = json.loads(process.first_line(timeout_s))
        return announced

    def stop(self) -> dict[str, int]:
        """Stop everything, the youngest first. Exit statuses by name; nothing is left running."""
        return {process.name: process.stop() for process in reversed(self.processes)}

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def plain_environment() -> dict[str, str]:
    """What a fresh shell would give, and nothing of this project's own variables."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on.

    Chosen below the range that outgoing connections take theirs from, so that none of those
    takes one between this look and its use.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def until(
    claim: Callable[[], T | None], *, watching: Sequence[Process] = (), timeout_s: float = 20.0
) -> T:
    """What `claim` returns once that is true. Raises StartFailed at the deadline, or at once when
    a watched process ends."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = claim()
        if found:
            return found
        for process in watching:
            if process.exit_status is not None:
                raise process.failure("ended too early")
        if time.monotonic() > deadline:
            raise StartFailed(f"not so within {timeout_s:g} s: {claim.__doc__ or claim}")
        time.sleep(_POLL_S)


def get_json(url: str, timeout_s: float = 5.0) -> Any | None:
    """The body of a 200 answer (None where it is empty JSON or not there); never raises for a
    server that is not up yet."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - our own http URL
            content = answer.read()
            try:
                return json.loads(content)
            except ValueError:
                return content.decode() or True
    except (OSError, urllib.error.URLError):
        return None
