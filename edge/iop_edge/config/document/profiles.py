"""The section `protocol_profiles`: overlays on the catalog of upstream dialects."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from iop_edge.config.document.secrets import SecretDocument
from iop_edge.config.document.types import HeaderName, Id, OperationPath, Scheme, Url
from iop_shared.profiles import Capability, Driver, Operation


class ProfileAuthDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The header that carries the upstream's credential. Merges by key over the base's."""

    header: Annotated[HeaderName | None, Meta(description="Name of the header.")] = None
    scheme: Annotated[Scheme | None, Meta(description="Put before the value, with a space.")] = None
    value: Annotated[SecretDocument | None, Meta(description="Where the credential is.")] = None


class ProfileDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How an upstream's API is spoken: an overlay on a built-in or custom base (PROF-2)."""

    base: Annotated[Id | None, Meta(description="Profile that this one extends.")] = None
    driver: Annotated[
        Driver | None, Meta(description="Dialect; needed without a base, and closed.")
    ] = None
    base_url: Annotated[
        Url | None, Meta(description="For adapters that name none of their own.")
    ] = None
    operations: Annotated[
        dict[Operation, OperationPath] | None,
        Meta(description="Operation to path, or to a whole URL. Merges by key over the base's."),
    ] = None
    auth: Annotated[ProfileAuthDocument | None, Meta(description="The credential's header.")] = None
    capabilities: Annotated[
        list[Capability] | None,
        Meta(description="What the upstream can do. Replaces the base's list."),
    ] = None
    model_mapping: Annotated[
        dict[Id, Id] | None,
        Meta(description="Model id to served model. Merges by key over the base's."),
    ] = None
    extensions: Annotated[
        dict[str, Any] | None,
        Meta(description="Free map, handed to the adapter. Merges by key over the base's."),
    ] = None
