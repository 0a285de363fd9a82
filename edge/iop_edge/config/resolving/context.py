"""What the rooms that resolve a document share: where to report, and how to guess names."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from iop_edge.config.likely import Likely
from iop_edge.config.report import Report

T = TypeVar("T", bound=Struct)


class Context(NamedTuple):
    report: Report
    likely: Likely


def written(document: Struct | None) -> dict[str, Any]:
    """The fields that were written, by name."""
    if document is None:
        return {}
    return {
        name: value
        for name in document.__struct_fields__
        if (value := getattr(document, name)) is not None
    }


def fill(cls: type[T], document: Struct | None, **resolved: Any) -> T:
    """An effective section: what was written, over its defaults. `resolved` stands over both."""
    return cls(**(written(document) | resolved))
