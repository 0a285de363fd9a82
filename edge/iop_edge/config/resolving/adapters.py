"""Adapters in full: how one upstream is reached, with its profile resolved (CFG-26, PROF-8).

Nearest wins: what stands at the adapter (or at a provider-first provider) over the profile's own.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from iop_edge.config import effective
from iop_edge.config.document import AdapterDocument, ProviderDocument
from iop_edge.config.effective import Adapter, CatalogProfile, HeaderValue
from iop_edge.config.frozen import FrozenMap
from iop_edge.config.resolving.addresses import Refused, check_url, is_link_local
from iop_edge.config.resolving.catalog import ADAPTER_OF_TYPE, Catalog
from iop_edge.config.resolving.context import Context, fill, written
from iop_edge.config.resolving.headers import Written, read_headers, with_auth
from iop_edge.config.resolving.secrets import SecretSite
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import AdapterKey
from iop_shared.profiles import ProtocolProfile, is_absolute_url, join_url


class Dialect(NamedTuple):
    """What a provider asks of its adapter; equal among those that share one (CFG-25)."""

    profile_id: str | None
    label: str | None


class AdapterBuilder:
    """Builds the effective adapters of all nodes. Every reference to a secret goes into `sites`."""

    def __init__(self, catalog: Catalog, sites: list[SecretSite], context: Context) -> None:
        self._catalog = catalog
        self._sites = sites
        self._context = context
        self._report = context.report

    def written(self, document: AdapterDocument, dialect: Dialect, steps: Steps) -> Adapter:
        """An adapter as an entry of `adapters` has it."""
        profile = self._profile(dialect)
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
            headers=self._headers(document.headers, profile, steps),
            provider_label=dialect.label,
            profile=_resolved(dialect.profile_id, profile, base_url),
            probe=fill(effective.Probe, document.probe),
        )

    def own(self, document: ProviderDocument, dialect: Dialect, steps: Steps) -> Adapter:
        """The adapter of a provider-first provider, under the provider's id (CFG-11)."""
        profile = self._profile(dialect)
        if document.endpoint is not None and document.base_url is not None:
            self._report.error(
                "endpoint_and_base_url",
                "`endpoint` and `base_url` are two names of one thing; keep one",
                (*steps, "endpoint"),
                on_key=True,
            )
        field = "endpoint" if document.endpoint is not None else "base_url"
        base_url = self._base_url(
            document.base_url or document.endpoint,
            (*steps, field),
            profile,
            dialect,
            is_blank=not document.type,
        )
        bounds = written(document)
        return Adapter(
            key=AdapterKey(document.id),
            type=ADAPTER_OF_TYPE.get(document.type, "openai_compat"),
            base_url=base_url,
            headers=self._headers(document.headers, profile, steps),
            provider_label=dialect.label,
            profile=_resolved(dialect.profile_id, profile, base_url),
            **{one: bounds[one] for one in ("context_size", "request_timeout_ms") if one in bounds},
        )

    def _profile(self, dialect: Dialect) -> CatalogProfile | None:
        return self._catalog.get(dialect.profile_id) if dialect.profile_id is not None else None

    def _headers(
        self, headers: Written | None, profile: CatalogProfile | None, steps: Steps
    ) -> tuple[HeaderValue, ...]:
        found = read_headers(headers, (*steps, "headers"), self._sites, self._context)
        return with_auth(found, profile.auth) if profile is not None else found

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
