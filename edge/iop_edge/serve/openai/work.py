"""One caller's request as work for the run service: rendered for whichever provider is chosen."""

from __future__ import annotations

from msgspec import Raw

from iop_edge.runtime.work import AnswerReader, HeaderPairs
from iop_edge.serve.dialect.answers import reader_for
from iop_edge.serve.dialect.caller_protocols import CallerProtocol
from iop_edge.serve.dialect.request import upstream_body
from iop_shared.ids import ModelId, Target
from iop_shared.profiles import Operation


class TunnelWork:
    """A request for upstreams that speak the caller's own protocol. Satisfies `Work`.

    Holds a credential (`auth_override`), so its repr shows the operation alone.
    """

    __slots__ = (
        "_headers",
        "_model",
        "_parts",
        "_protocol",
        "_request_id",
        "auth_override",
        "is_stream",
    )

    def __init__(
        self,
        protocol: CallerProtocol,
        *,
        model: ModelId,
        parts: list[bytes | Raw],
        headers: HeaderPairs,
        request_id: str,
        is_stream: bool,
        auth_override: tuple[str, str] | None,
    ) -> None:
        self._protocol = protocol
        self._model = model
        self._parts = parts
        self._headers = headers
        self._request_id = request_id
        self.is_stream = is_stream
        self.auth_override = auth_override

    def __repr__(self) -> str:
        return f"TunnelWork({self.operation}, is_stream={self.is_stream})"

    @property
    def operation(self) -> Operation:
        return self._protocol.operation

    def upstream_headers(self) -> HeaderPairs:
        return self._headers

    def upstream_body(self, target: Target) -> bytes:
        return upstream_body(target, self._parts)

    def reader(self, status: int, headers: HeaderPairs, target: Target) -> AnswerReader:
        return reader_for(
            status,
            headers,
            is_stream=self.is_stream,
            observer=self._protocol.observer(),
            model=self._model,
            dialect=self._protocol.dialect,
            request_id=self._request_id,
        )
