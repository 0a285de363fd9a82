"""The one reference to what the edge runs by.

A snapshot is immutable and whole: config, digest, secrets, catalog. Replacing it is one
assignment, so a reader that takes `store.current` once sees one generation and never parts of
two (REF-7). Live counters live elsewhere and survive a replacement.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.resolving.queue import QueueSource
from iop_edge.config.vault import Vault
from iop_edge.pool.catalog import Catalog
from iop_shared.ids import Generation


class RuntimeSnapshot(Struct, frozen=True, kw_only=True):
    """One generation of everything that a refresh replaces."""

    generation: Generation
    config: EffectiveConfig
    config_digest: str
    """`sha256:` and the digest of the candidate's bytes."""
    vault: Vault
    catalog: Catalog
    applied_at: datetime
    queue_source: QueueSource = "default"
    """Where the queue policy comes from (CFG-8); it is never written back into a file."""


class SnapshotStore:
    """Holds the current snapshot. `swap` is the only way to change it."""

    def __init__(self, first: RuntimeSnapshot) -> None:
        self._current = first

    @property
    def current(self) -> RuntimeSnapshot:
        return self._current

    def swap(self, successor: RuntimeSnapshot) -> RuntimeSnapshot:
        """Replace the snapshot and return the old one. The generation must grow by one."""
        if successor.generation != self._current.generation + 1:
            raise ValueError(
                f"generation {successor.generation} does not follow {self._current.generation}"
            )
        before, self._current = self._current, successor
        return before
