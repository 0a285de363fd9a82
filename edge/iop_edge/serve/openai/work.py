"""One caller's request as work for the run service: rendered for whichever provider is chosen."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from iop.runtime_pb2 import RunRequest
from iop_edge.runtime.work import AnswerReader, HeaderPairs, RunReader
from iop_edge.serve.dialect.answers import reader_for
from iop_edge.serve.dialect.caller_protocols import CallerProtocol
from iop_edge.serve.dialect.normalized import chat, messages, responses
from iop_edge.serve.dialect.normalized.chat_answer import ChatStream, ChatWhole
from iop_edge.serve.dialect.normalized.messages_answer import MessageStream, MessageWhole
from iop_edge.serve.dialect.normalized.responses_answer import ResponseStream, ResponseWhole
from iop_edge.serve.dialect.request import Members, body_parts, upstream_body
from iop_shared.errors import Code, Fault
from iop_shared.ids import ModelId, RunId, Target
from iop_shared.profiles import Operation


class CallerWork:
    """A request, ready for upstreams that speak the caller's protocol and for those that do not.

    Satisfies `Work`. `changes` are the literals that the policy puts into the request. Holds a
    credential (`auth_override`) and the prompt, so its repr shows the operation alone.
    """

    __slots__ = (
        "_changes", "_created", "_headers", "_members", "_model", "_parts", "_protocol",
        "_request_id", "_run_id", "auth_override", "is_stream",
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
    ) -> None:
        self._protocol = protocol
        self._members = members
        self._changes = changes
        self._parts = body_parts(members, changes)
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
        members = self._members | {name: Raw(value) for name, value in self._changes.items()}
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
        return run

    def run_reader(self) -> RunReader:
        """A reader of the events of that run, which renders them in the caller's protocol."""
        model, run_id, created = self._model, self._run_id, self._created
        match self._protocol.surface:
            case "responses":
                answer = ResponseStream if self.is_stream else ResponseWhole
                echoed = responses.echoed(self._members)
                return answer(model=model, run_id=run_id, created=created, echoed=echoed)
            case "messages":
                kind = MessageStream if self.is_stream else MessageWhole
                return kind(model=model, run_id=run_id)
            case _:
                if not self.is_stream:
                    return ChatWhole(model=model, run_id=run_id, created=created)
                return ChatStream(
                    model=model,
                    run_id=run_id,
                    created=created,
                    includes_usage=chat.includes_usage(self._members),
                )
