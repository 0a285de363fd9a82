"""Collects every problem of one load, and gives each its path and place at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from iop_edge.config.paths import render
from iop_edge.config.problems import ConfigInvalid, Problem, Severity
from iop_edge.config.yaml12.places import Place, Places, Steps

MAX_COLLECTED = 2_000
"""Past this many errors the rest is only counted: a bad file may cost no more than a good one."""


class _Found(NamedTuple):
    is_last: bool
    place: Place
    order: int
    problem: Problem


class Report:
    """The problems of one candidate, in whatever order they are met.

    `root` is the tree that steps lead through; it is the merged tree once there is one.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.root: Any = {}
        self._found: list[_Found] = []
        self._closed: set[int] = set()
        self._errors = 0

    @property
    def has_errors(self) -> bool:
        return self._errors > 0

    def error(
        self,
        code: str,
        message: str,
        steps: Steps,
        *,
        on_key: bool = False,
        is_last: bool = False,
        path: Steps | None = None,
    ) -> None:
        """Something that keeps the candidate from running.

        `on_key` places it at the key instead of the value. `is_last` lists it after all others.
        `path` names another path than that of its place.
        """
        self._add(code, message, steps, "error", on_key=on_key, is_last=is_last, path=path)

    def warning(self, code: str, message: str, steps: Steps, *, on_key: bool = False) -> None:
        """Something that an operator should know, and that runs."""
        self._add(code, message, steps, "warning", on_key=on_key)

    def close(self, steps: Steps) -> None:
        """Nothing more is to be said about what was written exactly here."""
        mark = self.places.mark_of(self.root, steps)
        if mark is not None:
            self._closed.add(mark)

    def is_closed(self, steps: Steps) -> bool:
        """Whether everything was said about what was written exactly here."""
        return bool(self._closed) and self.places.mark_of(self.root, steps) in self._closed

    def at(self, code: str, message: str, place: Place, path: str = "") -> None:
        """An error whose place is known, in a text that may have no tree."""
        if self._is_counted_only("error"):
            return
        self._keep(
            Problem(
                code=code,
                path=path,
                file=place.file,
                line=place.line,
                column=place.column,
                message=message,
            ),
            place,
            is_last=False,
        )

    def _add(
        self,
        code: str,
        message: str,
        steps: Steps,
        severity: Severity,
        *,
        on_key: bool,
        is_last: bool = False,
        path: Steps | None = None,
    ) -> None:
        if self.is_closed(steps) or self._is_counted_only(severity):
            return
        place = self.places.find(self.root, steps, on_key=on_key)
        problem = Problem(
            code=code,
            path=render(self.root, steps if path is None else path),
            file=place.file,
            line=place.line,
            column=place.column,
            message=printable(message),
            severity=severity,
        )
        self._keep(problem, place, is_last=is_last)

    def _keep(self, problem: Problem, place: Place, *, is_last: bool) -> None:
        self._found.append(_Found(is_last, place, len(self._found), problem))

    def count(self, number: int) -> None:
        """So many errors more, of which nothing else is kept."""
        self._errors += number

    def _is_counted_only(self, severity: Severity) -> bool:
        if severity == "warning":
            return False
        self._errors += 1
        return self._errors > MAX_COLLECTED

    def invalid(self) -> ConfigInvalid:
        """The exception that tells all of it."""
        kept = self.problems()
        errors = sum(one.severity == "error" for one in kept)
        return ConfigInvalid(kept, uncollected=self._errors - errors)

    def problems(self) -> tuple[Problem, ...]:
        """Those collected: errors before warnings, each in the order of files and lines."""
        names = {found.place.file for found in self._found}
        order = {name: self.places.file_number(name) for name in names}
        return tuple(
            found.problem
            for found in sorted(
                self._found,
                key=lambda found: (
                    found.problem.severity == "warning",
                    found.is_last,
                    order[found.place.file],
                    found.place.line,
                    found.place.column,
                    found.order,
                ),
            )
        )

    def warnings(self) -> tuple[Problem, ...]:
        return tuple(one for one in self.problems() if one.severity == "warning")


def printable(text: str) -> str:
    """The text with everything that could steer a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def code_spans(names: Iterable[str]) -> str:
    """`a`, `b` or `c`: names for the middle of a sentence."""
    marked = [f"`{name}`" for name in names]
    if len(marked) < 2:
        return "".join(marked)
    return f"{', '.join(marked[:-1])} or {marked[-1]}"
