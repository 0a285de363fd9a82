"""The shapes of load, and what one measurement of one contender under one shape tells."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bench.speed.answers import Kind


class Shape(NamedTuple):
    kind: Kind
    in_flight: int


SHAPES: dict[str, Shape] = {
    "plain1": Shape("plain", 1),
    "plain16": Shape("plain", 16),
    "plain64": Shape("plain", 64),
    "burst16": Shape("burst", 16),
    "paced16": Shape("paced", 16),
    "paced64": Shape("paced", 64),
}


class Sample(msgspec.Struct, frozen=True):
    """One contender under one shape in one round. CPU is user and system time of all processes."""

    contender: str
    shape: str
    round: int
    requests: int
    cpu_us: float  # for each request
    parts_us: dict[str, float]  # the same, of each named process
    p50_ms: float
    p99_ms: float
    first_byte_ms: float
    """Median from the request's last byte to the first byte of the body."""


class Memory(msgspec.Struct, frozen=True):
    """Of all processes of a contender together, after everything."""

    peak_mib: float
    pss_mib: float
