"""How `iop-node health` learns what the running node knows.

The node holds a lock on a small file for as long as it lives and keeps its state in it. A check
that finds the lock free, or no file, knows that no node runs; one that finds a word which was not
renewed for a while knows that the node is stopped or hangs. The file's name follows from the
edge's address and the token (by digest), so that several nodes of one machine do not meet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

HEALTHY = b"connected"
UNHEALTHY = b"not connected"

RENEWAL_INTERVAL_S = 2.0
TRUSTED_FOR_S = 10.0
"""A node that did not renew its word for so long is not at work, whatever it said last."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108  # where no other folder can be written to

LOCK_TRIES = 5
LOCK_PAUSE_S = 0.02


def state_path(edge_address: str, token: str) -> Path:
    """Where the node of this address and token keeps its state."""
    name = hashlib.sha256(f"{edge_address}\0{token}".encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or _temporary())
    return folder / f"iop-node-{os.getuid()}-{name}.state"


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        # Nothing can be written to, as in a container whose root is read-only; memory still can.
        return SHARED_MEMORY


class StateFile:
    """The running node's side. Used as a context; a folder that cannot be written to costs the
    health command, never the node."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._descriptor: int | None = None
        self._word = UNHEALTHY

    def __enter__(self) -> Self:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, stat.S_IRUSR | stat.S_IWUSR)
            _lock(self._descriptor)
        except OSError:
            self._close()
        self.write(is_healthy=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
        self._close()

    def write(self, *, is_healthy: bool) -> None:
        """Connected with an acknowledged payload, or not."""
        self._word = HEALTHY if is_healthy else UNHEALTHY
        self.renew()

    def renew(self) -> None:
        """The same word, as of now: to be called every RENEWAL_INTERVAL_S."""
        if self._descriptor is None:
            return
        # This clock is the machine's own, so both processes read the same, and nobody sets it.
        content = b"%s\n%.3f\n" % (self._word, self._clock())
        with suppress(OSError):
            os.ftruncate(self._descriptor, os.pwrite(self._descriptor, content, 0))

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> None:
    """Take the lock. A health check may hold it for a moment; another node keeps it."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise BlockingIOError("another node of this address and token keeps it")


def is_healthy(path: Path, clock: Callable[[], float] = time.monotonic) -> bool:
    """A node is at work there, and it is connected with an acknowledged payload."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        word, _, told_at = os.read(descriptor, 64).partition(b"\n")
        try:
            age_s = clock() - float(told_at)
        except ValueError:
            return False
        return word == HEALTHY and abs(age_s) <= TRUSTED_FOR_S
    else:
        return False
    finally:
        os.close(descriptor)
