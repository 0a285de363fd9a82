"""The list of models that a caller may name, in both dialects (OAI-1).

Ids are those of `models[]` and of the routes. The fallback takes any name; the one listed for it
is its target, so that a client which picks from the list finds something that works.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from iop_edge.config.effective import EffectiveConfig
from iop_edge.pool.catalog import Catalog
from iop_edge.serve.http.request import Request
from iop_edge.serve.policy import Principals
from iop_shared.errors import Code, Fault

_encode = msgspec.json.Encoder().encode


class Snapshot(Protocol):
    """What the ingress needs of one generation."""

    @property
    def config(self) -> EffectiveConfig: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def applied_at(self) -> datetime: ...


class Snapshots(Protocol):
    @property
    def current(self) -> Snapshot: ...


class ModelList:
    """Answers `GET /v1/models` and `GET /v1/models/{id}`."""

    def __init__(self, snapshots: Snapshots, principals: Principals) -> None:
        self._snapshots = snapshots
        self._principals = principals

    async def list_all(self, request: Request) -> None:
        is_anthropic = self._admit(request)
        snapshot = self._snapshots.current
        names = model_names(snapshot)
        if is_anthropic:
            data = [_anthropic(snapshot, each, shown) for each, shown in names.items()]
            ids = list(names)
            body: dict[str, Any] = {
                "data": data,
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        else:
            body = {"object": "list", "data": [_openai(snapshot, each) for each in names]}
        await request.respond(200, _encode(body))

    async def show_one(self, request: Request) -> None:
        is_anthropic = self._admit(request)
        snapshot = self._snapshots.current
        shown = model_names(snapshot).get(request.tail)
        if shown is None:
            raise Fault(
                Code.MODEL_NOT_FOUND,
                f"there is no model {request.tail!r} here; GET /v1/models lists those there are",
                param="model",
            )
        one = _anthropic(snapshot, request.tail, shown) if is_anthropic else None
        await request.respond(200, _encode(one or _openai(snapshot, request.tail)))

    def _admit(self, request: Request) -> bool:
        """Let the caller in; say whether it speaks Anthropic's dialect."""
        is_anthropic = b"anthropic-version" in request.headers
        self._principals.authenticate(request.headers, takes_api_key=is_anthropic)
        return is_anthropic


def model_names(snapshot: Snapshot) -> dict[str, str]:
    """Every listed model id with the name to show for it, in the order of the config."""
    names: dict[str, str] = {
        group.id: group.display_name or group.id for group in snapshot.config.models
    }
    for route in snapshot.config.openai.model_routes:
        names.setdefault(route.model, route.model)
    openai = snapshot.config.openai
    if openai.adapter and openai.target:
        names.setdefault(openai.target, openai.target)
    return names


def _openai(snapshot: Snapshot, model: str) -> dict[str, Any]:
    created = int(snapshot.applied_at.timestamp())
    return {"id": model, "object": "model", "created": created, "owned_by": "iop"}


def _anthropic(snapshot: Snapshot, model: str, shown: str) -> dict[str, Any]:
    created = snapshot.applied_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": model, "display_name": shown, "created_at": created}
