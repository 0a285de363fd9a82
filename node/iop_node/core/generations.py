"""Which registry serves, which ones still drain, and what may be stopped when.

Pure: a clock value goes in, effects come out. It decides when a registry and the things it holds
have no user left; it never knows what a registry is, nor how anything is started or stopped.

A registry goes one way: prepared → current → draining → stopped, or prepared → abandoned. Exactly
one is current once the first was installed; any number may drain at once (NODE-4). Things held by
several registries (adapters of equal config) are released with the last that holds them (NODE-3).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

Token = TypeVar("Token", bound=Hashable)


class Phase(enum.Enum):
    PREPARED = "prepared"
    CURRENT = "current"
    DRAINING = "draining"


class RegistryLease(Generic[Token]):
    """One run's hold on the registry that it began with. Compared by identity."""

    __slots__ = ("token",)

    def __init__(self, token: Token) -> None:
        self.token = token


class Drained(NamedTuple):
    """A registry that was replaced has no lease left. Stop it, and with it `released`."""

    generation: int
    token: Any
    released: tuple[Any, ...]


class Abandoned(NamedTuple):
    """A prepared registry will not be installed. Stop `released`, which nobody else holds."""

    generation: int
    token: Any
    released: tuple[Any, ...]


class DeadlineReached(NamedTuple):
    """A draining registry ran out of time: end the runs that hold `leases`.

    Said once. The registry is stopped when those leases come back, as any other.
    """

    generation: int
    leases: tuple[RegistryLease[Any], ...]


Effect = Drained | Abandoned | DeadlineReached


class Draining(NamedTuple):
    """For status. `deadline_in_s` is None where there is no deadline, 0 once it has passed."""

    generation: int
    leases: int
    deadline_in_s: float | None


class _Entry(Generic[Token]):
    __slots__ = ("deadline", "generation", "held", "is_deadline_told", "leases", "phase", "token")

    def __init__(self, generation: int, token: Token, held: tuple[Any, ...]) -> None:
        self.generation = generation
        self.token = token
        self.held = held
        self.phase = Phase.PREPARED
        # A dict keeps the order of arrival, so that effects are the same in every run.
        self.leases: dict[RegistryLease[Token], None] = {}
        self.deadline: float | None = None
        self.is_deadline_told = False


class Generations(Generic[Token]):
    """The machine. `token` stands for a registry; generation numbers need not be unique, since
    they are compared within one edge process only (REF-9)."""

    def __init__(self) -> None:
        self._entries: dict[Token, _Entry[Token]] = {}
        self._current: _Entry[Token] | None = None

    # --- replacing -------------------------------------------------------------------------

    def prepare(self, generation: int, token: Token, held: Collection[Any]) -> None:
        """Note a registry that is being started; from now on it holds what it shares.

        Raises ValueError for a token that is known already.
        """
        if token in self._entries:
            raise ValueError(f"registry of generation {generation} is known already")
        self._entries[token] = _Entry(generation, token, tuple(dict.fromkeys(held)))

    def install(self, token: Token, now: float, drain_s: float | None) -> list[Effect]:
        """Make a prepared registry the current one; the old one has `drain_s` to finish its runs.

        `drain_s` in seconds, None for no deadline. Raises ValueError unless `token` is prepared.
        """
        entry = self._prepared(token)
        entry.phase = Phase.CURRENT
        before, self._current = self._current, entry
        return self._retire(before, now, drain_s)

    def abandon(self, token: Token) -> list[Effect]:
        """Drop a prepared registry. Raises ValueError unless `token` is prepared."""
        entry = self._prepared(token)
        released = self._remove(entry)
        return [Abandoned(entry.generation, entry.token, released)]

    def retire(self, now: float, drain_s: float | None) -> list[Effect]:
        """Let the current registry drain without a successor: the node ends.

        One deadline holds for the whole end, so registries that drain already get no longer one.
        """
        before, self._current = self._current, None
        effects = self._retire(before, now, drain_s)
        if drain_s is not None:
            for entry in self._entries.values():
                if entry.phase is Phase.DRAINING:
                    bound = now + drain_s if entry.deadline is None else entry.deadline
                    entry.deadline = min(now + drain_s, bound)
        return effects

    # --- leases ----------------------------------------------------------------------------

    def take(self) -> RegistryLease[Token]:
        """A lease on the current registry. Raises LookupError when there is none."""
        if self._current is None:
            raise LookupError("no registry is installed")
        lease = RegistryLease(self._current.token)
        self._current.leases[lease] = None
        return lease

    def give_back(self, lease: RegistryLease[Token]) -> list[Effect]:
        """End a lease. Raises ValueError for one that was given back before."""
        entry = self._entries.get(lease.token)
        if entry is None or lease not in entry.leases:
            raise ValueError("the lease was given back before")
        del entry.leases[lease]
        return self._stop_if_drained(entry)

    # --- time ------------------------------------------------------------------------------

    def due(self, now: float) -> list[Effect]:
        """What the clock brings. Safe to call at any time, any number of times."""
        effects: list[Effect] = []
        for entry in self._entries.values():
            if entry.deadline is None or entry.is_deadline_told or entry.deadline > now:
                continue
            entry.is_deadline_told = True
            effects.append(DeadlineReached(entry.generation, tuple(entry.leases)))
        return effects

    def next_due(self) -> float | None:
        """When `due` will next have something to say, None for never."""
        return min(
            (
                entry.deadline
                for entry in self._entries.values()
                if entry.deadline is not None and not entry.is_deadline_told
            ),
            default=None,
        )

    # --- looking ---------------------------------------------------------------------------

    @property
    def current(self) -> Token | None:
        return None if self._current is None else self._current.token

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Every registry that still lives, the oldest first."""
        return tuple(self._entries)

    @property
    def leases(self) -> int:
        return sum(len(entry.leases) for entry in self._entries.values())

    def draining(self, now: float) -> tuple[Draining, ...]:
        """The registries that drain, the oldest first."""
        return tuple(
            Draining(
                entry.generation,
                len(entry.leases),
                None if entry.deadline is None else max(0.0, entry.deadline - now),
            )
            for entry in self._entries.values()
            if entry.phase is Phase.DRAINING
        )

    def __repr__(self) -> str:
        entries = ", ".join(
            f"{entry.generation} {entry.phase.value} with {len(entry.leases)}"
            for entry in self._entries.values()
        )
        return f"Generations({entries})"

    # --- inside ----------------------------------------------------------------------------

    def _prepared(self, token: Token) -> _Entry[Token]:
        entry = self._entries.get(token)
        if entry is None or entry.phase is not Phase.PREPARED:
            raise ValueError("the registry is not prepared")
        return entry

    def _retire(
        self, entry: _Entry[Token] | None, now: float, drain_s: float | None
    ) -> list[Effect]:
        if entry is None:
            return []
        entry.phase = Phase.DRAINING
        entry.deadline = None if drain_s is None else now + drain_s
        return self._stop_if_drained(entry)

    def _stop_if_drained(self, entry: _Entry[Token]) -> list[Effect]:
        if entry.phase is not Phase.DRAINING or entry.leases:
            return []
        released = self._remove(entry)
        return [Drained(entry.generation, entry.token, released)]

    def _remove(self, entry: _Entry[Token]) -> tuple[Any, ...]:
        del self._entries[entry.token]
        still_held = frozenset[Any]().union(*(other.held for other in self._entries.values()))
        return tuple(thing for thing in entry.held if thing not in still_held)
