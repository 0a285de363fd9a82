"""Names that must differ: exactly, and in more than case or Unicode form (CFG-3)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from iop_edge.config.paths import render
from iop_edge.config.report import Report
from iop_edge.config.yaml12.places import Steps


def fold(name: str) -> str:
    """The form in which confusable names are equal."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


Names = Callable[[], Iterable[tuple[str, Steps]]]
"""Asked once where all is well, so that the steps of ten thousand names are not kept."""


def check_distinct(names: Names, what: str, report: Report, *, taken: Names = tuple) -> None:
    """Report every name that stands a second time, with the place of the first.

    Both are asked for pairs of a name and the steps to it; a blank name is skipped. Those of
    `taken` come first and are not judged themselves.
    """
    folded = [fold(name) for source in (taken, names) for name, _ in source() if name]
    if len(set(folded)) == len(folded):
        return
    seen: dict[str, tuple[str, Steps]] = {}
    for name, steps in taken():
        seen.setdefault(fold(name), (name, steps))
    for name, steps in names():
        if not name:
            continue
        first_name, first_steps = seen.setdefault(fold(name), (name, steps))
        if first_steps is steps:
            continue
        place = report.places.find(report.root, first_steps)
        where = f"{render(report.root, first_steps)} in line {place.line} of {place.file}"
        if first_name == name:
            report.error("duplicate_id", f"this {what} is already taken by {where}", steps)
        else:
            report.error(
                "confusable_id",
                f"this {what} differs from that of {where} in case or Unicode form alone",
                steps,
            )
