"""Nodes and providers: which adapter each provider runs on (CFG-9…13, CFG-25, CFG-26).

The decision for a provider, in this order:
 1. `adapter` is the exact key of an adapter of the node; or
 2. it is a bare adapter type, and exactly one enabled instance of that type exists; or
 3. there is no `adapter` but a provider-first field: the provider's own adapter is made.
A disabled provider whose `adapter` resolves to nothing is left without one (CFG-12).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from iop_edge.config import effective
from iop_edge.config.document import AdapterDocument, NodeDocument, ProviderDocument
from iop_edge.config.effective import Node, Provider
from iop_edge.config.report import code_spans
from iop_edge.config.resolving.adapters import AdapterBuilder, Dialect
from iop_edge.config.resolving.catalog import ADAPTER_OF_TYPE, PROFILE_OF_TYPE, Catalog
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.identity import check_distinct
from iop_edge.config.resolving.secrets import TOKEN_FORMS, SecretSite, secret_ref
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import AdapterKey, NodeId, ProviderId, Target

FIRST_FIELDS = ("provider", "endpoint", "base_url", "headers", "context_size", "request_timeout_ms")
"""The provider-first execution fields (CFG-10). The label alone may stand beside `adapter`."""

_BESIDE_ADAPTER = FIRST_FIELDS[1:]
_SEULGIVIBE = ("seulgivibe_claude", "seulgivibe_openai")


class _User(Struct, frozen=True, gc=False):
    provider: ProviderDocument
    dialect: Dialect
    steps: Steps


def resolve_nodes(
    documents: Sequence[NodeDocument],
    catalog: Catalog,
    sites: list[SecretSite],
    context: Context,
) -> tuple[Node, ...]:
    """The effective nodes. Every secret reference in them is added to `sites`."""
    report = context.report
    check_distinct(
        lambda: ((node.id, ("nodes", number, "id")) for number, node in enumerate(documents)),
        "node id",
        report,
    )
    check_distinct(
        lambda: (
            (provider.id, ("nodes", number, "providers", position, "id"))
            for number, node in enumerate(documents)
            for position, provider in enumerate(node.providers or ())
        ),
        "provider id",
        report,
    )
    builder = AdapterBuilder(catalog, sites, context)
    return tuple(
        _NodeResolver(document, ("nodes", number), catalog, builder, sites, context).resolve()
        for number, document in enumerate(documents)
    )


class _NodeResolver:
    def __init__(
        self,
        document: NodeDocument,
        steps: Steps,
        catalog: Catalog,
        builder: AdapterBuilder,
        sites: list[SecretSite],
        context: Context,
    ) -> None:
        self._document = document
        self._steps = steps
        self._catalog = catalog
        self._builder = builder
        self._sites = sites
        self._context = context
        self._report = context.report
        self._adapters: dict[str, AdapterDocument] = {}
        self._of_type: dict[str, list[str]] = {}
        self._users: dict[str, list[_User]] = {}

    def resolve(self) -> Node:
        document, steps = self._document, self._steps
        written = document.adapters or []
        for adapter in written:
            self._adapters.setdefault(adapter.key, adapter)
            if adapter.enabled is not False:
                self._of_type.setdefault(adapter.type, []).append(adapter.key)
        check_distinct(
            lambda: (
                (one.key, (*steps, "adapters", number, "key")) for number, one in enumerate(written)
            ),
            "adapter key",
            self._report,
        )
        providers = [
            self._provider(provider, (*steps, "providers", position))
            for position, provider in enumerate(document.providers or ())
        ]
        adapters = [
            self._builder.written(adapter, self._dialect(adapter), (*steps, "adapters", number))
            for number, adapter in enumerate(written)
        ]
        adapters += [
            self._builder.own(
                provider, self._own_dialect(provider), (*steps, "providers", position)
            )
            for position, provider in enumerate(document.providers or ())
            if _is_provider_first(provider)
        ]
        token = secret_ref(document.token, TOKEN_FORMS, (*steps, "token"), self._report)
        self._sites.append(SecretSite(token, (*steps, "token"), NodeId(document.id)))
        return fill(
            Node,
            document,
            token=token,
            runtime=fill(effective.NodeRuntime, document.runtime),
            adapters=tuple(adapters),
            providers=tuple(providers),
        )

    def _provider(self, document: ProviderDocument, steps: Steps) -> Provider:
        profile_id = self._profile_id(document, steps)
        key = self._adapter_key(document, steps)
        if key is not None:
            label = document.provider
            if label is None and document.type in _SEULGIVIBE:
                label = document.type
            user = _User(document, Dialect(profile_id, label), steps)
            self._users.setdefault(key, []).append(user)
        self._check_models(document, steps)
        return Provider(
            id=ProviderId(document.id),
            type=document.type,
            category=document.category,
            adapter=AdapterKey(key) if key is not None else None,
            profile=profile_id,
            models=tuple(map(Target, document.models)),
            capacity=document.capacity,
            long_context_capacity=document.long_context_capacity,
            total_context_tokens=document.total_context_tokens,
            priority=document.priority or 0,
            enabled=document.enabled is not False,
            health=document.health or "unknown",
            lifecycle_capabilities=tuple(
                one
                for one in ("status", "load", "unload")
                if one in (document.lifecycle_capabilities or ())
            ),
        )

    def _check_models(self, document: ProviderDocument, steps: Steps) -> None:
        models = document.models
        if len(models) == 1 or len(set(models)) == len(models):
            return
        seen: set[str] = set()
        for position, model in enumerate(models):
            if model not in seen:
                seen.add(model)
            else:
                self._report.error(
                    "duplicate_id",
                    "this served model stands in the list already",
                    (*steps, "models", position),
                )

    def _profile_id(self, document: ProviderDocument, steps: Steps) -> str | None:
        if document.profile is None:
            return PROFILE_OF_TYPE.get(document.type)
        catalog = self._catalog
        if not catalog.is_known(document.profile):
            self._report.error(
                "unknown_profile",
                f"there is no profile `{document.profile}`"
                f"{self._context.likely.hint(document.profile, catalog.ids)}",
                (*steps, "profile"),
            )
            return None
        profile = catalog.get(document.profile)
        adapter_type = ADAPTER_OF_TYPE.get(document.type)
        if adapter_type == "ollama":
            self._report.error(
                "profile_unfit",
                "a provider of type `ollama` is spoken to in Ollama's own API and takes no "
                "profile; for its OpenAI API use type `openai_compat`",
                (*steps, "profile"),
            )
            return None
        if (
            profile is not None
            and adapter_type == "anthropic"
            and profile.driver != "anthropic_messages"
        ):
            self._report.error(
                "profile_unfit",
                f"a provider of type `{document.type}` needs a profile of the driver "
                f"`anthropic_messages`, and this one has `{profile.driver}`",
                (*steps, "profile"),
            )
        return document.profile

    def _adapter_key(self, document: ProviderDocument, steps: Steps) -> str | None:
        if document.adapter is None:
            return self._first_key(document, steps)
        for name in _BESIDE_ADAPTER:
            if getattr(document, name) is not None:
                self._report.error(
                    "field_beside_adapter",
                    f"`{name}` belongs to the adapter that `adapter` names; write it there, or "
                    "leave `adapter` out",
                    (*steps, name),
                    on_key=True,
                )
        is_enabled = document.enabled is not False
        key = self._named_key(document.adapter, (*steps, "adapter"), is_reported=is_enabled)
        if key is None or document.type not in ADAPTER_OF_TYPE or not self._adapters[key].type:
            return key
        wanted = ADAPTER_OF_TYPE[document.type]
        if self._adapters[key].type == wanted:
            return key
        if is_enabled:
            self._report.error(
                "type_unfit",
                f"a provider of type `{document.type}` runs on an adapter of type `{wanted}`, "
                f"and this one is of type `{self._adapters[key].type}`",
                (*steps, "adapter"),
            )
        return None

    def _named_key(self, name: str, steps: Steps, *, is_reported: bool) -> str | None:
        """The key that an `adapter` leads to, or None, reported where that matters."""
        adapter = self._adapters.get(name)
        if adapter is not None:
            if adapter.enabled is not False:
                return name
            problem = ("adapter_disabled", f"the adapter `{name}` of this node is disabled")
        else:
            of_type = self._of_type.get(name, [])
            if len(of_type) == 1:
                return of_type[0]
            if of_type:
                problem = (
                    "ambiguous_adapter",
                    f"several adapters of this node have type `{name}`; name {code_spans(of_type)}",
                )
            else:
                hint = self._context.likely.hint(name, self._adapters)
                problem = ("unknown_adapter", f"this node has no adapter `{name}`{hint}")
        if is_reported:
            self._report.error(*problem, steps)
        return None

    def _first_key(self, document: ProviderDocument, steps: Steps) -> str | None:
        if not _is_provider_first(document):
            if document.enabled is not False and not _is_blank(document):
                self._report.error(
                    "missing_key",
                    "an enabled provider needs `adapter`, or provider-first fields such as "
                    "`base_url`",
                    steps,
                )
            return None
        if document.id in self._adapters:
            self._report.error(
                "adapter_key_taken",
                "the adapter made from this provider takes its id as key, and this node has an "
                f"adapter `{document.id}` already; rename one, or name that one in `adapter`",
                (*steps, "id"),
            )
            return None
        return document.id

    def _own_dialect(self, document: ProviderDocument) -> Dialect:
        users = self._users.get(document.id)
        return users[0].dialect if users else Dialect(None, None)

    def _dialect(self, document: AdapterDocument) -> Dialect:
        """What the providers of an adapter agree on; by its type where it has none."""
        users = self._users.get(document.key, [])
        if not users:
            return Dialect(PROFILE_OF_TYPE.get(document.type), None)
        first = users[0]
        for user in users[1:]:
            if user.dialect == first.dialect:
                continue
            what = "profile" if user.dialect.profile_id != first.dialect.profile_id else "label"
            self._report.error(
                "adapter_shared_unequally",
                f"`{user.provider.id}` and `{first.provider.id}` share the adapter "
                f"`{document.key}` and differ in their {what}; give each an adapter of its own",
                (*user.steps, "adapter"),
            )
        return first.dialect


def _is_blank(document: ProviderDocument) -> bool:
    """Whether it stands for an entry that could not be read at all."""
    return document.id == "" and not document.models


def _is_provider_first(document: ProviderDocument) -> bool:
    return document.adapter is None and any(
        getattr(document, name) is not None for name in FIRST_FIELDS
    )
