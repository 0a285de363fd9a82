"""How often a run may repair itself, and what a repair may still ask for (GATE-2, GATE-5)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from iop_edge.gate.evidence import Recorded
from iop_edge.gate.options import GateOptions
from iop_edge.gate.report import STRATEGIES, Refusal, Strategy

_TEMPERATURES = (0.2, 0.4, 0.6)


class Request(Struct, frozen=True, kw_only=True):
    """What a run asked for, as far as its repairs are bounded by it.

    Tokens throughout. `asked_output` is what the caller asked for, `output_limit` what holds (the
    policy's default included); None where there is none. `count_floor` gives a lower bound of the
    tokens of a text, `estimate` a guess.
    """

    input_floor: int
    asked_output: int | None
    output_limit: int | None
    count_floor: Callable[[str], int]
    estimate: Callable[[str], int]


class Budget:
    """The recoveries of one run. Spent when a recovery begins, never given back."""

    def __init__(self, options: GateOptions) -> None:
        self._options = options
        self._spent: dict[Strategy, int] = dict.fromkeys(STRATEGIES, 0)

    @property
    def spent(self) -> int:
        return sum(self._spent.values())

    @property
    def is_spent(self) -> bool:
        """Whether no strategy may begin another recovery."""
        return (
            self._options.max_request_recoveries <= self.spent
            or self._options.max_strategy_recoveries <= min(self._spent.values())
        )

    def refusal(self, strategy: Strategy) -> Refusal | None:
        if self._options.max_request_recoveries <= self.spent:
            return "request_budget_spent"
        if self._options.max_strategy_recoveries <= self._spent[strategy]:
            return "strategy_budget_spent"
        return None

    def spend(self, strategy: Strategy) -> None:
        self._spent[strategy] += 1

    def temperature(self) -> float:
        """For the continuation that was spent last: others do not count (GATE-5)."""
        return _TEMPERATURES[min(self._spent["continuation_repair"], len(_TEMPERATURES)) - 1]


class Room(Struct, frozen=True):
    """A request that is rebuilt fits; its output limit is this one, None for none."""

    output_tokens: int | None


def room_for(
    request: Request, window: int | None, recorded: Recorded, directive: str
) -> Room | Refusal:
    """Whether the request fits its context window together with what was said and a directive.

    It is refused where the window is unknown, and where a lower bound of the input and what the
    caller still asks for exceed it (GATE-5, POOL-4). What was said counts against the output
    limit by its estimate, so at least one token of it is always left.
    """
    if window is None:
        return "context_window_unknown"
    texts = [text for text in (recorded.content, recorded.reasoning) if text]
    said = sum(map(request.estimate, texts))
    room = window - request.input_floor - sum(map(request.count_floor, (*texts, directive)))
    asked = 1 if request.asked_output is None else max(1, request.asked_output - said)
    if room < asked:
        return "context_window_exceeded"
    limit = request.output_limit
    return Room(None if limit is None else min(max(1, limit - said), room))
