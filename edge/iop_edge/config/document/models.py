"""The section `models`: the model groups that callers name."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from iop_edge.config import effective
from iop_edge.config.document.types import CharsPerToken, Id, StructType, Text, Tokens, TokensOrZero


class ModelDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One external model id, and the providers that serve it (CFG-15)."""

    EFFECTIVE: ClassVar[StructType] = effective.ModelGroup

    id: Annotated[Id, Meta(description="Model id that callers name; unique.")]
    display_name: Annotated[Text | None, Meta(description="A name for people.")] = None
    providers: Annotated[
        dict[Id, Id] | None,
        Meta(description="Provider id to served model, which is one of the provider's `models`."),
    ] = None
    context_window_tokens: Annotated[
        Tokens | None,
        Meta(description="Largest request, input and output; unknown where it is left out."),
    ] = None
    default_max_tokens: Annotated[
        Tokens | None, Meta(description="Output limit where the caller gave none.")
    ] = None
    min_max_tokens: Annotated[
        TokensOrZero | None, Meta(description="Floor under the caller's output limit.")
    ] = None
    default_thinking_token_budget: Annotated[
        TokensOrZero | None,
        Meta(description="Thinking budget where the caller gave none; below default_max_tokens."),
    ] = None
    usage_attribution: Annotated[
        effective.UsageAttribution | None,
        Meta(description="Whom usage is booked to; `model_group` is an explicit choice."),
    ] = None
    chars_per_token: Annotated[
        CharsPerToken | None, Meta(description="Corrects the estimate of input tokens.")
    ] = None
