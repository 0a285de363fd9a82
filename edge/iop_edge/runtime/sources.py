"""The one place that reads files and the environment for the pure config loader.

Each config file is read exactly once, so that what was validated is what is applied (REF-10).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from iop_edge.config.problems import ConfigInvalid, Problem
from iop_edge.config.report import printable
from iop_edge.config.sources import SecretFile, SecretUnreadable, SourceFile, Sources
from iop_edge.config.yaml12.text import MAX_BYTES
from iop_shared.tracing import can_export

_MAX_SECRET_BYTES = 1_048_576


class SourceMissing(ConfigInvalid):
    """A config file cannot be read, so there is no candidate. Holds this as its one problem."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            (
                Problem(
                    code="file_unreadable",
                    path="",
                    file=_name(path),
                    line=0,
                    column=0,
                    message=f"the file {reason}",
                ),
            )
        )


def read_sources(
    paths: Sequence[Path], *, fingerprint_key: bytes, takes_pipes: bool = True
) -> Sources:
    """The candidate that the files and the environment of this process make now.

    A pipe is waited for, as a shell's `<(…)` wants it; without `takes_pipes` whatever is no regular
    file is refused, so that nothing is waited for. Secret files are read when the loader asks for
    them. Raises SourceMissing.
    """
    return Sources(
        files=tuple(_source(path, takes_pipes=takes_pipes) for path in paths),
        environment=dict(os.environ),
        read_secret=read_secret,
        fingerprint_key=fingerprint_key,
        can_trace=can_export(),
    )


def read_secret(path: str) -> SecretFile:
    """A secret file's content and mode, of one and the same open file. Raises SecretUnreadable."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretUnreadable("is no regular file")
            return SecretFile(file.read(_MAX_SECRET_BYTES), stat.S_IMODE(status.st_mode))
    except (OSError, ValueError) as error:
        raise SecretUnreadable(_reason(error)) from None


def _source(path: Path, *, takes_pipes: bool) -> SourceFile:
    try:
        with open(path, "rb", opener=None if takes_pipes else _open_without_waiting) as file:
            if not (takes_pipes or stat.S_ISREG(os.fstat(file.fileno()).st_mode)):
                raise SourceMissing(path, "is no regular file, so it cannot be read anew")
            # One byte past the bound is enough for the loader to refuse the file.
            return SourceFile(_name(path), file.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:
        raise SourceMissing(path, _reason(error)) from None


def _name(path: Path) -> str:
    """The path as text that can be printed, whatever its bytes are."""
    return printable(str(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _reason(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case PermissionError():
            return "may not be read by this user"
        case IsADirectoryError():
            return "is a directory"
        case _:
            return "cannot be read"
