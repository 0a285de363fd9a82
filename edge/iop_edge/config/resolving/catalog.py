"""The profiles of one config: the built-in ones, and its overlays with their bases (PROF-1…4)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from iop_edge.config.document import ProfileDocument
from iop_edge.config.effective import AdapterType, CatalogProfile, ProfileAuth
from iop_edge.config.frozen import FrozenMap, frozen
from iop_edge.config.report import code_spans
from iop_edge.config.resolving.addresses import Refused, check_url
from iop_edge.config.resolving.built_in import BUILT_IN
from iop_edge.config.resolving.context import Context
from iop_edge.config.resolving.headers import check_header_name
from iop_edge.config.resolving.identity import check_distinct, fold
from iop_edge.config.resolving.secrets import UPSTREAM_FORMS, secret_ref
from iop_edge.config.yaml12.places import Steps
from iop_shared.profiles import (
    CAPABILITIES,
    OPERATION_OF_CAPABILITY,
    OPERATIONS,
    OPERATIONS_BY_DRIVER,
    Capability,
    Driver,
    Operation,
)

PROFILE_OF_TYPE: Mapping[str, str | None] = MappingProxyType(
    {
        "openai_compat": "openai",
        "openai": "openai",
        "anthropic": "anthropic",
        "ollama": None,
        "vllm": "vllm",
        "sglang": "sglang",
        "llama_cpp": "llama_cpp",
        "lm_studio": "lm_studio",
        "seulgivibe_claude": "seulgivibe_claude",
        "seulgivibe_openai": "seulgivibe_openai",
    }
)
"""The profile of a provider or adapter type that selects none itself (PROF-7)."""

ADAPTER_OF_TYPE: Mapping[str, AdapterType] = MappingProxyType(
    {
        "openai_compat": "openai_compat",
        "openai": "openai_compat",
        "vllm": "openai_compat",
        "sglang": "openai_compat",
        "llama_cpp": "openai_compat",
        "lm_studio": "openai_compat",
        "seulgivibe_claude": "openai_compat",
        "seulgivibe_openai": "openai_compat",
        "anthropic": "anthropic",
        "ollama": "ollama",
    }
)
"""The adapter type that speaks for a provider type."""


MAX_JSON_NUMBER = 2**53
"""Past this, whole numbers lose digits on their way to a node."""


class Catalog:
    """Every profile by id, with everything of its bases filled in. Made once for a candidate."""

    def __init__(self, documents: Mapping[str, ProfileDocument], context: Context) -> None:
        self._documents = documents
        self._context = context
        self._resolved: dict[str, CatalogProfile | None] = {}
        self._way: list[str] = []
        check_distinct(
            lambda: ((one, ("protocol_profiles", one)) for one in documents if one not in BUILT_IN),
            "profile id",
            context.report,
        )
        for profile_id in documents:
            self._check_not_built_in(profile_id)
            if profile_id in BUILT_IN:
                context.report.error(
                    "built_in_profile",
                    "a built-in profile has this id; give yours another and name this one as "
                    "its `base`",
                    ("protocol_profiles", profile_id),
                )
            else:
                self._resolve(profile_id)

    @property
    def ids(self) -> tuple[str, ...]:
        return (*BUILT_IN, *(one for one in self._documents if one not in BUILT_IN))

    def get(self, profile_id: str) -> CatalogProfile | None:
        """The profile, or None where it is unknown or has problems of its own."""
        return BUILT_IN.get(profile_id) or self._resolved.get(profile_id)

    def is_known(self, profile_id: str) -> bool:
        return profile_id in BUILT_IN or profile_id in self._documents

    def custom(self) -> Mapping[str, CatalogProfile]:
        """The overlays alone, in the file's order."""
        return FrozenMap(
            {
                one: profile
                for one in self._documents
                if (profile := self._resolved.get(one)) is not None
            }
        )

    def _check_not_built_in(self, profile_id: str) -> None:
        folded = fold(profile_id)
        if profile_id not in BUILT_IN and folded in BUILT_IN:
            self._context.report.error(
                "confusable_id",
                f"this profile id differs from the built-in `{folded}` in case or Unicode form "
                "alone",
                ("protocol_profiles", profile_id),
                on_key=True,
            )

    def _resolve(self, profile_id: str) -> CatalogProfile | None:
        """The profile over its base. A cycle is reported once, where it was first met."""
        if profile_id in BUILT_IN:
            return BUILT_IN[profile_id]
        if profile_id in self._resolved:
            return self._resolved[profile_id]
        document = self._documents[profile_id]
        steps: Steps = ("protocol_profiles", profile_id)
        base: CatalogProfile | None = None
        is_whole = True
        if document.base is not None:
            base = self._base(profile_id, document.base, steps)
            is_whole = base is not None
        # A profile whose base is broken gets no second complaint for what the base would bring.
        resolved = self._overlaid(document, base, steps) if is_whole else None
        self._resolved.setdefault(profile_id, resolved)
        return resolved

    def _base(self, profile_id: str, base_id: str, steps: Steps) -> CatalogProfile | None:
        report, likely = self._context
        if not self.is_known(base_id):
            report.error(
                "unknown_base",
                f"there is no profile `{base_id}` to extend{likely.hint(base_id, self.ids)}",
                (*steps, "base"),
            )
            return None
        self._way.append(profile_id)
        try:
            if base_id in self._way:
                circle = [*self._way[self._way.index(base_id) :], base_id]
                report.error(
                    "profile_cycle",
                    f"profiles extend each other in a circle: {' → '.join(circle)}",
                    (*steps, "base"),
                )
                for member in circle:
                    self._resolved[member] = None
                return None
            return self._resolve(base_id)
        finally:
            self._way.pop()

    def _overlaid(
        self, document: ProfileDocument, base: CatalogProfile | None, steps: Steps
    ) -> CatalogProfile | None:
        report = self._context.report
        driver = document.driver or (base.driver if base is not None else None)
        if driver is None:
            if report.places.mark_of(report.root, (*steps, "driver")) is not None:
                return None  # What stands there is no driver, which has been said.
            report.error(
                "missing_key",
                "a profile without a `base` needs a `driver` (one that fits its upstream)",
                steps,
            )
            return None
        operations: dict[Operation, str] = dict(base.operations) if base is not None else {}
        operations |= document.operations or {}
        capabilities: frozenset[Capability] = frozenset(
            document.capabilities
            if document.capabilities is not None
            else (base.capabilities if base is not None else ())
        )
        fits = self._check_operations(driver, operations, document, steps)
        fits &= self._check_capabilities(capabilities, operations, document, steps)
        if document.base_url is not None:
            self._check_url(document.base_url, (*steps, "base_url"))
        for operation, url in (document.operations or {}).items():
            if not url.startswith("/"):
                self._check_operation_url(url, (*steps, "operations", operation))
        self._check_extensions(document.extensions or {}, (*steps, "extensions"))
        mapping: dict[str, str] = dict(base.model_mapping) if base is not None else {}
        extensions: dict[str, Any] = dict(base.extensions) if base is not None else {}
        resolved = CatalogProfile(
            base=document.base,
            driver=driver,
            base_url=document.base_url or (base.base_url if base is not None else None),
            operations=FrozenMap({one: operations[one] for one in OPERATIONS if one in operations}),
            auth=self._auth(document, base, driver, steps),
            capabilities=capabilities,
            model_mapping=FrozenMap(mapping | (document.model_mapping or {})),
            extensions=frozen(extensions | (document.extensions or {})),
        )
        return resolved if fits else None

    def _check_operations(
        self,
        driver: Driver,
        operations: Mapping[Operation, str],
        document: ProfileDocument,
        steps: Steps,
    ) -> bool:
        allowed = OPERATIONS_BY_DRIVER[driver]
        unfit = [one for one in operations if one not in allowed]
        for operation in unfit:
            is_own = document.operations is not None and operation in document.operations
            self._context.report.error(
                "operation_unfit",
                f"the driver `{driver}` has no operation `{operation}`; it has "
                f"{code_spans(one for one in OPERATIONS if one in allowed)}",
                (*steps, "operations", operation) if is_own else (*steps, "driver"),
                on_key=is_own,
            )
        return not unfit

    def _check_capabilities(
        self,
        capabilities: frozenset[Capability],
        operations: Mapping[Operation, str],
        document: ProfileDocument,
        steps: Steps,
    ) -> bool:
        fits = True
        for capability in CAPABILITIES:
            needed = OPERATION_OF_CAPABILITY.get(capability)
            if capability not in capabilities or needed is None or needed in operations:
                continue
            fits = False
            own = document.capabilities or []
            self._context.report.error(
                "capability_unfit",
                f"the capability `{capability}` needs the operation `{needed}`, which this "
                "profile has not",
                (*steps, "capabilities", own.index(capability))
                if capability in own
                else (*steps, "driver"),
            )
        return fits

    def _check_extensions(self, value: Any, steps: Steps) -> None:
        """A free map may hold anything that JSON can carry to a node without loss."""
        if isinstance(value, dict):
            for key, inner in value.items():
                self._check_extensions(inner, (*steps, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._check_extensions(inner, (*steps, index))
        elif isinstance(value, int | float) and not abs(value) <= MAX_JSON_NUMBER:
            self._context.report.error(
                "out_of_range",
                f"a number here must be from -{MAX_JSON_NUMBER} to {MAX_JSON_NUMBER}; quote it if "
                "it is meant as text",
                steps,
            )

    def _check_url(self, url: str, steps: Steps) -> None:
        try:
            check_url(url)
        except Refused as refused:
            self._context.report.error("bad_url", f"this {refused}", steps)

    def _check_operation_url(self, url: str, steps: Steps) -> None:
        """A whole operation URL may have a query, as some upstreams want a version there."""
        try:
            check_url(url.partition("?")[0])
        except Refused as refused:
            self._context.report.error("bad_url", f"this {refused}", steps)

    def _auth(
        self,
        document: ProfileDocument,
        base: CatalogProfile | None,
        driver: Driver,
        steps: Steps,
    ) -> ProfileAuth:
        own = document.auth
        inherited = base.auth if base is not None else _DEFAULT_AUTH[driver]
        if own is None:
            return inherited
        check_header_name(own.header, (*steps, "auth", "header"), self._context)
        value = inherited.value
        if own.value is not None:
            value = secret_ref(
                own.value, UPSTREAM_FORMS, (*steps, "auth", "value"), self._context.report
            )
        return ProfileAuth(
            header=own.header if own.header is not None else inherited.header,
            scheme=own.scheme if own.scheme is not None else inherited.scheme,
            value=value,
        )


_DEFAULT_AUTH: Mapping[Driver, ProfileAuth] = MappingProxyType(
    {
        "openai_chat": BUILT_IN["openai"].auth,
        "openai_responses": BUILT_IN["openai"].auth,
        "anthropic_messages": BUILT_IN["anthropic"].auth,
    }
)
