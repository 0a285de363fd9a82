"""Moments of the wall clock as text, in UTC, for what is written at every run.

It knows no clock: moments are handed in, as seconds since the epoch. The part down to the second
is put into words once a second, since that is most of the work.
"""

from __future__ import annotations

from datetime import UTC, datetime

_told_second = -1
_told = ""


def to_milliseconds(moment_s: float) -> str:
    """As in `2026-11-30T16:17:55.174`, cut off below; the zone is not named."""
    second, fraction = divmod(moment_s, 1.0)
    return f"{_to_second(int(second))}.{int(fraction * 1_000):03d}"


def to_microseconds(moment_s: float) -> str:
    """As in `2026-11-30T16:17:55.174941`, cut off below; the zone is not named."""
    second, fraction = divmod(moment_s, 1.0)
    return f"{_to_second(int(second))}.{int(fraction * 1_000_000):06d}"


def _to_second(second: int) -> str:
    global _told_second, _told
    if second != _told_second:
        _told = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _told_second = second
    return _told
