"""Keeps count of what the gate of one run saw and did, for its report. Holds no text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from iop_edge.config.effective import GateEnforcement, GateFilterName
from iop_edge.gate.evidence import Channel
from iop_edge.gate.filters import FilterAt
from iop_edge.gate.repeat import Loop
from iop_edge.gate.report import (
    Cause,
    FilterReport,
    GateReport,
    Match,
    RecoveryReport,
    Refusal,
    Strategy,
)


class _Looked(Struct):
    enforcement: GateEnforcement
    seen: int = 0
    matches: int = 0


class GateLedger:
    """One run's. An attempt begins with `begin`, a recovery with `recovery`."""

    def __init__(self) -> None:
        self._attempt = 0
        self._filters: dict[GateFilterName, _Looked] = {}
        self._matches: list[Match] = []
        self._recoveries: list[RecoveryReport] = []
        self._longest_hold_chars = 0

    def begin(self, filters: Sequence[FilterAt]) -> None:
        self._attempt += 1
        for one in filters:
            if one.is_enabled:
                self._filters.setdefault(one.name, _Looked(one.enforcement))
                self._filters[one.name].enforcement = one.enforcement

    def saw(self, name: GateFilterName, count: int) -> None:
        """A filter has looked at so much more. One that is not enabled here has not."""
        looked = self._filters.get(name)
        if looked is not None:
            looked.seen += count

    def held(self, chars: int) -> None:
        self._longest_hold_chars = max(self._longest_hold_chars, chars)

    def repetition(self, channel: Channel, loop: Loop, offset: int) -> None:
        looked = self._filters["repeat_guard"]
        looked.matches += 1
        self._matches.append(
            Match(
                filter="repeat_guard",
                enforcement=looked.enforcement,
                attempt=self._attempt,
                channel=channel,
                offset=offset,
                period=loop.period,
                count=loop.count,
                fingerprint=loop.fingerprint,
            )
        )

    def recovery(
        self, strategy: Strategy, cause: Cause, released_chars: int, refusal: Refusal | None
    ) -> None:
        self._recoveries.append(
            RecoveryReport(
                strategy=strategy,
                cause=cause,
                attempt=self._attempt,
                released_chars=released_chars,
                outcome="failed" if refusal is None else "refused",
                refusal=refusal,
            )
        )

    def trimmed(self, chars: int) -> None:
        """So much of the last recovery's answer was not told twice."""
        self._amend(trimmed_chars=chars)

    def answered(self, *, fits: bool) -> None:
        """The attempt has given its answer to the end. Where its tool calls do not fit, a repair
        that was to mend just that has failed all the same."""
        if not self._recoveries:
            return
        last = self._recoveries[-1]
        if last.outcome == "failed" and (fits or last.strategy != "schema_repair"):
            self._amend(outcome="recovered")

    def refused(self, refusal: Refusal) -> None:
        """The last recovery was never begun after all."""
        self._amend(outcome="refused", refusal=refusal)

    def report(self, released_chars: int) -> GateReport:
        return GateReport(
            filters=tuple(
                FilterReport(
                    filter=name,
                    enforcement=looked.enforcement,
                    seen=looked.seen,
                    matches=looked.matches,
                )
                for name, looked in self._filters.items()
            ),
            matches=tuple(self._matches),
            recoveries=tuple(self._recoveries),
            longest_hold_chars=self._longest_hold_chars,
            released_chars=released_chars,
        )

    def _amend(self, **changes: object) -> None:
        if self._recoveries:
            self._recoveries[-1] = structs.replace(self._recoveries[-1], **changes)
