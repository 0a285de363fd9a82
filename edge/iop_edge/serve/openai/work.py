"""One caller's request as work for the run service: rendered for whichever provider is chosen."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from iop.runtime_pb2 import RunEvent, RunRequest
from iop_edge.gate.evidence import Recorded
from iop_edge.pool.estimate import TokenEstimate, estimate_tokens
from iop_edge.runtime.work import (
    AnswerReader,
    GatedReader,
    HeaderPairs,
    RunReader,
    Stitch,
)
from iop_edge.serve.dialect.answers import reader_for
from iop_edge.serve.dialect.caller_protocols import CallerProtocol
from iop_edge.serve.dialect.gated import continuation
from iop_edge.serve.dialect.gated.continuation import Continuation
from iop_edge.serve.dialect.gated.declared_tools import tool_schemas
from iop_edge.serve.dialect.gated.protocols import GATED_PROTOCOLS
from iop_edge.serve.dialect.gated.readers import (
    GatedRun,
    GatedRunWhole,
    UnheardRun,
    gated_reader_for,
)
from iop_edge.serve.dialect.gated.stitch import StreamStitch, WholeStitch
from iop_edge.serve.dialect.gated.told import ToldChat, ToldMessage, ToldResponse
from iop_edge.serve.dialect.normalized import chat, messages, responses
from iop_edge.serve.dialect.normalized.chat_answer import ChatStream, ChatWhole
from iop_edge.serve.dialect.normalized.messages_answer import MessageStream, MessageWhole
from iop_edge.serve.dialect.normalized.responses_answer import ResponseStream, ResponseWhole
from iop_edge.serve.dialect.request import (
    Members,
    body_parts,
    upstream_body,
    whole_number,
)
from iop_shared.errors import Code, Fault
from iop_shared.ids import ModelId, RunId, Target
from iop_shared.profiles import Operation


class CallerWork:
    """A request, ready for upstreams that speak the caller's protocol and for those that do not.

    Satisfies `GatedWork`. `changes` are the literals that the policy puts into the request.
    `appended` is what a continuation adds to it, in whichever form it is then sent. Holds a
    credential (`auth_override`) and the prompt, so its repr shows the operation alone.
    """

    __slots__ = (
        "_appended", "_changes", "_created", "_headers", "_members", "_model", "_parts",
        "_protocol", "_request_id", "_run_id", "_tool_schemas", "auth_override", "is_stream",
    )  # fmt: skip

    def __init__(
        self,
        protocol: CallerProtocol,
        members: Members,
        changes: Mapping[str, bytes],
        *,
        model: ModelId,
        headers: HeaderPairs,
        run_id: RunId,
        request_id: str,
        created: int,
        is_stream: bool,
        auth_override: tuple[str, str] | None,
        appended: Continuation | None = None,
    ) -> None:
        self._protocol = protocol
        self._members = members
        self._changes = changes
        self._appended = appended
        sent = members
        if appended is not None:
            sent = continuation.members_with(members, protocol.surface, appended)
        self._parts = body_parts(sent, changes)
        self._tool_schemas: Mapping[str, bytes] | None = None
        self._model = model
        self._headers = headers
        self._run_id = run_id
        self._request_id = request_id
        self._created = created
        self.is_stream = is_stream
        self.auth_override = auth_override

    def __repr__(self) -> str:
        return f"CallerWork({self.operation}, is_stream={self.is_stream})"

    @property
    def operation(self) -> Operation:
        return self._protocol.operation

    # -- for an upstream that speaks the caller's protocol -----------------------------------------

    def upstream_headers(self) -> HeaderPairs:
        return self._headers

    def upstream_body(self, target: Target) -> bytes:
        return upstream_body(target, self._parts)

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> AnswerReader:
        """Also the reader of an error status that answers a normalized run."""
        return reader_for(
            status,
            headers,
            is_stream=self.is_stream,
            observer=self._protocol.observer(),
            model=self._model,
            dialect=self._protocol.dialect,
            request_id=self._request_id,
        )

    # -- for any other -----------------------------------------------------------------------------

    def run_request(self) -> RunRequest:
        """The request as a run; adapter and target are for the dispatch to fill (POOL-14).

        Raises Fault(unsupported_field) for what a run cannot express, Fault(invalid_value) for
        messages that are none, and Fault(unsupported_by_model) where there is no such run.
        """
        members = self._effective()
        match self._protocol.surface:
            case "chat":
                run = chat.run_request(members)
            case "responses":
                run = responses.run_request(members)
            case "messages":
                run = messages.run_request(members)
            case other:
                raise Fault(
                    Code.UNSUPPORTED_BY_MODEL, f"this model's provider does not offer {other}"
                )
        run.is_stream = self.is_stream
        if self._appended is not None:
            continuation.add_to_run(run, self._appended)
        return run

    def run_reader(self) -> RunReader:
        """A reader of the events of that run, which renders them in the caller's protocol."""
        match self._protocol.surface:
            case "responses":
                return self._response_stream() if self.is_stream else self._response_whole()
            case "messages":
                return self._message_stream() if self.is_stream else self._message_whole()
            case _:
                return self._chat_stream() if self.is_stream else self._chat_whole()

    def _chat_stream(self) -> ChatStream:
        return ChatStream(
            model=self._model,
            run_id=self._run_id,
            created=self._created,
            includes_usage=chat.includes_usage(self._members),
        )

    def _chat_whole(self) -> ChatWhole:
        return ChatWhole(model=self._model, run_id=self._run_id, created=self._created)

    def _message_stream(self) -> MessageStream:
        return MessageStream(model=self._model, run_id=self._run_id)

    def _message_whole(self) -> MessageWhole:
        return MessageWhole(model=self._model, run_id=self._run_id)

    def _response_stream(self) -> ResponseStream:
        echoed = responses.echoed(self._members)
        return ResponseStream(
            model=self._model, run_id=self._run_id, created=self._created, echoed=echoed
        )

    def _response_whole(self) -> ResponseWhole:
        echoed = responses.echoed(self._members)
        return ResponseWhole(
            model=self._model, run_id=self._run_id, created=self._created, echoed=echoed
        )

    def _effective(self) -> Members:
        """The caller's members under the policy."""
        return self._members | {name: Raw(value) for name, value in self._changes.items()}

    # -- for the gate ------------------------------------------------------------------------------

    @property
    def has_temperature(self) -> bool:
        # Anthropic's API takes no temperature beside a thinking that is on, so the one that holds
        # then is as good as given.
        return "temperature" in self._members or self._thinking_budget is not None

    @property
    def _thinking_budget(self) -> int | None:
        if not self._protocol.has_thinking_budget:
            return None
        return continuation.thinking_budget(self._effective())

    @property
    def choices(self) -> int:
        asked = whole_number(self._members, "n") if self._protocol.surface == "chat" else None
        return 1 if asked is None else asked

    @property
    def output_limit(self) -> int | None:
        members = self._effective()
        limits = (whole_number(members, name) for name in self._protocol.limit_fields)
        return next((limit for limit in limits if limit is not None), None)

    @property
    def tool_schemas(self) -> Mapping[str, bytes]:
        if self._tool_schemas is None:
            self._tool_schemas = tool_schemas(self._members, self._protocol.surface)
        return self._tool_schemas

    @property
    def snapshot_bytes(self) -> int:
        return sum([memoryview(part).nbytes for part in self._parts])

    def gated_reader(
        self, status: int, headers: HeaderPairs, target: Target, *, is_first: bool
    ) -> GatedReader[bytes]:
        return gated_reader_for(
            status,
            headers,
            is_first=is_first,
            is_stream=self.is_stream,
            protocol=GATED_PROTOCOLS[self._protocol.surface],
            model=self._model,
            dialect=self._protocol.dialect,
            request_id=self._request_id,
        )

    def gated_run_reader(self, *, is_first: bool) -> GatedReader[RunEvent]:
        answer = self.run_reader()
        if not is_first:
            answer = UnheardRun(answer.headers, self._run_id)
        if self.is_stream:
            return GatedRun(answer, is_first=is_first)
        return GatedRunWhole(answer, self._run_id, is_first=is_first)

    def stitch(self, kept_chars: int) -> Stitch:
        if not self.is_stream:
            return WholeStitch(self.run_reader)
        match self._protocol.surface:
            case "responses":
                return StreamStitch(ToldResponse(self._response_stream, kept_chars))
            case "messages":
                return StreamStitch(ToldMessage(self._message_stream))
            case _:
                return StreamStitch(ToldChat(self._chat_stream, self._created))

    def continued(
        self,
        recorded: Recorded,
        directive: str,
        *,
        temperature: float | None,
        output_tokens: int | None,
    ) -> CallerWork:
        changes = dict(self._changes)
        if temperature is not None and not self.has_temperature:
            changes["temperature"] = msgspec.json.encode(temperature)
        if output_tokens is not None:
            changes |= continuation.bounded_limit(
                self._effective(),
                self._protocol.limit_fields,
                self._protocol.default_limit_field,
                # Anthropic's API wants a limit above the budget for thinking.
                max(output_tokens, (self._thinking_budget or 0) + 1),
            )
        return CallerWork(
            self._protocol,
            self._members,
            changes,
            model=self._model,
            headers=self._headers,
            run_id=self._run_id,
            request_id=self._request_id,
            created=self._created,
            is_stream=self.is_stream,
            auth_override=self.auth_override,
            appended=Continuation(recorded, directive),
        )

    def continued_tokens(
        self, recorded: Recorded, directive: str, chars_per_token: float | None = None
    ) -> TokenEstimate:
        return estimate_tokens(Continuation(recorded, directive).texts, chars_per_token)
