"""What an ingress hands down to the run service, and the answer it gets back.

The run service knows leases, attempts and faults; it does not know JSON, server-sent events or
any caller's dialect. Those come in as a `Work`: it renders the upstream request for whichever
provider was chosen, and reads the upstream's answer as it comes. All of it is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from iop.runtime_pb2 import RunEvent, RunRequest
from iop_edge.gate.evidence import Piece, Recorded
from iop_edge.gate.options import GateOptions
from iop_edge.pool.demand import Demand
from iop_edge.pool.estimate import TokenEstimate
from iop_shared.ids import ModelId, RunId, Target
from iop_shared.profiles import Operation

Surface = Literal["chat", "responses", "messages", "count_tokens", "submit_run"]
HeaderPairs = Sequence[tuple[str, str]]

Arrived_contra = TypeVar("Arrived_contra", contravariant=True)


class ReportedUsage(Struct, frozen=True, kw_only=True):
    """Tokens as an upstream reported them. A reported zero is a zero; None is not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None


class AnswerReader(Protocol):
    """Reads one upstream answer, chunk by chunk, in the order of arrival. No I/O, no clock."""

    @property
    def usage(self) -> ReportedUsage:
        """What has been reported so far; the last report counts, repeated ones are not summed."""
        ...

    def generated_tokens(self, chars_per_token: float | None) -> int:
        """An estimate of what has been generated so far, by its text; 0 where nothing was."""
        ...

    @property
    def told_end(self) -> str | None:
        """How the answer itself has said that it ended, as a record says it; None until it has.

        What comes after that, or fails to come, changes nothing for the caller.
        """
        ...

    @property
    def headers(self) -> HeaderPairs:
        """The response headers for the caller: never a copy of all that the upstream sent."""
        ...

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes and return what may be released to the caller now.

        Raises Fault(upstream_invalid) on an answer that is none.
        """
        ...

    def end(self) -> bytes:
        """The upstream's body is complete: return what is left to release.

        Raises Fault(upstream_closed) where the protocol's terminal marker is missing (OAI-7).
        """
        ...


class RunReader(Protocol):
    """Reads the events of one normalized run, in order. No I/O, no clock."""

    @property
    def usage(self) -> ReportedUsage: ...

    def generated_tokens(self, chars_per_token: float | None) -> int: ...

    @property
    def told_end(self) -> str | None: ...

    @property
    def headers(self) -> HeaderPairs: ...

    def feed(self, event: RunEvent) -> bytes:
        """Take the next event and return what may be released to the caller now."""
        ...

    def end(self) -> bytes:
        """The run is over: return what is left. Raises Fault(upstream_closed) without a finish."""
        ...


class Work(Protocol):
    """One caller's request, ready to be rendered for any provider that may be chosen.

    On a provider that speaks the caller's protocol the request is relayed (`upstream_body`,
    `reader`); on any other it runs normalized (`run_request`, `run_reader`), and `reader` is then
    for an upstream that answered with an error status (POOL-14).
    """

    @property
    def operation(self) -> Operation | None:
        """The caller's operation; None where there is none to relay (SubmitRun)."""
        ...

    @property
    def is_stream(self) -> bool: ...

    @property
    def auth_override(self) -> tuple[str, str] | None:
        """The caller's own provider token as (header, value), in place of the adapter's (OAI-4)."""
        ...

    def upstream_headers(self) -> HeaderPairs:
        """Headers for the upstream, beside those of the adapter's own."""
        ...

    def upstream_body(self, target: Target) -> bytes:
        """The request body with the model name that the chosen provider's upstream uses."""
        ...

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> AnswerReader:
        """A reader for an answer that began with this status and these headers."""
        ...

    def run_request(self) -> RunRequest:
        """The request as a run, without adapter and target.

        Raises Fault(unsupported_field) for what a run cannot express, naming it, and
        Fault(unsupported_by_model) where the caller's operation has no normalized form.
        """
        ...

    def run_reader(self) -> RunReader:
        """A reader for the events of that run."""
        ...


class GatedReader(Protocol[Arrived_contra]):
    """Reads the answer of one attempt for the gate: as pieces that it may judge, hold or drop.

    What arrives is bytes of a relayed answer, or the events of a normalized run. `usage`,
    `told_end`, `headers` and `generated_tokens` are as of the readers above.
    """

    @property
    def usage(self) -> ReportedUsage: ...

    def generated_tokens(self, chars_per_token: float | None) -> int: ...

    @property
    def told_end(self) -> str | None: ...

    @property
    def headers(self) -> HeaderPairs: ...

    def feed(self, arrived: Arrived_contra) -> Sequence[Piece]:
        """Take what came next; return what is whole now.

        Of an attempt that begins the answer every piece is `raw`, and all of them joined are the
        bytes that the reader without a gate releases (GATE-1). Of a later one none is, except for
        an error that the upstream tells: a piece that says nothing, and ends the answer as it is.
        Raises Fault(upstream_invalid) on an answer that is none.
        """
        ...

    def end(self) -> Sequence[Piece]:
        """The upstream's body, or the run, is complete: return what is left.

        Raises Fault(upstream_closed) where the end is missing (OAI-7).
        """
        ...


class Stitch(Protocol):
    """The one answer that the caller sees, put together out of one or more attempts' pieces."""

    @property
    def headers(self) -> HeaderPairs: ...

    def go_on(self) -> None:
        """The pieces of a later attempt follow, which go on with what has been written."""
        ...

    def write(self, piece: Piece) -> bytes:
        """Take the next piece that is released; return what the caller is sent for it.

        A raw piece goes out as it is, and is looked at only so that others can go on after it.
        """
        ...

    def end(self, usage: ReportedUsage) -> bytes:
        """The run is over, with this usage over all its attempts: return what is left to say.

        Nothing where raw pieces have said it all. Raises Fault(upstream_closed) where nobody has
        said the end.
        """
        ...


class GatedWork(Work, Protocol):
    """A request on a surface that the gate owns (GATE-1); SubmitRun's is none."""

    @property
    def has_temperature(self) -> bool:
        """Whether the caller gave one: it is kept then (GATE-5)."""
        ...

    @property
    def choices(self) -> int:
        """How many answers were asked for; only one can be repaired."""
        ...

    @property
    def output_limit(self) -> int | None:
        """Tokens of output that the caller asked for, or the policy set; None where neither did."""
        ...

    @property
    def tool_schemas(self) -> Mapping[str, bytes]:
        """The declared tools' JSON schemas for their arguments, by the tool's name; empty for a
        tool that has none, and under the empty name for tools whose names are not known."""
        ...

    @property
    def snapshot_bytes(self) -> int:
        """The size of the request that a continuation is built from."""
        ...

    def gated_reader(
        self, status: int, headers: HeaderPairs, target: Target, *, is_first: bool
    ) -> GatedReader[bytes]:
        """As `reader`, for the gate. `is_first`: nothing of the answer has been written yet."""
        ...

    def gated_run_reader(self, *, is_first: bool) -> GatedReader[RunEvent]:
        """As `run_reader`, for the gate."""
        ...

    def stitch(self, kept_chars: int) -> Stitch:
        """A new answer, of which nothing has been written. Of what is written it keeps what its
        rest takes, until that is more than `kept_chars`."""
        ...

    def continued(
        self,
        recorded: Recorded,
        directive: str,
        *,
        temperature: float | None,
        output_tokens: int | None,
    ) -> GatedWork:
        """The same request with what was said and the directive appended (GATE-5).

        Always called on the run's own work, never on one that is continued already. The
        temperature is put in only where the caller gave none; the output limit is lowered to
        `output_tokens`, or put in where there is none.
        """
        ...

    def continued_tokens(
        self, recorded: Recorded, directive: str, chars_per_token: float | None = None
    ) -> TokenEstimate:
        """The tokens of input that `continued` appends."""
        ...


class Principal(Struct, frozen=True, kw_only=True):
    """Who calls, as the config names them. Never the token."""

    token_ref: str
    principal_ref: str
    principal_alias: str | None = None


class RunSpec(Struct, frozen=True, kw_only=True):
    """A run as the caller asked for it, frozen at its start.

    `chars_per_token` is the model's, for estimates of what its upstream does not report. `gated`
    is the same work on the surfaces that the gate owns, and `gate` its options where the gate is
    enabled (REF-11); each is None otherwise.
    """

    run_id: RunId
    request_id: str
    surface: Surface
    model: ModelId
    demand: Demand
    work: Work
    principal: Principal | None = None
    traceparent: str = ""
    chars_per_token: float | None = None
    gated: GatedWork | None = None
    gate: GateOptions | None = None
