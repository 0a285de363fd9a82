"""Everything the loader may look at, as one value.

The loader is pure: files, environment and secret files reach it only through here. Whoever fills
a `Sources` in (`iop_edge.runtime.sources`) reads each config file exactly once, so what was
validated is what is applied (REF-10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

from msgspec import Struct


class SourceFile(Struct, frozen=True, gc=False):
    """One config file: the name to show in problems, and its bytes as they were read."""

    name: str
    content: bytes


class SecretFile(Struct, frozen=True, gc=False):
    """A secret file as it was read. The repr shows nothing of the content."""

    content: bytes
    mode: int
    """Permission bits, as in `st_mode & 0o777`."""

    def __repr__(self) -> str:
        return f"SecretFile(mode={self.mode:o})"


class SecretUnreadable(Exception):
    """A secret file cannot be read. `reason` is a phrase such as `does not exist`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Sources(Struct, frozen=True, kw_only=True):
    """A candidate: what one load looks at.

    `read_secret` raises SecretUnreadable. `fingerprint_key` makes the digests by which two
    candidates of one edge process are compared; it is random, and never leaves the process.
    `can_trace` says that the extra `iop[otel]` is installed.
    """

    files: tuple[SourceFile, ...]
    environment: Mapping[str, str]
    read_secret: Callable[[str], SecretFile]
    fingerprint_key: bytes
    can_trace: bool = True

    def __repr__(self) -> str:
        return f"Sources({', '.join(file.name for file in self.files)})"

    def digest(self) -> str:
        """`sha256:` and hex over the candidate's bytes.

        One file: the digest of its bytes, as `sha256sum` prints it. Several: the digest of their
        digests in order, since moving bytes across a file's end changes what they mean.
        """
        digests = [sha256(file.content) for file in self.files]
        if len(digests) == 1:
            return f"sha256:{digests[0].hexdigest()}"
        return f"sha256:{sha256(b''.join(one.digest() for one in digests)).hexdigest()}"
