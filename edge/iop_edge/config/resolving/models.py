"""Model groups: what each may ask of the providers it names (CFG-14, CFG-15, PROF-6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from iop_edge.config.document import ModelDocument
from iop_edge.config.effective import Adapter, ModelGroup, Node, Provider
from iop_edge.config.frozen import FrozenMap
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.identity import check_distinct
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import ModelId, ProviderId, Target


class Served(Struct, frozen=True, gc=False):
    """A provider with the adapter it runs on, where that is known, and the models it serves."""

    provider: Provider
    adapter: Adapter | None
    models: Collection[str]


def served_by_id(nodes: Sequence[Node]) -> dict[str, Served]:
    """Every provider by its id; the first of two with one id."""
    found: dict[str, Served] = {}
    for node in nodes:
        adapters = {adapter.key: adapter for adapter in node.adapters}
        for provider in node.providers:
            adapter = adapters.get(provider.adapter) if provider.adapter is not None else None
            models = provider.models
            found.setdefault(
                provider.id,
                Served(provider, adapter, models if len(models) < 8 else frozenset(models)),
            )
    return found


def resolve_models(
    documents: Sequence[ModelDocument], served: Mapping[str, Served], context: Context
) -> tuple[ModelGroup, ...]:
    """The effective model groups."""
    check_distinct(
        lambda: ((model.id, ("models", number, "id")) for number, model in enumerate(documents)),
        "model id",
        context.report,
    )
    return tuple(
        _model(document, ("models", number), served, context)
        for number, document in enumerate(documents)
    )


def _model(
    document: ModelDocument, steps: Steps, served: Mapping[str, Served], context: Context
) -> ModelGroup:
    providers = document.providers or {}
    for provider_id, target in providers.items():
        known = served.get(provider_id)
        if known is None:
            context.report.error(
                "unknown_provider",
                f"there is no provider `{provider_id}`{context.likely.hint(provider_id, served)}",
                (*steps, "providers", provider_id),
                on_key=True,
                path=(*steps, "providers"),
            )
            continue
        _check_pair(document, target, known, (*steps, "providers", provider_id), context)
    if not providers:
        context.report.warning(
            "model_without_provider",
            "no provider serves this model; its callers get an error",
            steps,
        )
    _check_policy(document, steps, context)
    return fill(
        ModelGroup,
        document,
        id=ModelId(document.id),
        providers=FrozenMap({ProviderId(one): Target(target) for one, target in providers.items()}),
    )


def _check_pair(
    document: ModelDocument, target: str, known: Served, steps: Steps, context: Context
) -> None:
    provider, adapter = known.provider, known.adapter
    report = context.report
    if known.models and target not in known.models:
        report.error(
            "unknown_served_model",
            f"the provider `{provider.id}` does not serve this model"
            f"{context.likely.hint(target, provider.models)}",
            steps,
        )
    window, slots = document.context_window_tokens, provider.long_context_capacity
    total = provider.total_context_tokens
    if window is not None and slots and total is not None and total < window * slots:
        report.error(
            "long_context_budget",
            f"`{provider.id}` has total_context_tokens {total}, and {slots} long requests of "
            f"{window} tokens (context_window_tokens) need {window * slots}",
            steps,
            on_key=True,
        )
    if adapter is not None and adapter.profile is not None:
        mapped = adapter.profile.model_mapping.get(document.id)
        if mapped is not None and mapped != target:
            report.error(
                "mapping_conflict",
                f"the profile `{adapter.profile.id}` maps this model to another served model; "
                "name the same one in both, or none in the profile",
                steps,
            )


def _check_policy(document: ModelDocument, steps: Steps, context: Context) -> None:
    default, floor = document.default_max_tokens, document.min_max_tokens
    thinking = document.default_thinking_token_budget
    if default is not None and floor is not None and default < floor:
        context.report.error(
            "policy_contradiction",
            f"default_max_tokens {default} is below min_max_tokens {floor}",
            (*steps, "default_max_tokens"),
        )
    if default is not None and thinking is not None and thinking >= default:
        context.report.error(
            "policy_contradiction",
            f"default_thinking_token_budget {thinking} must be below default_max_tokens {default}",
            (*steps, "default_thinking_token_budget"),
        )
