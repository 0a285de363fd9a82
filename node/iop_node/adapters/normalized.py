"""One normalized run over HTTP: post the rendered request, turn the answer into events.

It knows when an answer is whole, an error or a stream; it knows no API: a framing cuts the stream
into pieces and a reader says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from iop_node.adapters.base import Finish, Responder, RunCall, RunEvent
from iop_node.adapters.http1.answer import UpstreamAnswer
from iop_node.adapters.http1.endpoint import Endpoint
from iop_node.adapters.http_headers import caller_headers
from iop_node.adapters.upstream import UpstreamClient
from iop_shared.errors import Code, Fault

MAX_WHOLE_ANSWER_BYTES = 32 * 1024 * 1024

LINGER_S = 0.25
"""How long the end of a body is waited for once the answer in it is complete, so that the
connection can be used again. An upstream that keeps it open costs no more than this."""


class Framing(Protocol):
    def feed(self, content: bytes) -> list[bytes]:
        """The pieces that are complete now. Raises Fault(upstream_invalid)."""
        ...


class Reader(Protocol):
    @property
    def is_done(self) -> bool:
        """The stream's own terminal marker was seen."""
        ...

    def read(self, payload: bytes) -> Iterator[RunEvent]:
        """What one piece says. Raises Fault(upstream_invalid, upstream_closed)."""
        ...

    def end(self) -> Finish:
        """How it ended. Raises Fault(upstream_closed) where nothing said so (OAI-7)."""
        ...


async def execute_run(
    client: UpstreamClient,
    endpoint: Endpoint,
    body: bytes,
    call: RunCall,
    out: Responder,
    framing: Framing,
    reader: Reader,
) -> None:
    """Run one request to its end; the last event is the Finish.

    An answer with an error status is no run: it goes out as head and chunks, as in a tunnel, for
    the edge to reshape. Raises Fault as `Adapter.run`.
    """
    async with client.exchange(
        b"POST",
        endpoint,
        headers=(("Content-Type", "application/json"), *call.headers),
        auth_override=call.auth_override,
        body=body,
        deadline_s=call.deadline_s,
        started=out.started,
    ) as answer:
        if not 200 <= answer.status < 300:
            out.head(answer.status, caller_headers(answer.fields))
            while content := await answer.read():
                await out.chunk(content)
            return
        if call.request.is_stream:
            while not reader.is_done and (content := await answer.read()):
                for piece in framing.feed(content):
                    for event in reader.read(piece):
                        await out.event(event)
        else:
            for event in reader.read(await _whole(answer)):
                await out.event(event)
        await out.event(reader.end())
        if not answer.is_complete:
            await answer.linger(LINGER_S)


async def _whole(answer: UpstreamAnswer) -> bytes:
    pieces = bytearray()
    while content := await answer.read():
        pieces += content
        if len(pieces) > MAX_WHOLE_ANSWER_BYTES:
            raise Fault(
                Code.UPSTREAM_INVALID,
                f"the upstream's answer is longer than {MAX_WHOLE_ANSWER_BYTES} bytes",
            )
    return bytes(pieces)
