"""What is wrong with a config: one value per problem, all problems of a run in one exception.

A problem says where (config path, file, line, column), what (a stable code) and, in one sentence,
what would be right. It never holds a secret or any text the loader could not prove harmless: the
sentences are made here and in the rooms that find the problem, never by a decoder (CFG-4).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

MAX_SHOWN = 50

Severity = Literal["error", "warning"]


class Problem(Struct, frozen=True, kw_only=True, gc=False):
    """One thing that is wrong. Lines and columns count from 1; 0 where there is no place.

    `path` reads like `nodes[gpu-a].providers[p1].capacity` and is empty for the file as a whole.
    """

    code: str
    path: str
    file: str
    line: int
    column: int
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f" {self.path}:" if self.path else ""
        return f"{place}: {self.code}:{path} {self.message}"


class ConfigInvalid(Exception):
    """The candidate cannot run. Nothing has changed (REF-5).

    `problems` holds the first 50, errors before warnings, in the order of their places; `omitted`
    counts the rest, those included that were only counted when they were found. `errors` counts
    all that are no warnings, shown or not.
    """

    def __init__(self, problems: Iterable[Problem], *, uncollected: int = 0) -> None:
        every = tuple(problems)
        self.problems = every[:MAX_SHOWN]
        self.errors = sum(one.severity == "error" for one in every) + uncollected
        self.omitted = len(every) - len(self.problems) + uncollected
        super().__init__(str(self))

    def __str__(self) -> str:
        rest = f"\n… and {self.omitted} more" if self.omitted else ""
        return "\n".join(map(str, self.problems)) + rest
