"""A contender that answers: where it listens, and the processes whose cost is its cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.speed import processes

CALLER_TOKEN = "sk-bench"
"""What every caller shows, and every contender that can ask for a token asks for."""


class Absent(Exception):
    """It cannot be had here. Says why, in a word."""


@dataclass(frozen=True)
class Running:
    port: int
    parts: dict[str, int] = field(default_factory=dict)  # each process by a short name: its pid
    headers: dict[str, str] = field(default_factory=dict)  # that its callers send besides

    @property
    def families(self) -> dict[str, list[int]]:
        """Each process with all that it has started, as they are now."""
        return {part: processes.family(pid) for part, pid in self.parts.items()}

    @property
    def pids(self) -> list[int]:
        return [pid for family in self.families.values() for pid in family]
