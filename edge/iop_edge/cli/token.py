"""`iop-edge token new`: one new token and the digest that a config holds in its place."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Literal

import click

Kind = Literal["node", "caller"]

_PUBLIC_ID_BYTES = 4
_SECRET_BYTES = 32


def new_token(kind: Kind) -> str:
    """`iop_<kind>_<8 hex: public id>_<secret>`; the secret has 256 bits."""
    return f"iop_{kind}_{secrets.token_hex(_PUBLIC_ID_BYTES)}_{secrets.token_hex(_SECRET_BYTES)}"


def digest_of(token: str) -> str:
    """The sha256 of the token's UTF-8 bytes, as a config holds it."""
    return hashlib.sha256(token.encode("utf-8")).hexdigest()


@click.group()
def token() -> None:
    """Tokens of nodes and callers."""


@token.command()
@click.option(
    "--kind",
    type=click.Choice(["node", "caller"]),
    default="node",
    show_default=True,
    help="For a node that joins, or for a caller of the models.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def new(kind: Kind, as_json: bool) -> None:
    """Make one new token. It is shown once and kept nowhere."""
    made = new_token(kind)
    digest = digest_of(made)
    if as_json:
        click.echo(json.dumps({"kind": kind, "token": made, "sha256": digest}))
        return
    click.echo(f"token   {made}")
    click.echo(f"sha256  {digest}")
    where = (
        f"nodes[].token: {{ sha256: {digest[:8]}… }}, and the token itself as IOP_NODE_TOKEN there"
        if kind == "node"
        else f"openai.principal_tokens[].token_hash_sha256: {digest[:8]}…, the token to the caller"
    )
    click.echo(f"In the config: {where}", err=True)
