"""What has come of a run so far, whichever dialect it is told in."""

from __future__ import annotations

from abc import ABC, abstractmethod

from iop.runtime_pb2 import RunEvent, TokenUsage
from iop_edge.runtime.work import ReportedUsage
from iop_edge.serve.dialect.generated import GeneratedText
from iop_shared.errors import Code, Fault


def reported_usage(tokens: TokenUsage | None) -> ReportedUsage:
    if tokens is None:
        return ReportedUsage()
    return ReportedUsage(
        input_tokens=tokens.input_tokens if tokens.HasField("input_tokens") else None,
        output_tokens=tokens.output_tokens if tokens.HasField("output_tokens") else None,
    )


def add_text(event: RunEvent, generated: GeneratedText) -> None:
    """Count what one event says."""
    if event.text_delta or event.reasoning_delta:
        generated.add(event.text_delta or event.reasoning_delta)
    elif event.HasField("tool_call_delta"):
        generated.add(event.tool_call_delta.name)
        generated.add(event.tool_call_delta.arguments_json)


class Call:
    """One tool call, put together out of its pieces."""

    __slots__ = ("_arguments", "id", "index", "name")

    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def add(self, fragment: str) -> None:
        self._arguments.append(fragment)


class RunResult:
    """Everything that a run said, for answers that are told whole.

    `run_id` makes ids for tool calls of upstreams that give none.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: dict[int, Call] = {}
        self.finish_reason = ""
        self.tokens: TokenUsage | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def usage(self) -> ReportedUsage:
        return reported_usage(self.tokens)

    def add(self, event: RunEvent) -> str:
        """Take an event in; return which kind it was."""
        kind = event.WhichOneof("event") or ""
        if kind == "text_delta":
            self._text.append(event.text_delta)
        elif kind == "reasoning_delta":
            self._reasoning.append(event.reasoning_delta)
        elif kind == "tool_call_delta":
            self.call(event)
        elif kind == "finish_reason":
            self.finish_reason = event.finish_reason
        elif kind == "usage":
            self.tokens = event.usage
        return kind

    def call(self, event: RunEvent) -> tuple[Call, bool]:
        """The call that a piece belongs to, and whether this is its first piece."""
        delta = event.tool_call_delta
        call = self.calls.get(delta.index)
        is_first = call is None
        if call is None:
            call = Call(delta.index, delta.id or f"call_{self._run_id}_{delta.index}")
            self.calls[delta.index] = call
        call.name = call.name or delta.name
        call.add(delta.arguments_json)
        return call, is_first

    def require_finish(self) -> None:
        if not self.finish_reason:
            raise Fault(Code.UPSTREAM_CLOSED, "the run ended before its answer was whole")


class RunAnswer(ABC):
    """What all readers of a normalized run do, before each tells it in its own dialect."""

    told_end = None

    def __init__(self, result: RunResult) -> None:
        self._result = result
        self._generated = GeneratedText()

    @property
    def usage(self) -> ReportedUsage:
        return self._result.usage

    def generated_tokens(self, chars_per_token: float | None) -> int:
        return self._generated.tokens(chars_per_token)

    def feed(self, event: RunEvent) -> bytes:
        """Take the next event and return what may be released to the caller now."""
        add_text(event, self._generated)
        return self._tell(event)

    @abstractmethod
    def _tell(self, event: RunEvent) -> bytes:
        """The event in the caller's dialect; empty where there is nothing to say yet."""
