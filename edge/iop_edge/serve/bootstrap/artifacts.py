"""The folder of wheels that nodes install, and its manifest.

Only what the manifest names leaves the folder, and only as a regular file that lies in it: no
path is ever joined, no link is followed. The folder may be filled or replaced while an edge runs,
so it is looked at anew for each request. Everything here blocks on the file system.
"""

from __future__ import annotations

import os
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1_048_576

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}\Z")


class NoArtifacts(Exception):
    """The folder offers nothing, or not this; the message says what would be right."""


class Target(Struct, frozen=True, kw_only=True):
    """A Python and an architecture that the folder is complete for, as in 3.12 and x86_64."""

    python: str
    platform: str


class Artifact(Struct, frozen=True, kw_only=True):
    """One wheel. `python` and `platform` are `any` where it serves every target in that respect."""

    file: str
    sha256: str
    size: int
    name: str
    version: str
    python: str
    platform: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What the folder holds. `glibc` is the oldest C library that all wheels run on."""

    iop: str
    glibc: str
    targets: tuple[Target, ...]
    files: tuple[Artifact, ...]


class ArtifactFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def manifest_bytes(self) -> bytes:
        """The manifest as it lies there; join lines pin its digest. Raises NoArtifacts."""
        with self._open(MANIFEST) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise NoArtifacts(f"{self._path / MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
        return content

    def manifest(self) -> tuple[Manifest, str]:
        """The manifest and its sha256. Raises NoArtifacts, also where it is no manifest."""
        content = self.manifest_bytes()
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NoArtifacts(f"{self._path / MANIFEST} is no manifest of artifacts") from None
        return manifest, sha256(content).hexdigest()

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """A file that the manifest names, and its size in bytes. Raises NoArtifacts."""
        manifest, _ = self.manifest()
        if all(artifact.file != name for artifact in manifest.files):
            raise NoArtifacts("the manifest names no such file")
        file = self._open(name)
        return file, os.fstat(file.fileno()).st_size

    def _open(self, name: str) -> BinaryIO:
        """A regular file that lies in the folder itself."""
        if not _FILE_NAME.match(name):
            raise NoArtifacts("this is no name of a file here")
        try:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NoArtifacts(
                f"the artifact folder {self._path} cannot be read ({error.strerror}); "
                "`make artifacts` fills one, and bootstrap.artifact_dir names it"
            ) from None
        try:
            # Without waiting: opening a pipe would block for as long as nobody writes to it.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            raise NoArtifacts(
                f"the artifact folder has no {name} that can be read ({error.strerror})"
            ) from None
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NoArtifacts(f"{name} in the artifact folder is no regular file")
        return os.fdopen(descriptor, "rb")
