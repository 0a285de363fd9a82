"""Where a secret is to be found, as it is written (CFG-2)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from iop_edge.config.document.types import FilePath, Sha256Hex, VariableName


class SecretDocument(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A reference to a secret, never the secret. Exactly one of these keys stands in it.

    A node token takes `env`, `file` or `sha256`; a header or auth value takes `env` or `file`
    (resolved on the edge), or `node_env` or `node_file` (resolved on the node, never sent).
    """

    env: Annotated[
        VariableName | None, Meta(description="Environment variable of the edge that holds it.")
    ] = None
    file: Annotated[
        FilePath | None,
        Meta(description="File on the edge that holds it; one newline at its end is dropped."),
    ] = None
    sha256: Annotated[
        Sha256Hex | None,
        Meta(
            description="For a node token: the sha256 of the token, so that the edge need not "
            "know it."
        ),
    ] = None
    node_env: Annotated[
        VariableName | None, Meta(description="Environment variable of the node that holds it.")
    ] = None
    node_file: Annotated[FilePath | None, Meta(description="File on the node that holds it.")] = (
        None
    )
