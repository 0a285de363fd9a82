"""An exact router.

It decides which handler a request goes to, and turns what the handler raises into a response in
the surface's shape. It knows nothing of what the handlers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from iop_edge.serve.http.errors import FaultRenderer, render_fault
from iop_edge.serve.http.listener import origin_of
from iop_edge.serve.http.request import CallerGoneError, Handler, Request
from iop_shared import logs
from iop_shared.errors import Code, Fault

log = logs.get("http")


class Route(Struct, frozen=True, kw_only=True):
    """One method on one path. GET answers HEAD as well.

    `path` that ends in `/{tail}` matches everything below it, slashes included. `takes_json` means
    that the request has a body which must be declared as JSON (415 otherwise, which also keeps
    cross-site forms out).
    """

    method: str
    path: str
    handler: Handler
    takes_json: bool = False


class Router:
    """A handler of exact routes, and of prefixes tried in the given order."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        render: FaultRenderer = render_fault,
        note_refusal: Callable[[Request, Fault], None] | None = None,
    ) -> None:
        """`note_refusal` is told of each request that ends in a fault of which nobody else keeps
        account."""
        self._render = render
        self._note_refusal = note_refusal
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            if route.path.endswith("/{tail}"):
                methods = self._prefixes.setdefault(route.path.removesuffix("{tail}"), {})
            else:
                methods = self._exact.setdefault(route.path, {})
            methods[route.method] = route
            if route.method == "GET":
                methods.setdefault("HEAD", route)

    async def __call__(self, request: Request) -> None:
        try:
            await self._find(request).handler(request)
        except Fault as fault:
            await self._answer(request, fault)
        except CallerGoneError:
            return
        except Exception as error:
            if request.has_started:
                raise
            log.error(
                "request_failed",
                request_id=request.request_id,
                error=type(error).__name__,
                at=origin_of(error),
            )
            await self._answer(request, Fault(Code.INTERNAL, "the edge failed on this request"))

    def _find(self, request: Request) -> Route:
        methods = self._exact.get(request.path) or self._find_prefix(request)
        route = methods.get(request.method)
        if route is None:
            raise _MethodNotAllowed(request.method, methods)
        if route.takes_json:
            _require_json(request.headers.get(b"content-type"))
        return route

    def _find_prefix(self, request: Request) -> dict[str, Route]:
        for prefix, methods in self._prefixes.items():
            if request.path.startswith(prefix) and len(request.path) > len(prefix):
                request.tail = request.path[len(prefix) :]
                return methods
        raise Fault(Code.NOT_FOUND, "no such path")

    async def _answer(self, request: Request, fault: Fault) -> None:
        if request.has_started:
            raise fault
        if self._note_refusal is not None and not request.is_accounted:
            self._note_refusal(request, fault)
        rendered = self._render(fault, request.path, request.headers, request.request_id)
        headers = rendered.headers
        if isinstance(fault, _MethodNotAllowed):
            headers = [*headers, (b"allow", fault.allowed)]
        await request.respond(rendered.status, rendered.body, headers)


class _MethodNotAllowed(Fault):
    def __init__(self, method: str, methods: Iterable[str]) -> None:
        names = ", ".join(sorted(methods))
        super().__init__(Code.METHOD_NOT_ALLOWED, f"{method} is not allowed here; use {names}")
        self.allowed = names.encode("ascii")


def _require_json(content_type: bytes | None) -> None:
    media_type = (content_type or b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise Fault(
            Code.UNSUPPORTED_MEDIA_TYPE, "the body must be sent as content-type: application/json"
        )
