"""Nodes: which adapter each provider runs on, and what each adapter is in full (CFG-9…13, 25, 26).

The decision for a provider, in this order:
 1. `adapter` is the exact key of an adapter of the node; or
 2. it is a bare adapter type, and exactly one enabled instance of that type exists; or
 3. there is no `adapter` but a provider-first field: the provider's own adapter is made.
A disabled provider whose `adapter` resolves to nothing is left without one (CFG-12).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from iop_edge.config import effective
from iop_edge.config.document import AdapterDocument, NodeDocument, ProviderDocument
from iop_edge.config.effective import Adapter, CatalogProfile, Node, Provider
from iop_edge.config.frozen import FrozenMap
from iop_edge.config.report import code_spans
from iop_edge.config.resolving.addresses import Refused, check_url, is_link_local
from iop_edge.config.resolving.catalog import ADAPTER_OF_TYPE, PROFILE_OF_TYPE, Catalog
from iop_edge.config.resolving.context import Context, fill
from iop_edge.config.resolving.headers import read_headers, with_auth
from iop_edge.config.resolving.identity import check_distinct
from iop_edge.config.resolving.secrets import TOKEN_FORMS, SecretSite, secret_ref
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import AdapterKey, NodeId, ProviderId, Target
from iop_shared.profiles import ProtocolProfile, is_absolute_url, join_url

FIRST_FIELDS = ("provider", "endpoint", "base_url", "headers", "context_size", "request_timeout_ms")
"""The provider-first execution fields (CFG-10). The label alone may stand beside `adapter`."""

_BESIDE_ADAPTER = FIRST_FIELDS[1:]
_SEULGIVIBE = ("seulgivibe_claude", "seulgivibe_openai")


class Dialect(NamedTuple):
    """What a provider asks of its adapter; equal among those that share one (CFG-25)."""

    profile_id: str | None
    label: str | None


class _User(NamedTuple):
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
        ((node.id, ("nodes", number, "id")) for number, node in enumerate(documents)),
        "node id",
        report,
    )
    check_distinct(
        (
            (provider.id, ("nodes", number, "providers", position, "id"))
            for number, node in enumerate(documents)
            for position, provider in enumerate(node.providers or ())
        ),
        "provider id",
        report,
    )
    return tuple(
        _NodeResolver(document, ("nodes", number), catalog, sites, context).resolve()
        for number, document in enumerate(documents)
    )


class _NodeResolver:
    def __init__(
        self,
        document: NodeDocument,
        steps: Steps,
        catalog: Catalog,
        sites: list[SecretSite],
        context: Context,
    ) -> None:
        self._document = document
        self._steps = steps
        self._catalog = catalog
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
            ((one.key, (*steps, "adapters", number, "key")) for number, one in enumerate(written)),
            "adapter key",
            self._report,
        )
        providers = [
            self._provider(provider, (*steps, "providers", position))
            for position, provider in enumerate(document.providers or ())
        ]
        adapters = [
            self._adapter(adapter, (*steps, "adapters", number))
            for number, adapter in enumerate(written)
        ]
        adapters += [
            self._own_adapter(provider, (*steps, "providers", position))
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

    # -- providers ----------------------------------------------------------------------------

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
        for position, model in enumerate(models):
            if model in models[:position]:
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

    # -- adapters -----------------------------------------------------------------------------

    def _adapter(self, document: AdapterDocument, steps: Steps) -> Adapter:
        dialect = self._dialect(document, steps)
        profile = self._catalog.get(dialect.profile_id) if dialect.profile_id else None
        headers = read_headers(document.headers, (*steps, "headers"), self._sites, self._context)
        if profile is not None:
            headers = with_auth(headers, profile.auth)
        base_url = self._base_url(
            document.base_url,
            (*steps, "base_url"),
            profile,
            dialect,
            allow_link_local=bool(document.allow_link_local),
            is_blank=not document.type,
        )
        return fill(
            Adapter,
            document,
            key=AdapterKey(document.key),
            base_url=base_url,
            headers=headers,
            provider_label=dialect.label,
            profile=_resolved(dialect.profile_id, profile, base_url),
            probe=fill(effective.Probe, document.probe),
        )

    def _own_adapter(self, document: ProviderDocument, steps: Steps) -> Adapter:
        """The adapter of a provider-first provider (CFG-11)."""
        users = self._users.get(document.id, [])
        dialect = users[0].dialect if users else Dialect(None, None)
        profile = self._catalog.get(dialect.profile_id) if dialect.profile_id else None
        headers = read_headers(document.headers, (*steps, "headers"), self._sites, self._context)
        if profile is not None:
            headers = with_auth(headers, profile.auth)
        if document.endpoint is not None and document.base_url is not None:
            self._report.error(
                "endpoint_and_base_url",
                "`endpoint` and `base_url` are two names of one thing; keep one",
                (*steps, "endpoint"),
                on_key=True,
            )
        field = "endpoint" if document.endpoint is not None else "base_url"
        base_url = self._base_url(
            document.base_url or document.endpoint, (*steps, field), profile, dialect
        )
        written = {
            name: value
            for name in ("context_size", "request_timeout_ms")
            if (value := getattr(document, name)) is not None
        }
        return Adapter(
            key=AdapterKey(document.id),
            type=ADAPTER_OF_TYPE.get(document.type, "openai_compat"),
            base_url=base_url,
            headers=headers,
            provider_label=dialect.label,
            profile=_resolved(dialect.profile_id, profile, base_url),
            **written,
        )

    def _dialect(self, document: AdapterDocument, steps: Steps) -> Dialect:
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

    def _base_url(
        self,
        url: str | None,
        steps: Steps,
        profile: CatalogProfile | None,
        dialect: Dialect,
        *,
        allow_link_local: bool = False,
        is_blank: bool = False,
    ) -> str:
        is_own = url is not None
        if url is None and profile is not None:
            url = profile.base_url
        if url is None:
            is_judged = dialect.profile_id is None or profile is not None
            if is_judged and not is_blank:
                self._report.error(
                    "missing_key",
                    "`base_url` is needed here: neither the adapter nor its profile names one",
                    steps[:-1],
                )
            return ""
        try:
            host = check_url(url)
        except Refused as refused:
            if is_own:
                self._report.error("bad_url", f"this {refused}", steps)
            return ""
        if not allow_link_local:
            self._check_not_link_local(host, profile, steps)
        return url

    def _check_not_link_local(
        self, host: str, profile: CatalogProfile | None, steps: Steps
    ) -> None:
        hosts = [host, *(_operation_hosts(profile) if profile is not None else ())]
        if any(is_link_local(one) for one in hosts):
            self._report.error(
                "link_local",
                "this leads to a link-local address, where cloud metadata services live; allow "
                "it with `allow_link_local: true` on the adapter if it is meant",
                steps,
            )


@cache
def _hosts_of(urls: tuple[str, ...]) -> tuple[str, ...]:
    hosts = []
    for url in urls:
        try:
            hosts.append(check_url(url.partition("?")[0]))
        except Refused:
            continue
    return tuple(hosts)


def _operation_hosts(profile: CatalogProfile) -> tuple[str, ...]:
    """The hosts of a profile's whole operation URLs."""
    return _hosts_of(tuple(url for url in profile.operations.values() if is_absolute_url(url)))


def _is_blank(document: ProviderDocument) -> bool:
    """Whether it stands for an entry that could not be read at all."""
    return document.id == "" and not document.models


def _is_provider_first(document: ProviderDocument) -> bool:
    return document.adapter is None and any(
        getattr(document, name) is not None for name in FIRST_FIELDS
    )


def _resolved(
    profile_id: str | None, profile: CatalogProfile | None, base_url: str
) -> ProtocolProfile | None:
    """The profile as an immutable snapshot with complete URLs (PROF-8)."""
    if profile is None or profile_id is None:
        return None
    return ProtocolProfile(
        id=profile_id,
        driver=profile.driver,
        operation_urls=FrozenMap(
            {one: join_url(base_url, path) for one, path in profile.operations.items()}
        ),
        capabilities=profile.capabilities,
        model_mapping=profile.model_mapping,
        extensions=profile.extensions,
    )
