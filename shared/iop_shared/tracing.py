"""Spans and trace contexts (W3C Trace Context), as both ends make them. Pure but for the new ids.

A span is made when what it tells of is over. Only its id is made before, since the next hop has to
be told whom to name as its parent. What becomes of a span is a `SpanSink`'s affair; nothing here
knows a collector or a library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal, Protocol, Self

from msgspec import Struct

SpanKind = Literal["server", "client"]
AttributeValue = str | int | bool

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


class TraceContext(Struct, frozen=True, gc=False):
    """A place in a trace: what the next hop names as its parent. Ids in hex, never all zero."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str) -> Self | None:
        """The context of a `traceparent`; None where it is empty or none."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        is_void = not trace_id.strip("0") or not span_id.strip("0")
        if version == "ff" or is_void or (version == "00" and more is not None):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @classmethod
    def root(cls) -> Self:
        """A span that nothing called, in a trace of its own."""
        return cls(_new_id(16), _new_id(8))

    def child(self) -> Self:
        """A new span below this one."""
        return type(self)(self.trace_id, _new_id(8), self.is_sampled)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def _new_id(size: int) -> str:
    # One in 2^64 is void, and would be dropped wherever it goes.
    while not (made := os.urandom(size)).strip(b"\0"):
        pass
    return made.hex()


class Span(Struct, frozen=True, kw_only=True):
    """Something that is over. Times in nanoseconds since the epoch.

    Attributes hold ids out of the config, ids that were made here, codes and counts: never a text,
    an address or a token (SEC-1). `parent_id` is empty for the first span of a trace.
    """

    name: str
    kind: SpanKind
    context: TraceContext
    parent_id: str
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, AttributeValue]
    is_error: bool


class SpanSink(Protocol):
    """Takes spans that are over. Never waits, and never raises."""

    def take(self, span: Span) -> None: ...


def can_export() -> bool:
    """Whether the extra `iop[otel]` is installed. Imports nothing of it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("opentelemetry-exporter-otlp-proto-http")
    except PackageNotFoundError:
        return False
    return True


def known(**attributes: AttributeValue | None) -> dict[str, AttributeValue]:
    """Attributes under `iop.`, without those that were never known."""
    return {f"iop.{name}": value for name, value in attributes.items() if value not in (None, "")}
