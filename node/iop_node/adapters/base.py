"""What an adapter is, what it is asked, and where it puts its answer.

These are the seams between the link (which knows frames and credit) and the adapters (which know
upstreams). Nothing here knows a socket, a frame or a registry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from iop.runtime_pb2 import RunRequest
from iop_node.adapters.upstream_spec import ProbeSpec
from iop_shared.ids import AdapterKey, Target
from iop_shared.profiles import Operation

HeaderPairs = Sequence[tuple[str, str]]

Body = bytes | AsyncIterator[bytes]
"""A request body: whole, or in pieces that are forwarded as they come and never held whole."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
ProbedHealth = Literal["healthy", "degraded", "unavailable"]


class TunnelCall(Struct, frozen=True, kw_only=True):
    """Bytes to relay to an upstream that speaks the caller's own protocol.

    `headers` are all that is passed on from the caller; the adapter's own stand over them.
    `auth_override` is the caller's provider token (OAI-4): it stands over both, for this call
    alone. `content_length` is the length in bytes of a body that comes in pieces, None where it
    is not known. `deadline_s` is in seconds from the start of the call, None for no bound beyond
    the adapter's own.
    """

    adapter: AdapterKey
    target: Target
    operation: Operation
    headers: tuple[tuple[str, str], ...] = ()
    body: Body = b""
    content_length: int | None = None
    is_stream: bool = False
    auth_override: tuple[str, str] | None = None
    deadline_s: float | None = None

    def __repr__(self) -> str:
        return f"TunnelCall({self.operation} on {self.adapter}/{self.target})"


class RunCall(Struct, frozen=True, kw_only=True):
    """A run in IOP's own terms. Fields as in `TunnelCall`."""

    adapter: AdapterKey
    target: Target
    request: RunRequest
    headers: tuple[tuple[str, str], ...] = ()
    auth_override: tuple[str, str] | None = None
    deadline_s: float | None = None

    def __repr__(self) -> str:
        return f"RunCall({self.adapter}/{self.target})"


class TextDelta(Struct, frozen=True):
    text: str


class ReasoningDelta(Struct, frozen=True):
    text: str


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of one tool call. `arguments_json` is a fragment; the rest may be empty after the
    first piece of the same `index`."""

    index: int
    id: str = ""
    name: str = ""
    arguments_json: str = ""


class Finish(Struct, frozen=True):
    reason: FinishReason


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens as the upstream reported them. None is not reported, and a zero is a zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


RunEvent = TextDelta | ReasoningDelta | ToolCallDelta | Finish | Usage


class Responder(Protocol):
    """Where an adapter puts the answer of one call, in order: started, head, chunks or events.

    Completeness is told by the adapter's return, failure by its exception: there is no end call.
    """

    def started(self) -> None:
        """From now on the upstream may have received the request (POOL-13).

        Called at most once per call, on a connected upstream, at the last moment before the
        first byte is written: a refused connection and a connect timeout come before it.
        """
        ...

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """The upstream's status, and those of its headers that a caller may see."""
        ...

    async def chunk(self, content: bytes) -> None:
        """Pass body bytes on. Waits for credit, so that a slow caller slows the upstream."""
        ...

    async def event(self, event: RunEvent) -> None:
        """Pass one event of a normalized run on. Waits for credit."""
        ...


class Probe(Struct, frozen=True, kw_only=True):
    """What one probe found. `reason` is a stable code, empty when healthy (NODE-10)."""

    health: ProbedHealth
    reason: str = ""


class Adapter(Protocol):
    """One way to talk to one upstream. Immutable after construction, shared by many calls.

    Constructing one opens nothing and may be done outside the event loop's thread; `start` opens
    what it needs and `stop` closes it. Both are called once.
    """

    @property
    def key(self) -> AdapterKey: ...

    async def start(self) -> None:
        """Open the client. Does not wait for the upstream, which may be down."""
        ...

    async def stop(self) -> None:
        """Close every connection, used or idle. Never raises."""
        ...

    async def tunnel(self, call: TunnelCall, out: Responder) -> None:
        """Relay one call; returns when the upstream's answer is complete.

        Raises Fault with an upstream_* code, or unsupported_by_model where the upstream has no
        such operation. Cancellation closes the upstream connection at once (NODE-7).
        """
        ...

    async def run(self, call: RunCall, out: Responder) -> None:
        """Execute one normalized run; returns after the last event was passed on.

        Raises as `tunnel`, unsupported_by_model where the adapter has no normalized path, and
        unsupported_field for a request that the upstream's API cannot express.
        """
        ...

    @property
    def probe_spec(self) -> ProbeSpec | None:
        """How often to probe, None where the config asks for no probe."""
        ...

    async def probe(self) -> Probe:
        """Ask the upstream once how it is. Never raises for what the upstream does (NODE-10)."""
        ...
