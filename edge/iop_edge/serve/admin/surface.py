"""The admin surface over HTTP (interface, section 3).

It turns requests into questions to the reloader and the live views, and answers into JSON. It
decides nothing about configuration. Every failure of `POST /refresh` has the shape of a refresh
result, `rejected`; other paths use the ingress's error shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, cast, get_args
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from iop_edge.config.effective import IngressLimits
from iop_edge.config.view import resolved, view
from iop_edge.refresh.receipt import (
    ErrorReport,
    Mode,
    RefreshRecord,
    RefreshResult,
    rejection,
)
from iop_edge.runtime.node_hub import NodeView
from iop_edge.runtime.refresh_report import CANDIDATE_MISMATCH, GENERATION_MISMATCH
from iop_edge.runtime.reloader import RefreshRequest, Reloader
from iop_edge.runtime.snapshot import RuntimeSnapshot, SnapshotStore
from iop_edge.runtime.usage import RING_LENGTH, RunReport
from iop_edge.serve.admin.guard import refusal
from iop_edge.serve.admin.shapes import EdgeStatus, NodeLine, PlanLine, Readiness, ResultLine
from iop_edge.serve.admin.status import PoolViews, edge_status
from iop_edge.serve.http.errors import JSON, Rendered, render_fault
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.routes import Route, Router
from iop_shared.errors import Code, Fault

ADMIN_LIMITS = IngressLimits(
    max_body_bytes=65_536, max_header_bytes=16_384, receive_timeout_ms=5_000, max_connections=64
)

NDJSON = b"application/x-ndjson"
DEFAULT_RUNS = 50

_INVALID_BODY = (
    'the body must be a JSON object: "mode" is "dry_run" or "apply"; "if_generation" (a number)'
    ' and "if_candidate" (a digest) may stand beside it'
)

_encode = msgspec.json.Encoder().encode


class NodeViews(Protocol):
    def views(self) -> Sequence[NodeView]: ...


class RunLog(Protocol):
    def latest(self, limit: int) -> list[RunReport]: ...


class _Body(Struct, forbid_unknown_fields=True):
    """A request to refresh as it is sent. `mode` is judged apart: any other is `rejected`."""

    mode: str
    if_generation: int | None = None
    if_candidate: str | None = None


class AdminSurface:
    """A handler of requests. Serve it on loopback or a Unix socket, with `ADMIN_LIMITS`, `render`,
    and handlers that are not cancelled when their caller leaves.

    `readiness` is asked at each `GET /readyz`.
    """

    def __init__(
        self,
        *,
        reloader: Reloader,
        snapshots: SnapshotStore,
        nodes: NodeViews,
        pool: PoolViews,
        runs: RunLog,
        readiness: Callable[[], Readiness],
        started_at: datetime,
        is_unix: bool,
    ) -> None:
        self._reloader = reloader
        self._snapshots = snapshots
        self._nodes = nodes
        self._pool = pool
        self._runs = runs
        self._readiness = readiness
        self._started_at = started_at
        self._is_unix = is_unix
        self._router = Router(
            [
                Route(method="POST", path="/refresh", handler=self._refresh, takes_json=True),
                Route(method="GET", path="/status", handler=self._status),
                Route(method="GET", path="/config", handler=self._config),
                Route(method="GET", path="/runs", handler=self._latest_runs),
                Route(method="GET", path="/refreshes", handler=self._refreshes),
                Route(method="GET", path="/healthz", handler=self._healthz),
                Route(method="GET", path="/readyz", handler=self._readyz),
            ],
            render=self.render,
        )

    async def __call__(self, request: Request) -> None:
        refused = refusal(request.pairs, is_unix=self._is_unix)
        if refused is None:
            await self._router(request)
            return
        await request.respond(403, self._failure(request.path, refused.code, refused.message))

    def render(
        self, fault: Fault, path: str, headers: Mapping[bytes, bytes], request_id: str
    ) -> Rendered:
        """A fault in this surface's shape (a `FaultRenderer`)."""
        if path != "/refresh":
            return render_fault(fault, path, headers, request_id)
        body = self._failure(path, fault.code.value, fault.message)
        return Rendered(fault.shape.status, [(b"content-type", JSON)], body)

    def status(self) -> EdgeStatus:
        """What `GET /status` shows."""
        return edge_status(
            self._snapshots.current,
            started_at=self._started_at,
            last_error=self._reloader.last_error,
            pending_restart_paths=self._reloader.pending_restart_paths,
            nodes=self._nodes.views(),
            pool=self._pool,
        )

    # ------------------------------------------------------------------------------------------

    async def _refresh(self, request: Request) -> None:
        try:
            body = msgspec.json.decode(await request.body(), type=_Body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The decoder's own message may hold parts of the body.
            raise Fault(Code.INVALID_VALUE, _INVALID_BODY) from None
        if body.mode not in get_args(Mode):
            await self._respond(request, self._invalid_mode())
            return
        asked = RefreshRequest(
            mode=cast(Mode, body.mode),
            if_generation=body.if_generation,
            if_candidate=body.if_candidate,
        )
        if NDJSON in request.headers.get(b"accept", b""):
            await self._stream(request, asked)
        else:
            await self._respond(request, await self._reloader.refresh(asked))

    async def _stream(self, request: Request, asked: RefreshRequest) -> None:
        """Answer with what is put in effect, a line per node as it answers, and the result last.

        A refresh that tells no node anything keeps its own HTTP status and is answered as one
        JSON object.
        """
        said: asyncio.Queue[PlanLine | NodeLine | None] = asyncio.Queue()
        refresh = self._reloader.start(
            asked,
            origin="admin",
            on_push=lambda so_far, nodes: said.put_nowait(PlanLine(so_far, nodes)),
            on_node=lambda report: said.put_nowait(NodeLine(report)),
        )
        refresh.add_done_callback(lambda _: said.put_nowait(None))
        while (line := await said.get()) is not None:
            if not request.has_started:
                await request.start(200, [(b"content-type", NDJSON)])
            await request.write(_encode(line) + b"\n")
        result = refresh.result()
        if request.has_started:
            await request.finish(_encode(ResultLine(result)) + b"\n")
        else:
            await self._respond(request, result)

    async def _status(self, request: Request) -> None:
        await request.respond(200, _encode(self.status()))

    async def _config(self, request: Request) -> None:
        # In a thread: a large config takes longer to show than runs can wait.
        await request.respond(200, await asyncio.to_thread(_config, self._snapshots.current))

    async def _latest_runs(self, request: Request) -> None:
        await request.respond(200, _encode({"runs": self._runs.latest(_limit(request))}))

    async def _refreshes(self, request: Request) -> None:
        # In a thread and one by one: each may hold thousands of changes, and runs go on meanwhile.
        await request.respond(200, await asyncio.to_thread(_receipts, self._reloader.history()))

    async def _healthz(self, request: Request) -> None:
        await request.respond(200, _encode({"alive": True}))

    async def _readyz(self, request: Request) -> None:
        readiness = self._readiness()
        await request.respond(200 if readiness.ready else 503, _encode(readiness))

    async def _respond(self, request: Request, result: RefreshResult) -> None:
        await request.respond(http_status(result), _encode(result))

    def _invalid_mode(self) -> RefreshResult:
        return self._rejection("invalid_mode", 'mode must be "dry_run" or "apply"')

    def _failure(self, path: str, code: str, message: str) -> bytes:
        if path == "/refresh":
            return _encode(self._rejection(code, message))
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": code,
        }
        return _encode({"error": error})

    def _rejection(self, code: str, message: str) -> RefreshResult:
        return rejection(
            [ErrorReport(code=code, message=message)],
            mode=None,
            running=self._snapshots.current.generation,
        )


def http_status(result: RefreshResult) -> int:
    """The HTTP status of a refresh (interface, section 3)."""
    if result.status == "rejected":
        codes = {error.code for error in result.errors}
        return 412 if codes & {GENERATION_MISMATCH, CANDIDATE_MISMATCH} else 422
    return 409 if result.status == "restart_required" and result.mode == "apply" else 200


def _config(snapshot: RuntimeSnapshot) -> bytes:
    """As `iop-edge config show --json` has it, for what runs (CFG-23)."""
    is_promoted = snapshot.queue_source == "providers"
    shown = view(snapshot.config, is_queue_promoted=is_promoted)
    shown["resolved"] = resolved(snapshot.config, queue_source=snapshot.queue_source)
    return _encode(shown)


def _receipts(history: Sequence[RefreshRecord]) -> bytes:
    return b'{"refreshes":[%s]}' % b",".join(map(_encode, history))


def _limit(request: Request) -> int:
    """`?limit=`: how many, at most what the ring holds."""
    query = parse_qs(request.query, keep_blank_values=True)
    given = query.get("limit", [str(DEFAULT_RUNS)])
    text = given[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) < 1:
        raise Fault(Code.INVALID_VALUE, f"limit is a number from 1 to {RING_LENGTH}", param="limit")
    return min(int(text), RING_LENGTH)
