"""How one upstream is reached, with every reference resolved. Immutable; shared by all kinds."""

from __future__ import annotations

import ssl

from msgspec import Struct


class ProbeSpec(Struct, frozen=True, kw_only=True):
    """A GET that tells how the upstream is.

    `path` is joined to the base URL as an operation's is (PROF-5); a whole URL is kept.
    """

    path: str
    interval_s: float
    timeout_s: float
    failures: int


class UpstreamSpec(Struct, frozen=True, kw_only=True):
    """Resolved from `UpstreamConfig`. Times are in seconds and above zero.

    `headers` hold secret values: they appear in no repr. `tls` is None for the system's roots.
    """

    base_url: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None
    allow_link_local: bool = False
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 300.0
    idle_timeout_s: float = 120.0
    total_timeout_s: float = 600.0
    probe: ProbeSpec | None = None

    def __repr__(self) -> str:
        return f"UpstreamSpec({len(self.headers)} headers)"
