"""The ingress section: routes, the single-target fallback, principals, provider tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from iop_edge.config import effective
from iop_edge.config.document import Document, OpenAIDocument, RouteDocument
from iop_edge.config.effective import ModelRoute, Node, OpenAI, PrincipalToken, ProviderAuth
from iop_edge.config.report import code_spans
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.gate import KnownNames, resolve_gate
from iop_edge.config.resolving.headers import check_header_name
from iop_edge.config.resolving.identity import check_distinct
from iop_edge.config.resolving.listeners import tls_of
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import AdapterKey, ModelId, NodeId, RouteId, Target


class Direct(NamedTuple):
    """Where a direct dispatch goes."""

    node: NodeId
    adapter: AdapterKey


def resolve_openai(document: Document, nodes: Sequence[Node], context: Context) -> OpenAI:
    """The effective section."""
    written = document.openai
    if written is None:
        return OpenAI()
    routes = _routes(document, written, nodes, context)
    _check_principals(written, context)
    _check_provider_auth(written, context)
    fallback = _fallback(written, nodes, context)
    gate = resolve_gate(
        written.stream_evidence_gate, _known_names(document, written, nodes), context
    )
    provider_id = (written.provider_id or "").strip() or None
    if written.enabled and provider_id is None:
        context.report.error(
            "provider_id_required",
            "`provider_id` is needed here while `enabled` is true: it is what the usage of the "
            "single-target fallback is booked to",
            ("openai", "provider_id"),
            is_last=True,
        )
    return fill(
        OpenAI,
        written,
        provider_id=provider_id,
        tls=tls_of(written),
        limits=fill(effective.IngressLimits, written.limits),
        adapter=fallback.adapter if fallback else None,
        node=fallback.node if fallback else None,
        model_routes=routes,
        principal_tokens=tuple(
            fill(PrincipalToken, one, token_hash_sha256=one.token_hash_sha256.lower())
            for one in written.principal_tokens or ()
        ),
        provider_auth=fill(ProviderAuth, written.provider_auth),
        stream_evidence_gate=gate,
    )


def _routes(
    document: Document, written: OpenAIDocument, nodes: Sequence[Node], context: Context
) -> tuple[ModelRoute, ...]:
    routes = written.model_routes or []
    steps: Steps = ("openai", "model_routes")
    check_distinct(
        lambda: ((route.id, (*steps, n, "id")) for n, route in enumerate(routes)),
        "route id",
        context.report,
    )
    check_distinct(
        lambda: ((route.model, (*steps, n, "model")) for n, route in enumerate(routes)),
        "model id",
        context.report,
        taken=lambda: (
            (one.id, ("models", n, "id")) for n, one in enumerate(document.models or ())
        ),
    )
    return tuple(
        _route(route, (*steps, number), nodes, context) for number, route in enumerate(routes)
    )


def _route(
    route: RouteDocument, steps: Steps, nodes: Sequence[Node], context: Context
) -> ModelRoute:
    direct = _direct(route.adapter, route.node, steps, nodes, context)
    return ModelRoute(
        id=RouteId(route.id),
        model=ModelId(route.model),
        adapter=direct.adapter if direct else AdapterKey(route.adapter),
        target=Target(route.target),
        node=direct.node if direct else NodeId(route.node or ""),
        provider_id=route.provider_id,
    )


def _fallback(written: OpenAIDocument, nodes: Sequence[Node], context: Context) -> Direct | None:
    if written.adapter is None and written.target is None:
        if written.node is not None:
            context.report.error(
                "fallback_incomplete",
                "`node` belongs to the single-target fallback, which needs `adapter` and `target`",
                ("openai", "node"),
                on_key=True,
            )
        return None
    if written.adapter is None or written.target is None:
        given, needed = ("target", "adapter") if written.adapter is None else ("adapter", "target")
        context.report.error(
            "fallback_incomplete",
            f"the single-target fallback needs `{needed}` beside `{given}`",
            ("openai", given),
            on_key=True,
        )
        return None
    return _direct(written.adapter, written.node, ("openai",), nodes, context)


def _direct(
    adapter: str, node: str | None, steps: Steps, nodes: Sequence[Node], context: Context
) -> Direct | None:
    """The one enabled adapter that a key leads to: exactly, or by a type that stands alone."""
    report, likely = context
    if not adapter:
        return None
    if node is not None:
        among = [one for one in nodes if one.id == node]
        if not among:
            report.error(
                "unknown_node",
                f"there is no node `{node}`{likely.hint(node, tuple(one.id for one in nodes))}",
                (*steps, "node"),
            )
            return None
    else:
        among = list(nodes)
    found = [
        Direct(one.id, held.key)
        for one in among
        for held in one.adapters
        if held.enabled and held.key == adapter
    ]
    if not found:
        of_type = {
            one.id: [held.key for held in one.adapters if held.enabled and held.type == adapter]
            for one in among
        }
        found = [Direct(node_id, keys[0]) for node_id, keys in of_type.items() if len(keys) == 1]
        several = next((keys for keys in of_type.values() if len(keys) > 1), None)
        if not found and several is not None:
            report.error(
                "ambiguous_adapter",
                f"several adapters of one node have type `{adapter}`; name {code_spans(several)}",
                (*steps, "adapter"),
            )
            return None
    if len(found) == 1:
        return found[0]
    if found:
        report.error(
            "ambiguous_node",
            f"several nodes hold the adapter `{adapter}`; say which with `node`: "
            f"{code_spans(one.node for one in found[:8])}",
            (*steps, "adapter"),
        )
        return None
    keys = tuple({held.key for one in among for held in one.adapters})
    where = "that node has" if node is not None else "there is"
    report.error(
        "unknown_adapter",
        f"{where} no enabled adapter `{adapter}`{likely.hint(adapter, keys)}",
        (*steps, "adapter"),
    )
    return None


def _check_principals(written: OpenAIDocument, context: Context) -> None:
    tokens = written.principal_tokens or []
    steps: Steps = ("openai", "principal_tokens")
    check_distinct(
        lambda: ((one.token_ref, (*steps, n, "token_ref")) for n, one in enumerate(tokens)),
        "token_ref",
        context.report,
    )
    check_distinct(
        lambda: (
            (one.token_hash_sha256.lower(), (*steps, n, "token_hash_sha256"))
            for n, one in enumerate(tokens)
        ),
        "token hash",
        context.report,
    )


def _check_provider_auth(written: OpenAIDocument, context: Context) -> None:
    auth = written.provider_auth
    if auth is None:
        return
    check_header_name(auth.target_header, ("openai", "provider_auth", "target_header"), context)
    if (auth.from_header or "").casefold() == "authorization":
        context.report.error(
            "from_header_taken",
            "`Authorization` is the caller's own token for this edge; take the provider's from "
            "another header",
            ("openai", "provider_auth", "from_header"),
        )


def _known_names(document: Document, written: OpenAIDocument, nodes: Sequence[Node]) -> KnownNames:
    routes = written.model_routes or []
    return {
        "model_group": {
            *(model.id for model in document.models or ()),
            *(route.model for route in routes),
        },
        "model": {
            *(model for node in nodes for provider in node.providers for model in provider.models),
            *(route.target for route in routes),
            *((written.target,) if written.target else ()),
        },
        "provider": {
            *(provider.id for node in nodes for provider in node.providers),
            *(route.provider_id for route in routes if route.provider_id),
            *((written.provider_id,) if written.provider_id else ()),
        },
    }
